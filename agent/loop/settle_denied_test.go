package loop

import (
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const lacks = "the agent's role lacks the right to get nodes"

// right is a right that probes need, which is missing until it is given.
type right struct {
	mu    sync.Mutex
	given bool
	asked []time.Time
}

// needs lets the probes of a step need a right.
func (b *bench) needs(name string) *right {
	g := &right{}
	b.exec.probe[name] = func(*executor.Task) executor.Finding {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.asked = append(g.asked, time.Now())
		if g.given {
			return executor.ToRun("it is not done")
		}
		return executor.Unknown(codeForbidden, lacks)
	}
	return g
}

// give gives the right, and tells the longest between two probes until now.
func (g *right) give() (longest time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.given = true
	at := append(g.asked, time.Now())
	for i := range at[1:] {
		longest = max(longest, at[i+1].Sub(at[i]))
	}
	return longest
}

// unsettled admits an operation of which an earlier one left the resource unsettled.
func (b *bench) unsettled(deadline time.Duration, steps ...operation.PlanStep) string {
	op := b.plane.add("unsettled", deadline, steps...)
	b.plane.locked(func() { b.plane.ops[op].Spec.Unsettled = []string{"op_earlier"} })
	b.plane.ring(op, protocol.KindOperation)
	return op
}

// TestUnbegunWaitsForARight: what never began on a resource that an earlier operation
// left unsettled is not unknown while a right to read it is missing. It says so, asks
// again at a steady pace, and goes on once it has the right.
func TestUnbegunWaitsForARight(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		begun := time.Now()
		g := b.needs("cordon")
		b.start()
		op := b.unsettled(time.Hour, drainPlan()...)
		b.plane.wait(t, executor.DeniedFor+3*time.Second, "the right is named", func() bool {
			x := standing(b.plane.ops[op].State)
			return x != nil && x.Code == codeForbidden
		})
		if x := standing(b.plane.state(op)); x.Detail != lacks || x.Since == nil || x.Since.Sub(begun) > 2*time.Second {
			t.Errorf("blocker %+v, begun %s", x, begun.UTC())
		}
		time.Sleep(10 * time.Minute) // the bubble's time
		if s := b.plane.state(op); s.Phase != operation.Running || s.Generation != 1 || standing(s) == nil || len(b.world.issued()) > 0 {
			t.Errorf("%s, generation %d, blocker %v, effects %v", s.Phase, s.Generation, standing(s), b.world.issued())
		}
		if longest := g.give(); longest > 15*time.Second {
			t.Errorf("%s between two probes", longest)
		}
		if s := b.plane.ended(t, op, 15*time.Second); s.Phase != operation.Succeeded || standing(s) != nil {
			t.Errorf("ended %s, blocker %v", s.Phase, standing(s))
		}
		if got := b.unknowns(op); len(got) > 0 {
			t.Errorf("unknown: %v", got)
		}
	})
}

// TestUnbegunWithoutARightAtTheDeadline: the right is what a person is sent for, and
// nothing is left behind.
func TestUnbegunWithoutARightAtTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.needs("cordon")
		b.start()
		op := b.unsettled(2*time.Minute, drainPlan()...)
		s := b.plane.ended(t, op, 2*time.Minute+3*time.Second)
		if s.Phase != operation.TimedOut || len(s.Result.Residual) > 0 || s.Result.Cause.Detail != lacks {
			t.Errorf("ended %s, residual %+v, cause %+v", s.Phase, s.Result.Residual, s.Result.Cause)
		}
		if _, act, text := executor.Action(codeForbidden); s.Result.NextAction.Code != act || s.Result.NextAction.Text != anew(text) {
			t.Errorf("next %+v", s.Result.NextAction)
		}
	})
}

// TestFoundIsNotBegun: what a probe finds done of an operation that never began is no
// work of an earlier lease: the next lease waits for what it cannot read as well.
func TestFoundIsNotBegun(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.probe["preflight"] = found
		server := b.mutes("cordon", toRun)
		b.start()
		op := b.unsettled(time.Hour, drainPlan()...)
		b.plane.wait(t, time.Minute, "silence is told", func() bool { return standing(b.plane.ops[op].State) != nil })
		if err := b.halt(); err != nil {
			t.Fatal(err)
		}
		if got := b.plane.phases(op)[0]; got != "preflight:succeeded" {
			t.Fatal(got)
		}
		b.start()
		time.Sleep(45 * time.Second)
		if s := b.plane.state(op); s.Generation < 2 || len(b.world.issued()) > 0 {
			t.Errorf("generation %d, effects %v before anything answered", s.Generation, b.world.issued())
		}
		server.away.Store(false)
		if s := b.plane.ended(t, op, time.Minute); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
	})
}

// TestUnknownBesideAMissingRight: a lease is not held for a right over a step that a
// person may know the outcome of.
func TestUnknownBesideAMissingRight(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.probe["cordon"] = func(*executor.Task) executor.Finding {
			return executor.Unknown("in_progress", "another has it under way")
		}
		b.needs("evict")
		b.start()
		op := b.restored(time.Hour, drainPlan()...)
		b.plane.wait(t, holdUnknown+deniedMost*6/5+5*time.Second, "the lease is given back", func() bool {
			s := b.plane.ops[op].State
			return s.Phase == operation.Reconciling && s.Lease == nil
		})
	})
}
