package notify

import (
	"context"
	"maps"
	"slices"
	"time"
)

const (
	// doubtParts is in how many parts messages are told on that were not taken together: so
	// many that of a full request those to blame are found in the third, as one that is
	// refused may take long and one that is taken takes none.
	doubtParts = 16
	// suspectsAtOnce is how many of those parts one Alertmanager is told at a time, beside
	// what nothing is known of; it is one while it takes nothing.
	suspectsAtOnce = 8
	// refusedTries is how many refusals of one Alertmanager are asked for in a minute: so many
	// that the good ones of a storm are found at once where refusals are quick (slow ones are
	// bounded by suspectsAtOnce). Those that were refused alone before have the first aloneTries
	// of them. What is left over counts as refused till then.
	refusedTries = 512
	aloneTries   = 32
	// maxDoubts bounds what is remembered of one Alertmanager, which is forgotten when it was
	// not refused again for as long as an end is told.
	maxDoubts = 1024
	doubtKept = resolvedFor
	// randomFor is for how long an Alertmanager counts as one that fails at random, since it
	// took, twice, what it had failed on: a load balancer, say, one of whose backends is dead.
	// Of such a one randomFails failures in a row say nothing. It is told in randomParts then,
	// so few that what fails by chance does not make them ever more.
	randomFor   = 5 * time.Minute
	randomFails = 8
	randomParts = 4
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
		d.by[to.url] = &doubt{parts: map[string]suspect{}, row: map[string]bool{}}
	}
	return d.by[to.url]
}

// doubt is what one Alertmanager, or what is before it, did not take: messages whose parts
// are told on apart from the rest, and beside it, so that it neither fails with them nor
// waits for them.
type doubt struct {
	parts map[string]suspect // by message
	made  int                // how many parts were made
	// row has the first messages of the parts that failed since something was answered
	// otherwise; where they are many, or it takes nothing, no part is told before rest, which
	// was set so often.
	row   map[string]bool
	rest  time.Time
	rests int
	// cleared is when it took last, as they were, messages that it had failed on: the failure was
	// not theirs. random is when it did so of a failure since another: one that was away fails
	// on many before it takes any.
	cleared, random time.Time
	// misses is how many requests in a row failed of what nothing was known of.
	misses int
	// err is with what it failed last, and since is when it was told by who knows this.
	err   string
	since time.Time
	// said is what it refused with last, tries how often it did since began, of each minute.
	said  answer
	tries int
	began time.Time
}

// suspect says of a message in which part of what was not taken it is.
type suspect struct {
	part  int
	alone bool // it was refused alone
	at    time.Time
	// fails is how often in a row it was in a request that failed, and was not refused; it
	// is not asked again before until.
	fails int
	until time.Time
	err   string
	// whole is how many there were in that request, where they are told again as they were.
	whole int
}

// clean takes out of a queue what nothing is known of.
func (d *doubt) clean(q *queue, most int, flies map[string]bool) []string {
	return q.take(most, func(id string) bool {
		_, is := d.parts[id]
		return !is && !flies[id]
	})
}

// part takes a part of what was not taken out of a queue that may be told now, first what was
// not refused alone.
func (d *doubt) part(q *queue, most int, flies map[string]bool, now time.Time) []string {
	part, alone, some := 0, true, false
	may := func(id string) bool {
		_, is := d.parts[id]
		return is && !flies[id] && d.waits(id, now).IsZero()
	}
	for _, id := range q.ids {
		if x := d.parts[id]; may(id) && (!some || alone && !x.alone) {
			part, alone, some = x.part, x.alone, true
		}
	}
	return q.take(most, func(id string) bool { return may(id) && d.parts[id].part == part })
}

// recall notes of what is to be told that it was not taken when it was tried last, as who
// told it then knew, who may be gone: together, by somebody.
func (d *doubt) recall(ws []*word, now time.Time) {
	if d.since.IsZero() {
		d.since = now
	}
	if now.Sub(d.since) > 2*resend { // all that it was told before was due since
		return
	}
	made := false
	for _, w := range ws {
		if _, is := d.parts[w.d.ID]; is || len(d.parts) >= maxDoubts || !w.d.failed() || w.d.Tries == 0 {
			continue
		}
		if !made {
			d.made, made = d.made+1, true
		}
		d.parts[w.d.ID] = suspect{part: d.made, at: now}
	}
}

// waits is until when a message is not told, since it failed.
func (d *doubt) waits(id string, now time.Time) time.Time {
	x, is := d.parts[id]
	if at := d.rest; is && at.After(x.until) {
		x.until = at
	}
	if isAhead(x.until, now) {
		return x.until
	}
	return time.Time{}
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
		return is && x.fails == 0 && (x.alone || d.tries >= refusedTries)
	})
	for _, id := range out { // it would have been refused, for all that is known
		x := d.parts[id]
		x.at = now
		d.parts[id] = x
	}
	return out, a
}

// most is how many parts may be told at a time.
func (d *doubt) most(now time.Time) int {
	if !d.within(now) {
		return suspectsAtOnce
	}
	return max(1, min(suspectsAtOnce, refusedTries-d.tries))
}

