package alert

import (
	"cmp"
	"container/heap"
	"strings"
	"time"
)

// timers is a heap of groups by when their next timer comes, then by rule and
// group, so that the order is the same wherever it is drawn up.
type timers []*Group

// Len implements sort.Interface.
func (t timers) Len() int { return len(t) }

// Less implements sort.Interface.
func (t timers) Less(i, j int) bool { return before(t[i], t[j]) }

func before(a, b *Group) bool {
	return cmp.Or(cmp.Compare(a.due, b.due), strings.Compare(a.key.rule, b.key.rule), strings.Compare(a.key.values, b.key.values)) < 0
}

// Swap implements sort.Interface.
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].heap, t[j].heap = i, j
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	g := x.(*Group)
	g.heap = len(*t)
	*t = append(*t, g)
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	old := *t
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	g.heap = -1
	return g
}

// set puts the group where its next timer belongs.
func (t *timers) set(g *Group, due int64) {
	g.due = due
	switch {
	case due == 0 && g.heap >= 0:
		heap.Remove(t, g.heap)
	case due == 0:
	case g.heap >= 0:
		heap.Fix(t, g.heap)
	default:
		heap.Push(t, g)
	}
}

// idleKept is for how long a group of which nothing counts any more may stay where
// nothing else happens in its stream. Each that is forgotten by a pass of its own
// costs one more commit than the event by which it ended.
const idleKept = time.Hour

// schedule puts a group where its next timer belongs.
func (s *Stream) schedule(c *Compiled, g *Group) {
	which, due := g.next(c)
	if g.idle != (which == timerGone) {
		s.unschedule(g)
		g.idle = which == timerGone
	}
	s.heap(g).set(g, due)
}

func (s *Stream) unschedule(g *Group) { s.heap(g).set(g, 0) }

func (s *Stream) heap(g *Group) *timers {
	if g.idle {
		return &s.idle
	}
	return &s.timers
}

// first is the group whose timer comes first, nil when there is none.
func (s *Stream) first() *Group {
	switch {
	case len(s.timers) == 0 && len(s.idle) == 0:
		return nil
	case len(s.timers) == 0, len(s.idle) > 0 && before(s.idle[0], s.timers[0]):
		return s.idle[0]
	}
	return s.timers[0]
}
