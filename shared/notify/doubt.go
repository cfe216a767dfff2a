package notify

import (
	"slices"
	"time"
)

const (
	// doubtParts is in how many parts messages are told on that were refused together: so
	// many that of a full request those to blame are found in the third, as one that is
	// refused may take long and one that is taken takes none.
	doubtParts = 16
	// refusedTries is how many refusals of one Alertmanager are asked for in a minute, and
	// aloneTries how many of them are left to those that were refused alone before. What is
	// left over counts as refused till then.
	refusedTries = 64
	aloneTries   = refusedTries / 2
	// maxDoubts bounds what is remembered of one Alertmanager, which is forgotten when it was
	// not refused again for as long as an end is told.
	maxDoubts = 1024
	doubtKept = resolvedFor
)

// doubts are what Alertmanagers refused of a receiver, by URL, of one revision of it.
type doubts struct {
	revision int64
	by       map[string]*doubt
}

// of is what is known of an endpoint.
func (d *doubts) of(r *target, to endpoint) *doubt {
	if d.by == nil || d.revision != r.Revision {
		d.revision, d.by = r.Revision, map[string]*doubt{}
	}
	if d.by[to.url] == nil {
		d.by[to.url] = &doubt{parts: map[string]suspect{}}
	}
	return d.by[to.url]
}

// doubt is what one Alertmanager, or what is before it, refused: messages whose parts are
// told on apart from the rest, which else would be refused with them.
type doubt struct {
	parts map[string]suspect // by message
	made  int                // how many parts were made
	clean bool               // what it was told last was nothing of them
	// said is what it answered last when it refused, tries how often it did since began, of
	// each minute.
	said  answer
	tries int
	began time.Time
}

// suspect says of a message in which part of what was refused it is.
type suspect struct {
	part  int
	alone bool // it was refused alone
	at    time.Time
}

// take takes out of a queue what an endpoint is told next: in turn what nothing is known
// of, and one part of what was refused, first what was not refused alone.
func (d *doubt) take(q *queue, most int) []string {
	part, alone, clean, some := 0, true, false, false
	for _, id := range q.ids {
		x, is := d.parts[id]
		switch {
		case !is:
			clean = true
		case !some || alone && !x.alone:
			part, alone, some = x.part, x.alone, true
		}
	}
	d.clean = clean && (!some || !d.clean)
	return q.take(most, func(id string) bool {
		x, is := d.parts[id]
		return is != d.clean && (d.clean || x.part == part)
	})
}

// spent takes out of a queue what is not asked for now, since it was refused too often, and
// returns what counts as answered to it.
func (d *doubt) spent(q *queue, now time.Time) ([]string, answer) {
	if d.tries < aloneTries || !d.within(now) {
		return nil, answer{}
	}
	a := d.said
	a.notAsked, a.until = true, d.began.Add(resend)
	out := q.take(len(q.ids), func(id string) bool {
		x, is := d.parts[id]
		return is && (x.alone || d.tries >= refusedTries)
	})
	for _, id := range out { // it would have been refused, for all that is known
		x := d.parts[id]
		x.at = now
		d.parts[id] = x
	}
	return out, a
}

// within tells whether tries counts those of now.
func (d *doubt) within(now time.Time) bool {
	return !now.Before(d.began) && now.Before(d.began.Add(resend))
}

// taken notes that messages were.
func (d *doubt) taken(ids []string) {
	for _, id := range ids {
		delete(d.parts, id)
	}
}

// refused notes that messages were, and returns those that are to be told on in parts: of
// one there are none, and of what there is no room for.
func (d *doubt) refused(ids []string, said answer, now time.Time) (on []string) {
	if !d.within(now) {
		d.began, d.tries = now, 0
		for id, x := range d.parts {
			if now.Sub(x.at) > doubtKept || now.Before(x.at) {
				delete(d.parts, id)
			}
		}
	}
	d.tries++
	d.said = said
	for part := range slices.Chunk(ids, max(1, (len(ids)+doubtParts-1)/doubtParts)) {
		d.made++
		for _, id := range part {
			if _, is := d.parts[id]; !is && len(d.parts) >= maxDoubts {
				continue
			}
			d.parts[id] = suspect{part: d.made, alone: len(ids) == 1, at: now}
			if len(ids) > 1 {
				on = append(on, id)
			}
		}
	}
	return on
}

// remember leaves what is known of refusals to who here has the lane next, and returns it;
// nil: nothing is.
func (s *Service) remember(h *held) *doubts {
	if h.asks == nil {
		return nil
	}
	for _, d := range h.asks.doubts.by {
		if len(d.parts) > 0 {
			known := h.asks.doubts
			h.asks.doubts = &doubts{}
			s.doubts.Store(h.receiver, known)
			return known
		}
	}
	return nil
}
