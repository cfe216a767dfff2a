package alert

import (
	"time"

	"github.com/opsplane/opsplane/shared/event"
)

// setBack takes an event by which the stream's clock goes back to the event's receipt.
// Timers that had come by then, by the event, come first. From then on nothing lies
// behind the clock: what began while it was ahead, or was last seen then, counts as
// from now. Nothing comes early by it, and what the clock's error held up comes as
// long after it as after its cause. full ends it early.
func (s *Stream) setBack(e *event.Event, judged time.Time, full func() bool) bool {
	to := e.ReceivedAt.UnixMilli()
	if s.Position.Back < e.Sequence {
		reached := s.Position.Clock
		if !judged.IsZero() {
			reached = max(reached, judged.UnixMilli())
		}
		if !s.advance(reached, full) {
			return false
		}
		s.Position.Back, s.Position.Clock = e.Sequence, to
	}
	for _, g := range s.ranked() {
		if full() {
			return false
		}
		c := s.set.Rule(g.Rule)
		if c == nil || c.Digest != g.Digest { // it rests
			if g.setBack(nil, to) {
				s.keeps(g)
			}
			continue
		}
		if g.setBack(c, to) {
			s.changed(c, g)
		}
		s.resilence(c, g, to) // a silence may have begun, or ended, before its time
	}
	for _, f := range s.Position.Failing {
		f.At = min(f.At, to)
	}
	return true
}

// setBack has nothing of the group lie behind the time, and tells whether anything
// did; c is nil where its rule is not known.
func (g *Group) setBack(c *Compiled, to int64) bool {
	moved := false
	back := func(t *int64, to int64) {
		if *t > to {
			*t, moved = to, true
		}
	}
	for _, t := range []*int64{&g.Touched, &g.Newest, &g.Last, &g.PendingAt} {
		back(t, to)
	}
	for i := range g.Samples {
		back(&g.Samples[i].At, to)
	}
	for i := range g.Evidence {
		back(&g.Evidence[i].At, to)
	}
	for i := range g.Changes {
		back(&g.Changes[i], to)
	}
	if g.Alert != nil { // what is over must not be over before it began
		back(&g.Alert.Since, to)
		back(&g.Alert.FiredAt, to)
	}
	if c != nil && c.Rule.Absence != nil {
		back(&g.ArmedUntil, to+c.Rule.Absence.Within.ms())
	}
	if c != nil {
		back(&g.ClearAt, to+c.Rule.KeepFiringFor.ms())
	}
	return moved
}
