package alert

import (
	"slices"
	"time"
)

// effect is what a step does to what is told.
type effect struct {
	kind     string // the type of its event
	state    State
	reason   string
	clock    int64
	happened int64  // 0: a timer's
	begins   bool   // it is a new alert
	silence  string // that it is about
}

// step is one move of a group: by an event, or by a timer.
type step struct {
	g        *Group
	c        *Compiled
	clock    int64
	seq      int64
	happened int64
	in       *input // nil for a timer
	why      string // a condition that ends, ends for this
	effects  []effect
}

func (x *step) tell(kind string, state State, reason string, begins bool) {
	x.effects = append(x.effects, effect{kind: kind, state: state, reason: reason, clock: x.clock, happened: x.happened, begins: begins})
}

// holds tells whether the rule's condition holds.
func (g *Group) holds(c *Compiled) bool {
	return g.Active && (c.Rule.While == nil || len(g.Open) > 0)
}

// settle draws from the condition what is to be told.
func (x *step) settle() {
	g, r := x.g, &x.c.Rule
	holds := g.holds(x.c)
	switch g.Raw {
	case "":
		if !holds {
			return
		}
		g.CauseSeq, g.CauseAt = x.seq, x.happened
		if x.in != nil { // of what did not come, the cause is what it was expected after
			g.Cause = x.in.about()
		}
		if r.For == 0 {
			x.fire()
			return
		}
		g.Raw, g.PendingAt = Pending, x.clock
		if !g.Flapping {
			x.tell(TypePending, Pending, ReasonHolds, true)
		}
	case Pending:
		if holds {
			return
		}
		g.Raw, g.PendingAt = "", 0
		if !g.Flapping {
			x.tell(TypeResolved, Resolved, ReasonWithdrawn, false)
		}
	case Firing:
		switch {
		case holds:
			g.ClearAt = 0
		case g.ClearAt == 0 && r.KeepFiringFor == 0:
			x.over()
		case g.ClearAt == 0:
			g.ClearAt = x.clock + r.KeepFiringFor.ms()
		}
	}
}

// fire: the condition has held for long enough.
func (x *step) fire() {
	g := x.g
	begins := g.Raw == "" && !g.Flapping
	g.Raw, g.PendingAt, g.ClearAt = Firing, 0, 0
	switch {
	case g.Flapping:
		x.changed()
	case x.changed():
		x.tell(TypeFlapping, Firing, ReasonFlapping, begins)
	default:
		x.tell(TypeFiring, Firing, ReasonHolds, begins)
	}
}

// over: the condition has ended for long enough.
func (x *step) over() {
	g := x.g
	g.Raw, g.ClearAt = "", 0
	switch {
	case g.Flapping:
		x.changed()
	case x.changed():
		x.tell(TypeFlapping, Firing, ReasonFlapping, false)
	default:
		x.tell(TypeResolved, Resolved, x.why, false)
	}
}

// changed notes a change between firing and not, and tells whether the alert
// flaps by it.
func (x *step) changed() bool {
	g, fl := x.g, x.c.Rule.Flap
	if fl == nil {
		return false
	}
	g.Changes = slices.DeleteFunc(g.Changes, func(t int64) bool { return t <= x.clock-fl.Window.ms() })
	g.Changes = append(g.Changes, x.clock)
	if n := len(g.Changes); n > fl.Changes {
		g.Changes = g.Changes[n-fl.Changes:]
	}
	g.Flapping = g.Flapping || len(g.Changes) >= fl.Changes
	return g.Flapping
}

// steady: it has not changed for as long as the rule's window of flapping.
func (x *step) steady() {
	g := x.g
	g.Flapping, g.Changes = false, nil
	switch g.Raw {
	case Firing:
		x.tell(TypeFiring, Firing, ReasonSteady, false)
	case Pending:
		x.tell(TypeResolved, Resolved, ReasonSteady, false)
		x.tell(TypePending, Pending, ReasonHolds, true)
	default:
		x.tell(TypeResolved, Resolved, ReasonSteady, false)
	}
}

// timer is what a group waits for.
type timer int

// Timers in the order in which they go when they are due at once.
const (
	timerNone   timer = iota
	timerArmed        // what was expected did not come
	timerQuiet        // nothing matched for long
	timerFor          // the condition held for long enough
	timerClear        // keep_firing_for is over
	timerSteady       // it flaps no more
	timerMuted        // a silence begins, or is over
	timerGone         // nothing of the group counts any more
)

// next is the group's next timer and when it comes.
func (g *Group) next(c *Compiled) (timer, int64) {
	which, at := timerNone, int64(0)
	add := func(t timer, due int64) {
		if which == timerNone || due < at {
			which, at = t, due
		}
	}
	if g.ArmedUntil > 0 {
		add(timerArmed, g.ArmedUntil)
	}
	if g.Active {
		add(timerQuiet, g.Last+g.quiet(c).Milliseconds())
	}
	if g.Raw == Pending {
		add(timerFor, g.PendingAt+c.Rule.For.ms())
	}
	if g.ClearAt > 0 {
		add(timerClear, g.ClearAt)
	}
	if g.Flapping {
		add(timerSteady, g.Changes[len(g.Changes)-1]+c.Rule.Flap.Window.ms())
	}
	if g.MuteUntil > 0 && g.Alert != nil {
		add(timerMuted, g.MuteUntil)
	}
	if which == timerNone {
		add(timerGone, g.gone(c))
	}
	return which, at
}

// otherQuiet is how long without a match ends what is folded at the latest, for what
// would end it is taken to each group alone.
const otherQuiet = 24 * time.Hour

func (g *Group) quiet(c *Compiled) time.Duration {
	if g.Other && c.Rule.ResolveAfter == 0 {
		return min(c.Rule.quiet(), otherQuiet)
	}
	return c.Rule.quiet()
}

// gone is when nothing of a group that waits for nothing counts any more. Without
// a window that is at once, but for the millisecond in which the event that it was
// judged by last may be judged again for other groups' sake.
func (g *Group) gone(c *Compiled) int64 {
	keep := int64(1)
	if w := c.Rule.Window.ms(); w > 0 || g.Other { // that groups are folded is not told each time
		keep = w + Lateness.Milliseconds()
	}
	if len(g.Open) > 0 {
		keep = MaxSpan.Milliseconds()
	}
	at := g.Touched + keep
	if n := len(g.Changes); n > 0 {
		at = max(at, g.Changes[n-1]+c.Rule.Flap.Window.ms())
	}
	return at
}

// fireTimer takes the group's next timer, which is due at at. removed: the group
// is no more.
func (g *Group) fireTimer(c *Compiled, which timer, at int64) (effects []effect, removed bool) {
	x := &step{g: g, c: c, clock: at, seq: g.Seq, why: ReasonQuiet}
	switch which {
	case timerArmed:
		x.seq, x.happened = g.ArmedSeq, 0
		g.Active, g.Last, g.ArmedUntil = true, at, 0
		x.settle()
	case timerQuiet:
		g.clear()
		x.settle()
	case timerFor:
		x.fire()
	case timerClear:
		x.why = ReasonEnded
		x.over()
	case timerSteady:
		x.steady()
	case timerGone:
		return nil, true
	}
	g.Touched = max(g.Touched, at)
	return x.effects, false
}
