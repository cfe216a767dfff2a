package loop

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// apart is an executor with its own way to the world, which may be cut.
type apart struct {
	*script
	away  atomic.Bool
	began atomic.Int64 // steps that it executed
	cutIn string       // the step in which it is cut, the first time
	once  atomic.Bool
}

type silentError struct{ error }

func (silentError) Code() string { return codeSilent }

func (a *apart) Healthy() error {
	if a.away.Load() {
		return errors.Join(errors.New("watch nodes"), silentError{errors.New(mute)})
	}
	return nil
}

func (a *apart) Probe(ctx context.Context, t *executor.Task) executor.Finding {
	if a.away.Load() {
		pause(ctx, 8*time.Second)
		return executor.Unknown(codeSilent, mute)
	}
	return a.script.Probe(ctx, t)
}

// Execute waits for the cut to be mended as executors do that watch: it shows the
// silence, and stops at a boundary.
func (a *apart) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	a.began.Add(1)
	if a.cutIn == t.Step.Name && a.once.CompareAndSwap(false, true) {
		a.away.Store(true)
	}
	for a.away.Load() {
		t.Blocked([]protocol.Blocker{{Code: codeSilent, Resource: "cluster", Rule: "api_server", Detail: mute}})
		if why := executor.Wait(ctx, t, time.Second); why != "" {
			return executor.Waiting(why, mute)
		}
	}
	t.Blocked(nil)
	return a.script.Execute(ctx, t)
}

// beside starts a second agent with an executor of its own. It stops with the test.
func (b *bench) beside(x executor.Executor) (stop func()) {
	cfg := b.cfg
	cfg.Name, cfg.StateDir, cfg.Executor = "second", "", x
	a, err := New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	}
}

// TestCutOffTakesNothingNew: while an agent knows that its API server does not answer
// it leaves new work to another agent, which takes it at once. What no other takes it
// takes all the same, and once its API server answers it is as quick as ever.
func TestCutOffTakesNothingNew(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		x, y := &apart{script: b.exec}, &apart{script: b.exec}
		x.away.Store(true)
		b.cfg.Executor = x
		b.start()
		stop := b.beside(y)
		time.Sleep(3 * time.Second)
		for i := range 12 {
			op := b.plane.submit(fmt.Sprint("new-", i), time.Hour, drainPlan()...)
			if s := b.plane.ended(t, op, 3*time.Second); s.Phase != operation.Succeeded || s.Generation != 1 {
				t.Fatalf("%d ended %s, generation %d", i, s.Phase, s.Generation)
			}
			time.Sleep(1700 * time.Millisecond) // no multiple of what the agents wait for
		}
		if n := x.began.Load(); n > 0 {
			t.Errorf("the agent that is cut off began %d steps", n)
		}
		stop()
		op := b.plane.submit("left", time.Hour, drainPlan()...)
		b.plane.wait(t, offeredFor+2*cutOffPoll, "silence is told by the agent that is left", func() bool {
			x := standing(b.plane.ops[op].State)
			return x != nil && x.Code == codeSilent
		})
		x.away.Store(false)
		if s := b.plane.ended(t, op, 5*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
		op = b.plane.submit("after", time.Hour, drainPlan()...)
		if s := b.plane.ended(t, op, 3*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
	})
}

// TestCutOffComesBack: work that nobody took is taken within a moment once what an
// agent works on answers again.
func TestCutOffComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		x := &apart{script: b.exec}
		x.away.Store(true)
		b.cfg.Executor = x
		b.start()
		time.Sleep(3 * time.Second)
		op := b.plane.submit("new", time.Hour, drainPlan()...)
		time.Sleep(3 * time.Second)
		if s := b.plane.state(op); s.Generation != 0 {
			t.Errorf("generation %d", s.Generation)
		}
		x.away.Store(false)
		if s := b.plane.ended(t, op, reachEvery+offeredAgain+2*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
	})
}

// TestCutOffIsTold: the plane hears of it with each heartbeat, and has another agent
// report the inventory.
func TestCutOffIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		x := &apart{script: b.exec}
		b.cfg.Executor = x
		b.start()
		for _, away := range []bool{false, true, false} {
			x.away.Store(away)
			time.Sleep(reachEvery + 2*heartbeatEvery)
			b.plane.mu.Lock()
			if last := b.plane.beats[len(b.plane.beats)-1]; last.CutOff != away {
				t.Errorf("away %t, told %t", away, last.CutOff)
			}
			b.plane.mu.Unlock()
		}
	})
}

