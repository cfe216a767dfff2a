package sweep_test

import (
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/sweep"
)

// TestDeadlineWhileThePlaneWasAway: an agent is blamed for its silence where the plane
// was there to hear it, and the plane for its own absence. How late a sweep may be is
// another thing where it is rung.
func TestDeadlineWhileThePlaneWasAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		late  time.Duration // behind the time at which the sweep is due
		rung  bool
		blame string
	}{
		"all the time":            {time.Second, false, operation.ActRecoverAgent},
		"all the time, and away":  {time.Minute, false, operation.ActEscalate},
		"it is rung":              {time.Minute, true, operation.ActRecoverAgent},
		"it is rung, and is away": {3 * time.Minute, true, operation.ActEscalate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			if c.rung {
				p.sweep.Waker = &sweep.Waker{}
			}
			a := p.agent("a")
			f := drain("n0")
			f["deadline"] = t0.Add(20 * time.Second).Format(time.RFC3339)
			op := p.create(f)
			p.settle()
			a.evicting(op)
			p.pass(8 * time.Second)
			if r := a.renew(op, 1); !r.OK {
				t.Fatalf("renew: %+v", r)
			}
			p.pass(12*time.Second + p.store.Timing.CallDeadline + c.late)
			p.sweepAll()
			r := p.want(op, operation.TimedOut).State.Result
			away := "the plane did not look after it from " + t0.Add(20*time.Second+p.store.Timing.CallDeadline).Format(time.RFC3339)
			if r.NextAction.Code != c.blame || strings.Contains(r.Cause.Detail, away) != (c.blame == operation.ActEscalate) {
				t.Errorf("%+v, cause %+v", r.NextAction, r.Cause)
			}
		})
	}
}

// TestLeaseLostWhileThePlaneWasAway: so it is of a lease that ran out in the meantime.
func TestLeaseLostWhileThePlaneWasAway(t *testing.T) {
	t.Parallel()
	for late, blamed := range map[time.Duration]bool{time.Second: true, time.Minute: false} {
		p := setup(t)
		a := p.agent("a")
		op := p.dispatched("n0")
		a.evicting(op)
		p.pass(p.store.Timing.Lease + p.store.Timing.CallDeadline + late)
		p.sweepAll()
		p.want(op, operation.Reconciling)
		var said string
		entries, err := p.store.Journal(t.Context(), op, 1, 100)
		p.no(err)
		for _, e := range entries {
			if e.Kind == operation.EntryTransition && e.To == operation.Reconciling {
				said = e.Detail
			}
		}
		if strings.Contains(said, "was not heard of") != blamed || said == "" {
			t.Errorf("%s late: %q", late, said)
		}
	}
}
