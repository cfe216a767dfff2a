package notify

import (
	"context"
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
// of, and, where parts may be told, one part of what was refused, first what was not refused
// alone.
func (d *doubt) take(q *queue, most int, parts bool) []string {
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
	next := clean && (!some || !d.clean)
	if !next && !parts {
		return nil
	}
	d.clean = next
	return q.take(most, func(id string) bool {
		x, is := d.parts[id]
		return is != d.clean && (d.clean || x.part == part)
	})
}

// recall notes of what is to be told that it was refused, together, by somebody, as who told
// it before knew, who may be gone.
func (d *doubt) recall(ws []*word, now time.Time) {
	made := false
	for _, w := range ws {
		if _, is := d.parts[w.d.ID]; is || len(d.parts) >= maxDoubts || !(&answer{status: w.d.LastStatus}).refused() {
			continue
		}
		if !made {
			d.made, made = d.made+1, true
		}
		d.parts[w.d.ID] = suspect{part: d.made, at: now}
	}
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
func (d *doubt) taken(ws []*word) {
	for _, w := range ws {
		delete(d.parts, w.d.ID)
	}
}

// partsOf are the parts in which messages are told on that were refused together. What was
// taken before, and ends, of which most were, need not wait until what is new is told apart:
// each is a part.
func partsOf(ws []*word) (parts [][]*word) {
	var standing, ends, others []*word
	for _, w := range ws {
		switch {
		case w.d.Push.EndsAt != nil:
			ends = append(ends, w)
		case w.d.State == Active:
			standing = append(standing, w)
		default:
			others = append(others, w)
		}
	}
	for _, part := range [][]*word{standing, ends} {
		if len(part) == len(ws) {
			return inParts(part)
		}
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	return append(parts, inParts(others)...)
}

func inParts(ws []*word) [][]*word {
	return slices.Collect(slices.Chunk(ws, max(1, (len(ws)+doubtParts-1)/doubtParts)))
}

// refused notes that messages were, which are in parts from now on, and returns those that
// are to be told on: of one there are none, and of what there is no room for.
func (d *doubt) refused(parts [][]*word, said answer, now time.Time) (on []*word) {
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
	alone := len(parts) == 1 && len(parts[0]) == 1
	for _, ws := range parts {
		d.made++
		for _, w := range ws {
			if _, is := d.parts[w.d.ID]; !is && len(d.parts) >= maxDoubts {
				continue
			}
			d.parts[w.d.ID] = suspect{part: d.made, alone: alone, at: now}
			if !alone {
				on = append(on, w)
			}
		}
	}
	return on
}

// doubt takes over what an Alertmanager refused, or took: what is to be told on in parts
// goes back into its queue, and is not answered. What one fails on again and again is told
// in parts, too, when it may be asked. That alerts are refused that were not before is logged.
func (s *Service) doubt(ctx context.Context, h *held, r *target, a *reply) {
	d := h.asks.doubts.of(r, a.to)
	switch {
	case a.answer.taken():
		d.taken(a.words)
		return
	case a.answer.refused():
	case (a.answer.status >= 500 || a.answer.late) && h.lane.Holds[a.to.url].Fails >= loggedFails:
		d.refused(partsOf(a.words), a.answer, s.now()) // one of them may be what it fails on
		return
	default:
		return
	}
	on := d.refused(partsOf(a.words), a.answer, s.now())
	for _, w := range on {
		if h.asks.words[w.d.ID] == w {
			h.asks.queue(a.to).put(w.d.ID)
		}
	}
	a.words = slices.DeleteFunc(a.words, func(w *word) bool { return slices.Contains(on, w) })
	anew := slices.DeleteFunc(slices.Clone(a.words), func(w *word) bool { return (&answer{status: w.d.LastStatus}).refused() })
	if len(anew) > 0 {
		s.Logger.WarnContext(ctx, "an Alertmanager refuses alerts", "receiver", r.Name, "id", r.ID, "endpoint", a.to.name, "alerts", len(anew),
			"first", anew[0].d.Alert, "status", a.answer.status)
	}
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
