package loop

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestCutOffLeavesItsCleanup: an agent that is cut off while it cleans up gives the lease
// back as well, whether a cancel calls for the cleanup or a failure. What may have been
// cleaned up is probed before it is done again, and a lone agent takes it up once more.
func TestCutOffLeavesItsCleanup(t *testing.T) {
	for _, tc := range []struct {
		name          string
		fails, landed bool
		reads         bool // the step ends each time that it was not answered, and waits not in itself
		alone         bool
	}{
		{name: "of a cancel"},
		{name: "of a cancel, step by step", reads: true},
		{name: "of a cancel, landed", landed: true},
		{name: "of a cancel, alone", alone: true},
		{name: "of a cancel, step by step, alone", reads: true, alone: true},
		{name: "of a failure", fails: true},
		{name: "of a failure, landed", fails: true, landed: true},
		{name: "of a failure, alone", fails: true, alone: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				begun, done := make(chan struct{}, 1), false
				b.exec.execute["evict"] = func(_ context.Context, task *executor.Task) executor.Outcome {
					if tc.fails {
						return executor.Permanent("pdb_blocked", "a budget")
					}
					begun <- struct{}{}
					<-task.Cancelled
					return executor.Waiting("cancelled", "at a boundary")
				}
				b.exec.execute["restore"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					done = true
					return b.exec.effect(ctx, task)
				}
				b.exec.probe["restore"] = func(*executor.Task) executor.Finding {
					if done {
						return executor.Found("it is restored")
					}
					return executor.ToRun("it is not")
				}
				x, y := &cutInCleanup{apart{script: b.exec, cutIn: "restore"}, tc.landed, tc.reads}, &apart{script: b.exec}
				b.cfg.Executor = x
				b.start()
				op := b.plane.submit("left", time.Hour, drainPlan()...)
				if !tc.fails {
					<-begun
					b.plane.cancel(t, op)
					b.plane.ring(op, protocol.KindAttention)
				}
				b.plane.wait(t, 20*time.Second, "silence is told", func() bool { return standing(b.plane.ops[op].State) != nil })
				cut, within := time.Now(), holdUnknown+executor.HandBackFor+2*cutOffPoll
				if tc.alone {
					time.Sleep(10 * time.Minute)
					if s := b.plane.state(op); s.Generation < 6 || s.Generation > 9 || standing(s) == nil || s.Phase.Terminal() {
						t.Errorf("%s, generation %d, blocker %v", s.Phase, s.Generation, standing(s))
					}
					x.away.Store(false)
					cut, within = time.Now(), back+5*time.Second
				} else {
					defer b.beside(y)()
				}
				s := b.plane.ended(t, op, within)
				want := operation.Cancelled
				if tc.fails {
					want = operation.Failed
				}
				if s.Phase != want || s.Result.Cleanup.State != operation.CleanupDone || len(b.unknowns(op)) > 0 {
					t.Errorf("ended %s after %s, cleanup %+v, unknown %v", s.Phase, time.Since(cut), s.Result.Cleanup, b.unknowns(op))
				}
				if tc.fails && s.Result.Cause.ErrorCode != "pdb_blocked" {
					t.Errorf("cause %+v", s.Result.Cause)
				}
				if !tc.alone && s.Generation != 2 {
					t.Errorf("generation %d", s.Generation)
				}
				for i, a := range s.Assignments[:len(s.Assignments)-1] {
					if a.Ended != "handed_back" {
						t.Errorf("lease %d %s", i+1, a.Ended)
					}
				}
				by := int64(1)
				if !tc.landed {
					by = s.Generation
				}
				if b.world.count(fmt.Sprintf("restore/%d", by)) != 1 || len(b.world.issued()) != 2 { // beside the cordon
					t.Errorf("effects %v", b.world.issued())
				}
			})
		})
	}
}

// cutInCleanup is cut off in a cleanup step, before what it does or after.
type cutInCleanup struct {
	apart
	landed, reads bool
}

func (a *cutInCleanup) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	if !t.Step.Cleanup {
		return a.apart.Execute(ctx, t)
	}
	if a.landed && a.once.CompareAndSwap(false, true) {
		if o := a.script.Execute(ctx, t); o.Class != operation.OutcomeDone {
			return o
		}
		a.away.Store(true)
	}
	if !a.reads {
		return a.apart.Execute(ctx, t)
	}
	if a.once.CompareAndSwap(false, true) {
		a.away.Store(true)
	}
	if a.away.Load() {
		pause(ctx, 8*time.Second)
		return executor.Waiting(codeSilent, mute)
	}
	return a.script.Execute(ctx, t)
}

// TestCutOffFinishesItsCleanup: near the deadline the lease is kept, and an answer within
// the minute finds the cleanup where it was.
func TestCutOffFinishesItsCleanup(t *testing.T) {
	for name, tc := range map[string]struct {
		deadline, mended time.Duration
		phase            operation.Phase
	}{
		"mended":            {time.Hour, holdUnknown - 10*time.Second, operation.Failed},
		"near the deadline": {90 * time.Second, time.Hour, operation.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.exec.execute["evict"] = func(context.Context, *executor.Task) executor.Outcome {
					return executor.Permanent("pdb_blocked", "a budget")
				}
				x := &cutInCleanup{apart: apart{script: b.exec, cutIn: "restore"}}
				b.cfg.Executor = x
				time.AfterFunc(tc.mended, func() { x.away.Store(false) })
				b.start()
				op := b.plane.submit("kept", tc.deadline, drainPlan()...)
				s := b.plane.ended(t, op, tc.deadline+3*time.Second)
				if s.Phase != tc.phase || s.Generation != 1 || s.Assignments[0].Ended != "reported" {
					t.Errorf("ended %s, generation %d, %+v", s.Phase, s.Generation, s.Assignments)
				}
			})
		})
	}
}

