package notify

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// A webhook is sent several messages at once, and none waits for the answer to another, but
// for one of its own alert. One that has no answer for long leaves its place to the next, so
// that what a webhook hangs on keeps nothing else back.

// inFlight is a message to a webhook that is not answered yet.
type inFlight struct {
	d     *Delivery
	began time.Time
	taken int // of the flights, when it began
}

// landing is what came of one, which is kept by then.
type landing struct {
	*inFlight
	answer answer
	cut    bool  // it is not known what came of it
	err    error // of keeping it
}

// flights are the messages to a webhook that are not answered yet. They are one goroutine's;
// others write to landings alone, and read took.
type flights struct {
	out      map[string]*inFlight // by id
	landings inbox[landing]
	revision int64 // of the receiver that they go to
	// taken counts the messages that were, and took is when the last was (Unix milliseconds).
	taken int
	took  atomic.Int64
	// answers are those that are not judged yet.
	answers []answer
	// err is why what came of some is not kept.
	err  error
	line line
}

func newFlights() *flights {
	return &flights{out: map[string]*inFlight{}, landings: newInbox[landing](webhookRound)}
}

// quick is how many are out for less than a time.
func (f *flights) quick(than time.Duration) (n int) {
	for _, x := range f.out {
		if time.Since(x.began) < than {
			n++
		}
	}
	return n
}

// suspects is how many are out that failed before.
func (f *flights) suspects() (n int) {
	for _, x := range f.out {
		if !x.d.untried() {
			n++
		}
	}
	return n
}

// apart is how many more may be sent of those that have a pace of their own.
func (f *flights) apart(l *lane, now time.Time) int {
	if isAhead(l.Apart, now) {
		return 0
	}
	n := probeRound
	for _, x := range f.out {
		if x.d.apart() {
			n--
		}
	}
	return max(0, n)
}

// of tells whether one of an alert is out.
func (f *flights) of(alert string) bool {
	for _, x := range f.out {
		if x.d.Alert == alert {
			return true
		}
	}
	return false
}

// free is how many more may be sent: perHost at once, and the fewer, the more have been out
// for long, up to webhookRound in all, so that there is room for what is new; of one that
// fails all count. Where as many failed as the limit, or were refused as may be, it is judged
// first (judge).
func (f *flights) free(limit int, was hold, long time.Duration) int {
	if f.paced() {
		return 0
	}
	quick, each := f.quick(long), webhookRound/perHost
	slow := len(f.out) - quick
	busy := quick
	if was.Fails > 0 {
		busy = len(f.out)
	}
	n := min((webhookRound-slow+each-1)/each-quick, limit-len(f.answers)-busy)
	if was.Refused < refusedMost {
		n = min(n, refusedMost-was.Refused-len(f.out))
	}
	return max(0, n)
}

// paced tells whether one was answered that the webhook has enough.
func (f *flights) paced() bool {
	return slices.ContainsFunc(f.answers, func(a answer) bool { return a.paces() })
}

// stopsWithin is how long what is out may still be answered when its context is cancelled, as when
// the process is told to stop: it would be sent twice.
const stopsWithin = 5 * time.Second

// outlives returns a context that is cancelled so long after one that is; a deadline it does not
// outlive.
func outlives(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	out, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		at, bounded := ctx.Deadline()
		if bounded {
			by = min(by, time.Until(at))
		}
		t := time.NewTimer(by)
		defer t.Stop()
		select {
		case <-t.C:
			end()
		case <-out.Done():
		}
	})
	return out, func() { stop(); end() }
}

// end waits for all that are out. What the end of its context cut off is due still.
func (f *flights) end() {
	f.landings.drain(len(f.out))
	clear(f.out)
}

// idle tells whether no answer is waited for.
func (h *held) idle() bool { return len(h.asks.out) == 0 && len(h.flights.out) == 0 }

// await waits for an answer, but not for long.
func (h *held) await(ctx context.Context) {
	if len(h.flights.out) > 0 {
		h.flights.landings.await(ctx)
		return
	}
	h.asks.replies.await(ctx)
}

// drop ends all that is under way.
func (h *held) drop() {
	h.asks.drop()
	h.flights.end()
}

// begin sends a message, and keeps what comes of it.
func (s *Service) begin(ctx context.Context, f *flights, r *target, d *Delivery) {
	x := &inFlight{d, time.Now(), f.taken}
	f.out[d.ID], f.revision = x, r.Revision
	go func() {
		stops := cmp.Or(s.stops, stopsWithin)
		asked, end := outlives(ctx, stops)
		defer end()
		kept, end := outlives(ctx, stops+keepWithin)
		defer end()
		a := s.webhook(asked, r, d.Event, d.Payload)
		if asked.Err() != nil {
			f.landings.c <- landing{inFlight: x, cut: true}
			return
		}
		a.beside = d.Paced > 0 && f.took.Load() >= d.LastAt.UnixMilli()
		f.landings.c <- landing{inFlight: x, answer: a, err: unlessOther(s.settle(kept, r, d, a), d)}
	}()
}

