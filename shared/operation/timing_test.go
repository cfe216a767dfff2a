package operation

import (
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	t.Parallel()
	tm := OneMachine
	at := func(s int) *time.Time { x := t0.Add(time.Duration(s) * time.Second); return &x }
	base := func(p Phase, mend func(s *State)) State {
		s := State{Phase: p, PhaseSince: t0, Deadline: t0.Add(time.Hour)}
		if mend != nil {
			mend(&s)
		}
		return s
	}
	lease := func(until int) func(*State) { return func(s *State) { s.Lease = &Lease{Until: *at(until)} } }
	for name, c := range map[string]struct {
		s    State
		want int // seconds after t0; -1: never
	}{
		"pending":                    {base(Pending, nil), 10},
		"pending, deadline":          {base(Pending, func(s *State) { s.Deadline = *at(4) }), 4},
		"rung":                       {base(Dispatched, func(s *State) { s.RungAt, s.Rings = at(100), 1 }), 110},
		"rung twice":                 {base(Dispatched, func(s *State) { s.RungAt, s.Rings = at(100), 2 }), 120},
		"rung often":                 {base(Dispatched, func(s *State) { s.RungAt, s.Rings = at(100), 50 }), 400},
		"rung, deadline":             {base(Dispatched, func(s *State) { s.RungAt, s.Rings, s.Deadline = at(100), 50, *at(101) }), 101},
		"running":                    {base(Running, lease(15)), 25},
		"lease up to the deadline":   {base(Running, func(s *State) { lease(3600)(s) }), 3610},
		"cancelling":                 {base(Cancelling, lease(15)), 25},
		"reconciling":                {base(Reconciling, func(s *State) { s.RungAt, s.Rings = at(50), 1 }), 60},
		"reconciling, claimed":       {base(Reconciling, lease(70)), 80},
		"plan":                       {base(Running, func(s *State) { s.PlaneLocal, s.RungAt, s.Rings = true, at(100), 9 }), 110},
		"plan, deadline":             {base(Running, func(s *State) { s.PlaneLocal, s.RungAt, s.Deadline = true, at(100), *at(105) }), 105},
		"plan, told of its deadline": {base(Running, func(s *State) { s.PlaneLocal, s.RungAt, s.Deadline = true, at(105), *at(105) }), 115},
		"succeeded":                  {base(Succeeded, nil), -1},
		"timed out":                  {base(TimedOut, nil), -1},
	} {
		due := tm.Due(&c.s)
		switch {
		case c.want < 0 && !due.IsZero():
			t.Errorf("%s: due at %v", name, due)
		case c.want >= 0 && !due.Equal(*at(c.want)):
			t.Errorf("%s: due at %v, want %v", name, due, *at(c.want))
		}
	}
}

func TestLeaseUntil(t *testing.T) {
	t.Parallel()
	s := State{Deadline: t0.Add(time.Minute)}
	for after, want := range map[time.Duration]time.Duration{0: 15 * time.Second, 45 * time.Second: time.Minute, 50 * time.Second: time.Minute, time.Minute: time.Minute} {
		if got := OneMachine.LeaseUntil(&s, t0.Add(after)); !got.Equal(t0.Add(want)) {
			t.Errorf("taken at %s: until %v, want %s", after, got, want)
		}
	}
}

// TestPublishedBound: whatever phase an operation is in at its deadline, the
// sweep may end it by the published bound.
func TestPublishedBound(t *testing.T) {
	t.Parallel()
	bound := OneMachine.Lease + OneMachine.CallDeadline
	for name, h := range situations(t) {
		if h.s.Phase.Terminal() || h.s.PlaneLocal {
			continue
		}
		if h.s.Lease != nil { // renewed at the last moment
			h.s.Lease.Until = OneMachine.LeaseUntil(&h.s, h.s.Deadline)
		}
		if due := OneMachine.Due(&h.s); due.After(h.s.Deadline.Add(bound)) {
			t.Errorf("%s: due %s past its deadline, the bound is %s", name, due.Sub(h.s.Deadline), bound)
		}
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	ex, sh := func(op string) Holder { return Holder{Operation: op, Mode: Exclusive} }, func(op string) Holder { return Holder{Operation: op, Mode: Shared} }
	for name, c := range map[string]struct {
		have []Holder
		ask  Holder
		by   string // "": granted
	}{
		"free": {nil, ex("a"), ""}, "held": {[]Holder{ex("a")}, ex("b"), "a"}, "shared, held": {[]Holder{ex("a")}, sh("b"), "a"},
		"exclusive, shared": {[]Holder{sh("a")}, ex("b"), "a"}, "shared, shared": {[]Holder{sh("a")}, sh("b"), ""}, "again": {[]Holder{ex("a")}, ex("a"), ""},
	} {
		l := LockState{Holders: c.have}
		got, err := l.Acquire("nod_1", c.ask)
		if c.by == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		locked, ok := err.(*LockedError)
		if !ok || locked.Holder.Operation != c.by || len(got.Holders) != len(c.have) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	l := LockState{Holders: []Holder{sh("a"), sh("b")}}
	l = l.Release("a", true, false)
	if len(l.Holders) != 1 || len(l.Unsettled) != 1 {
		t.Errorf("lock %+v", l)
	}
	l = l.Release("b", false, false)
	if len(l.Holders) != 0 || len(l.Unsettled) != 1 {
		t.Errorf("lock %+v: what a left is forgotten", l)
	}
	for i := range 20 {
		l = l.Release(string(rune('c'+i)), true, false)
	}
	if len(l.Unsettled) != 10 || l.Unsettled[9] != "v" {
		t.Errorf("unsettled %v", l.Unsettled)
	}
	if l = l.Release("z", false, true); l.Unsettled != nil {
		t.Errorf("unsettled %v after a success", l.Unsettled)
	}
}