// within tells whether tries counts those of now.
func (d *doubt) within(now time.Time) bool {
	return !now.Before(d.began) && now.Before(d.began.Add(resend))
}

// grace is how many failures in a row say nothing: neither of what it was told, nor that it
// takes nothing.
func (d *doubt) grace(now time.Time) int {
	if now.Before(d.random) || !now.Before(d.random.Add(randomFor)) {
		return 0
	}
	return randomFails
}

// taken notes that the messages of a request were.
func (d *doubt) taken(ws []*word, now time.Time) {
	if x := d.parts[ws[0].d.ID]; x.whole == len(ws) {
		if !x.at.Before(d.cleared) && now.Before(d.cleared.Add(randomFor)) {
			d.random = now
		}
		d.cleared = now
	}
	for _, w := range ws {
		delete(d.parts, w.d.ID)
	}
}

// partsOf are the parts in which messages are told on that were refused together. What was
// taken before, and ends, of which most were, need not wait until what is new is told apart:
// each is a part.
func partsOf(ws []*word, n int) (parts [][]*word) {
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
			return inParts(part, n)
		}
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	return append(parts, inParts(others, n)...)
}

// partsAt is in how many parts what failed is told on, by grace.
func partsAt(grace int) int {
	if grace > 0 {
		return randomParts
	}
	return doubtParts
}

func inParts(ws []*word, n int) [][]*word {
	return slices.Collect(slices.Chunk(ws, max(1, (len(ws)+n-1)/n)))
}

// refused notes that messages were, which are in parts from now on, and returns those that
// are to be told on: of one there are none, and of what there is no room for.
func (d *doubt) refused(parts [][]*word, said answer, now time.Time) (on []*word) {
	if !d.within(now) {
		d.began, d.tries = now, 0
	}
	d.tries++
	d.said = said
	alone := len(parts) == 1 && len(parts[0]) == 1
	d.divide(parts, now, func(suspect) suspect { return suspect{alone: alone} }, func(w *word) {
		if !alone {
			on = append(on, w)
		}
	})
	return on
}

// failed notes that messages were in a request that failed: together, or in parts where they
// were before, or that took long. Each is asked again after a pause by how often that was. Of
// one that fails at random they are asked again as they were for longer, and soon.
func (d *doubt) failed(rq *request, said answer, pause func(fails int) time.Duration, now time.Time) {
	parts, grace := [][]*word{rq.words}, d.grace(now)
	if fails := d.parts[rq.words[0].d.ID].fails; rq.suspects && fails >= grace || said.late && fails >= min(1, grace) {
		parts = partsOf(rq.words, partsAt(grace))
	}
	whole := len(rq.words)
	if len(parts) > 1 {
		whole = 0
	}
	if d.err = said.err; rq.suspects {
		if d.row[rq.words[0].d.ID] = true; rq.failing || len(d.row) > suspectsAtOnce*(1+grace) {
			if !isAhead(d.rest, now) { // of several at once, the first
				d.rests++
			}
			d.rest = now.Add(pause(d.rests)).Truncate(time.Millisecond)
		}
	}
	d.divide(parts, now, func(x suspect) suspect {
		if whole == 0 && grace > 0 {
			x.fails = 0 // each part has its own
		}
		until := now.Add(pause(max(0, x.fails+1-grace))).Truncate(time.Millisecond)
		return suspect{fails: x.fails + 1, until: until, err: said.err, whole: whole}
	}, func(*word) {})
}

// divide puts messages in parts, as far as there is room; is makes what is known of each, of
// what was.
func (d *doubt) divide(parts [][]*word, now time.Time, is func(was suspect) suspect, each func(*word)) {
	maps.DeleteFunc(d.parts, func(_ string, x suspect) bool { return now.Sub(x.at) > doubtKept || now.Before(x.at) })
	for _, ws := range parts {
		d.made++
		for _, w := range ws {
			was, known := d.parts[w.d.ID]
			if !known && len(d.parts) >= maxDoubts {
				continue
			}
			x := is(was)
			x.part, x.at = d.made, now
			d.parts[w.d.ID] = x
			each(w)
		}
	}
}

// doubt takes over what an Alertmanager took, refused, or failed on: what was refused and is
// to be told on in parts goes back into its queue, and is not answered. That alerts are
// refused that were not before is logged.
func (s *Service) doubt(ctx context.Context, h *held, r *target, a *reply) {
	d := h.asks.doubts.of(r, a.to)
	if a.answer.there(r.Kind) {
		clear(d.row)
		d.rest, d.rests, d.misses = time.Time{}, 0, 0
	}
	switch {
	case a.answer.taken():
		d.taken(a.words, s.now())
		return
	case !a.answer.refused():
		d.failed(a.request, a.answer, func(fails int) time.Duration { return s.failHold(r.Kind, fails) }, s.now())
		return
	}
	on := d.refused(partsOf(a.words, doubtParts), a.answer, s.now())
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
	known := h.asks.doubts
	if len(known.by) == 0 {
		return nil
	}
	h.asks.doubts = &doubts{}
	s.doubts.Store(h.receiver, known)
	return known
}