// TestCutOffGivesBack: an agent that is cut off in the middle of a step gives the lease
// back after a while, to one that is not. A lone agent takes the operation up again, and
// is not much later for it.
func TestCutOffGivesBack(t *testing.T) {
	for _, tc := range []struct {
		step  string
		plan  []operation.PlanStep
		alone bool
		reads bool // the step is a read that runs into its own limit
		keeps bool // the step must not be cut short
	}{
		{step: "evict", plan: drainPlan()},
		{step: "preflight", plan: drainPlan()},
		{step: "preflight", plan: drainPlan(), reads: true},
		{step: "evict", plan: drainPlan(), alone: true},
		{step: "preflight", plan: drainPlan(), alone: true},
		{step: "preflight", plan: drainPlan(), alone: true, reads: true},
		{step: "reset", plan: []operation.PlanStep{step("preflight"), step("reset", effect, firm)}, keeps: true},
		{step: "once", plan: []operation.PlanStep{step("preflight"), step("once", effect, func(s *operation.PlanStep) { s.ReplaySafe = false })}, keeps: true},
	} {
		t.Run(fmt.Sprintf("%s, alone %v, reads %v", tc.step, tc.alone, tc.reads), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				x, y := &apart{script: b.exec}, &apart{script: b.exec}
				x.cutIn = tc.step
				b.cfg.Executor = x
				if tc.reads {
					b.exec.execute[tc.step] = func(ctx context.Context, task *executor.Task) executor.Outcome {
						if x.away.Load() && task.Assignment.Generation == 1 {
							return unheard(ctx)
						}
						return executor.Done("read")
					}
					b.cfg.Executor = unwatching{x}
				}
				b.start()
				op := b.plane.submit("given", time.Hour, tc.plan...)
				b.plane.wait(t, 20*time.Second, "silence is told", func() bool { return standing(b.plane.ops[op].State) != nil })
				cut := time.Now()
				switch {
				case tc.keeps:
					time.Sleep(5 * time.Minute)
					if s := b.plane.state(op); s.Generation != 1 || s.Lease == nil {
						t.Errorf("generation %d, lease %v", s.Generation, s.Lease)
					}
					x.away.Store(false)
				case tc.alone:
					told := *standing(b.plane.state(op)).Since
					b.plane.wait(t, 2*time.Minute, "given back first", func() bool { return b.plane.ops[op].State.Lease == nil })
					if s := b.plane.state(op); s.Generation != 1 || standing(s) == nil || !standing(s).Since.Equal(told) {
						t.Errorf("generation %d, told since %s, blocker %+v", s.Generation, told, standing(s))
					}
					time.Sleep(9 * time.Minute)
					s := b.plane.state(op)
					if s.Generation < 6 || s.Generation > 9 || standing(s) == nil || !standing(s).Since.Equal(told) {
						t.Errorf("generation %d, told since %s, blocker %+v", s.Generation, told, standing(s))
					}
					b.plane.wait(t, 2*time.Minute, "given back", func() bool { return b.plane.ops[op].State.Lease == nil })
					x.away.Store(false)
					cut = time.Now().Add(-holdUnknown)
				default:
					defer b.beside(y)()
				}
				s := b.plane.ended(t, op, holdUnknown+executor.HandBackFor+2*cutOffPoll)
				if took := time.Since(cut); s.Phase != operation.Succeeded || len(b.unknowns(op)) > 0 || !tc.keeps && took > holdUnknown+executor.HandBackFor+cutOffPoll {
					t.Errorf("ended %s after %s, unknown %v", s.Phase, took, b.unknowns(op))
				}
				if !tc.keeps && !tc.alone && (s.Generation != 2 || y.began.Load() == 0 || time.Since(cut) > holdUnknown+incompatibleFor+cutAfter+15*time.Second) {
					t.Errorf("generation %d, after %s", s.Generation, time.Since(cut))
				}
				if n := len(b.world.issued()); n != effects(tc.plan) {
					t.Errorf("effects %v", b.world.issued())
				}
			})
		})
	}
}

// unwatching is an executor that is cut off like apart, whose steps do not wait in
// themselves for the cut to be mended.
type unwatching struct{ *apart }

func (a unwatching) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	a.began.Add(1)
	if a.cutIn == t.Step.Name && a.once.CompareAndSwap(false, true) {
		a.away.Store(true)
	}
	return a.script.Execute(ctx, t)
}

// effects counts the steps with one that a run without trouble carries out.
func effects(plan []operation.PlanStep) (n int) {
	for _, s := range plan {
		if s.Effect && !s.Cleanup {
			n++
		}
	}
	return n
}

// TestCutOffKeepsTheDeadline: near the deadline the lease is kept, for the cause to say
// what it waited for.
func TestCutOffKeepsTheDeadline(t *testing.T) {
	for _, deadline := range []time.Duration{50 * time.Second, 90 * time.Second, 110 * time.Second, 130 * time.Second, 160 * time.Second} {
		t.Run(deadline.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				x := &apart{script: b.exec, cutIn: "evict"}
				b.cfg.Executor = x
				b.start()
				op := b.plane.submit("late", deadline, drainPlan()...)
				s := b.plane.ended(t, op, deadline+3*time.Second)
				if last := s.Assignments[len(s.Assignments)-1]; s.Phase != operation.TimedOut || last.Ended != "reported" || s.Result.Cause.ErrorCode != codeDeadline {
					t.Errorf("ended %s, %+v, the last lease %+v", s.Phase, s.Result.Cause, last)
				}
			})
		})
	}
}