// unseen is an executor that cannot look at its target while it is cut off.
type unseen struct{ *cutInCleanup }

func (a unseen) Observe(ctx context.Context, as *protocol.Assignment) executor.Ending {
	if a.away.Load() {
		pause(ctx, 8*time.Second)
		return executor.Ending{}
	}
	return a.cutInCleanup.Observe(ctx, as)
}

// TestCutOffKeepsTheCause: where nothing answers until the deadline the operation has
// failed of what it failed of, in whichever lease that was, and can be retried; what is
// not cleaned up is left behind. What a cancel ended has failed of nothing.
func TestCutOffKeepsTheCause(t *testing.T) {
	for name, tc := range map[string]struct {
		deadline time.Duration
		fails    bool
		phase    operation.Phase
		code     string
		later    bool // a lease after the one that met it ends it
	}{
		"of a failure, in its lease":    {90 * time.Second, true, operation.Failed, "pdb_blocked", false},
		"of a failure, in the next":     {130 * time.Second, true, operation.Failed, "pdb_blocked", true},
		"of a failure, in a later one":  {5 * time.Minute, true, operation.Failed, "pdb_blocked", true},
		"of a cancel, in a later lease": {5 * time.Minute, false, operation.TimedOut, codeDeadline, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				begun := make(chan struct{}, 1)
				b.exec.execute["evict"] = func(_ context.Context, task *executor.Task) executor.Outcome {
					if tc.fails {
						return executor.Permanent("pdb_blocked", "a budget")
					}
					begun <- struct{}{}
					<-task.Cancelled
					return executor.Waiting("cancelled", "at a boundary")
				}
				b.cfg.Executor = unseen{&cutInCleanup{apart: apart{script: b.exec, cutIn: "restore"}}}
				b.start()
				op := b.plane.submit("cause", tc.deadline, drainPlan()...)
				if !tc.fails {
					<-begun
					b.plane.cancel(t, op)
					b.plane.ring(op, protocol.KindAttention)
				}
				s := b.plane.ended(t, op, tc.deadline+2*time.Second)
				x := s.Result
				if s.Phase != tc.phase || x.Cause.ErrorCode != tc.code || x.Retryable != tc.fails || x.Cleanup.State != operation.CleanupAbandoned {
					t.Errorf("ended %s, retryable %v, cause %+v, cleanup %+v", s.Phase, x.Retryable, x.Cause, x.Cleanup)
				}
				if _, act, text := executor.Action(tc.code); tc.fails && (x.NextAction.Code != act || x.NextAction.Text != text || x.Cause.StepID != b.plane.ops[op].Spec.Steps[2].ID) {
					t.Errorf("next %+v, cause %+v", x.NextAction, x.Cause)
				}
				if !slices.ContainsFunc(x.Residual, func(r operation.Residual) bool { return r.Step == "cordon" }) {
					t.Errorf("residual %+v", x.Residual)
				}
				if last := s.Assignments[len(s.Assignments)-1]; last.Ended != "reported" || s.Generation > 1 != tc.later {
					t.Errorf("generation %d, the last lease %+v", s.Generation, last)
				}
			})
		})
	}
}

// TestFailedCleanupOutlastsTheDeadline: a cleanup that failed under an earlier lease has
// failed, whatever the deadline left no time for; and is tried once more where there is
// time.
func TestFailedCleanupOutlastsTheDeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		left, probes time.Duration
		want         operation.Cleanup
	}{
		"no time is left": {8 * time.Second, 9 * time.Second, operation.Cleanup{State: operation.CleanupFailed, Detail: "restore: no such right"}},
		"there is time":   {time.Minute, time.Second, operation.Cleanup{State: operation.CleanupDone}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.exec.execute["evict"] = func(context.Context, *executor.Task) executor.Outcome {
					return executor.Permanent("pdb_blocked", "a budget")
				}
				b.exec.execute["restore"] = func(_ context.Context, task *executor.Task) executor.Outcome {
					if task.Assignment.Generation == 1 {
						time.Sleep(time.Until(task.Assignment.Deadline) - tc.left)
						return executor.Permanent(codeForbidden, "no such right")
					}
					return executor.Done("lifted")
				}
				b.exec.probe["confirm"] = func(*executor.Task) executor.Finding {
					time.Sleep(tc.probes)
					return executor.ToRun("not yet")
				}
				b.cfg.Executor = &lostAtItsEnd{b.exec, b}
				b.start()
				op := b.plane.submit("failed", 2*time.Minute, drainPlan()...)
				s := b.plane.ended(t, op, 2*time.Minute+time.Second)
				if s.Phase != operation.Failed || s.Generation != 2 || s.Result.Cause.ErrorCode != "pdb_blocked" || s.Result.Cleanup != tc.want {
					t.Errorf("ended %s, generation %d, cause %+v, cleanup %+v", s.Phase, s.Generation, s.Result.Cause, s.Result.Cleanup)
				}
			})
		})
	}
}
