package loop

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// lostAtItsEnd loses the first lease once its cleanup is on record, before its end is.
type lostAtItsEnd struct {
	*script
	b *bench
}

func (x *lostAtItsEnd) Observe(ctx context.Context, a *protocol.Assignment) executor.Ending {
	if a.Generation > 1 {
		return x.script.Observe(ctx, a)
	}
	var op *operation.Operation
	x.b.plane.locked(func() { op = x.b.plane.ops[a.Operation] })
	x.b.plane.wait(x.b.t, testCall, "the cleanup is on record", func() bool { return op.State.Steps[4].Phase.Settled() })
	x.b.plane.locked(func() {
		if err := x.b.plane.apply(op, operation.LoseLease{}); err != nil {
			x.b.t.Error(err)
		}
	})
	<-ctx.Done()
	return executor.Ending{}
}

// TestCleanupUnderEarlierLeases: who takes an operation over in its cleanup tells what
// that came to, whichever lease did it: what was found, or what was told before.
func TestCleanupUnderEarlierLeases(t *testing.T) {
	const none = "no cordon of this operation is on the node"
	done, nothing := operation.Cleanup{State: operation.CleanupDone}, operation.Cleanup{State: operation.CleanupNone, Detail: "restore: " + none}
	for name, tc := range map[string]struct {
		found   executor.Finding // by the second lease; the zero value: the first one had ended the step
		outcome executor.Outcome // of the step
		want    operation.Cleanup
	}{
		"found done":              {executor.Found("its cordon is lifted"), executor.Outcome{}, done},
		"found to be nothing":     {executor.FoundNothing(none), executor.Outcome{}, nothing},
		"to run, and then done":   {executor.ToRun("its cordon is there"), executor.Done("lifted"), done},
		"to run, and for nothing": {executor.ToRun("its cordon may come yet"), executor.Nothing(none), nothing},
		"told to be done":         {executor.Finding{}, executor.Done("lifted"), done},
		"told to be nothing":      {executor.Finding{}, executor.Nothing(none), nothing},
	} {
		for _, cancels := range []bool{false, true} {
			how := map[bool]string{false: ", after a failure", true: ", after a cancel"}[cancels]
			t.Run(name+how, func(t *testing.T) {
				bubble(t, func(t *testing.T, b *bench) {
					running := make(chan struct{}, 1)
					b.exec.execute["evict"] = func(_ context.Context, task *executor.Task) executor.Outcome {
						if !cancels {
							return executor.Permanent("pdb_blocked", "a budget")
						}
						running <- struct{}{}
						<-task.Cancelled
						return executor.Waiting("cancelled", "at a boundary")
					}
					restore := func(context.Context, *executor.Task) executor.Outcome { return tc.outcome }
					if tc.found.Phase == "" {
						b.exec.execute["restore"] = restore
						b.cfg.Executor = &lostAtItsEnd{b.exec, b}
					} else {
						b.dies("restore", restore)
						b.exec.probe["restore"] = func(*executor.Task) executor.Finding { return tc.found }
					}
					b.start()
					op := b.plane.submit("cleanup", time.Hour, drainPlan()...)
					if cancels {
						<-running
						b.plane.cancel(t, op)
						b.plane.ring(op, protocol.KindAttention)
					}
					s := b.plane.ended(t, op, 2*time.Minute)
					if s.Generation != 2 || s.Result.Cleanup != tc.want {
						t.Errorf("generation %d, cleanup %+v, want %+v", s.Generation, s.Result.Cleanup, tc.want)
					}
					phase := map[bool]operation.StepPhase{true: operation.StepSkipped, false: operation.StepSucceeded}[tc.want == nothing]
					if got := s.Steps[4]; got.Phase != phase || len(got.Attempts) == 0 || got.Attempts[len(got.Attempts)-1].Outcome == "" {
						t.Errorf("the step is %+v", got)
					}
				})
			})
		}
	}
}