// land takes over what came of messages. waits: others are out still, of which the receiver
// knows no more (nil: it is gone), or what came of one is not kept; nothing is sent until
// they are answered.
func (s *Service) land(ctx context.Context, h *held, r *target) (waits bool, err error) {
	f, refused := h.flights, []*Delivery(nil)
	other := r == nil || r.Revision != f.revision
	held := !other && !h.lane.heldUntil(r.endpoints()[0], s.now()).IsZero()
	for x, ok := f.landings.next(); ok; x, ok = f.landings.next() {
		delete(f.out, x.d.ID)
		f.err = errors.Join(f.err, x.err)
		if x.cut || other {
			continue
		}
		if x.answer.refuses() && x.d.LastError == "" {
			refused = append(refused, x.d)
		}
		h.note(&x, held, s.now())
	}
	if len(refused) > 0 {
		s.Logger.WarnContext(ctx, "a receiver refuses messages", "receiver", r.Name, "id", r.ID, "messages", len(refused), "first", refused[0].ID)
	}
	if other || f.err != nil {
		if len(f.out) > 0 {
			return true, nil
		}
		err, f.err, f.answers = f.err, nil, nil
		return false, err
	}
	// What is left of the time may be too little for another round, and what it took while it is
	// held is all that is known of it since.
	s.judge(ctx, h, r, len(f.out) == 0 && (held || f.paced() || s.room(ctx, r) == 0))
	return false, nil
}

// note notes an answer. One that failed says nothing of the webhook when that took another
// since it was sent that, or has a pause already; neither does the pace of one that has a pace
// of its own.
func (h *held) note(x *landing, held bool, now time.Time) {
	f := h.flights
	switch {
	case x.answer.taken():
		f.taken++
		f.line.taken(x.d.ID)
		h.tookAt(now)
	case x.answer.paces() && x.d.apart():
		until := now.Add(max(enoughHold, min(x.answer.pause, maxHold)))
		if isAhead(h.lane.Apart, now) { // the longer pause may be that of one message
			until = sooner(until, h.lane.Apart)
		}
		h.lane.Apart, h.news = until, true
		return
	case held && x.answer.pause == 0:
		return
	}
	x.answer.others = f.taken > x.taken
	f.answers = append(f.answers, x.answer)
}

// tookAt notes when a webhook took a message. It asks not all for a pause then, nor all of those
// that have a pace of their own, for longer than of one that has enough.
func (h *held) tookAt(at time.Time) {
	h.flights.took.Store(at.UnixMilli())
	h.lane.Took = at
	if soon := at.Add(enoughHold); h.lane.Apart.After(soon) {
		h.lane.Apart = soon
	}
}

// judge has what was answered decide whether the webhook is given a pause (noteAnswers): at once
// where it has none and is there, else with the last that is to be answered soon.
func (s *Service) judge(ctx context.Context, h *held, r *target, last bool) bool {
	f, to := h.flights, r.endpoints()[0]
	was := h.lane.Holds[to.url]
	there := !was.probed() && slices.ContainsFunc(f.answers, func(a answer) bool { return a.there(r.Kind) || a.others })
	if len(f.answers) == 0 || !last && (!there || f.paced()) {
		return false
	}
	s.noteAnswers(ctx, h, r, to, f.answers)
	f.answers = nil
	is := h.lane.Holds[to.url]
	h.news = h.news || is.Error != was.Error || is.Until != was.Until
	return true
}

// fly sends a webhook what is due, as far as there is room.
func (s *Service) fly(ctx context.Context, h *held, r *target, limit int, now time.Time) (then, error) {
	f, long := h.flights, s.waits()
	n := f.free(limit, h.lane.Holds[r.URL], long)
	due, next, err := s.choose(ctx, h, r, n, now)
	if err != nil {
		return then{}, err
	}
	for _, d := range due {
		if ctx.Err() == nil {
			s.begin(ctx, f, r, d)
		}
	}
	switch {
	case len(due) == 0 && f.quick(long) == 0 && s.judge(ctx, h, r, true):
		return then{}, nil
	case len(f.out) > 0:
		return then{leave: true}, nil
	}
	return then{leave: true, until: next}, s.tidy(ctx, h, now)
}
