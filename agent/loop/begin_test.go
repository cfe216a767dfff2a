package loop

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func resetPlan() []operation.PlanStep {
	return []operation.PlanStep{step("preflight"), step("reset", effect, firm, once), step("verify")}
}

func once(s *operation.PlanStep) { s.ReplaySafe = false }

// TestCancelledIsNotBegun: a cancel that was accepted before the plane had it that a step
// begins is heeded before the step begins, also where nothing interrupts the step then.
func TestCancelledIsNotBegun(t *testing.T) {
	for name, plane := range map[string]func(p *plane){
		"as it answers": func(*plane) {},
		"the answer is lost": func(p *plane) {
			p.spoil(rule{path: "/v1/agent/reports", times: 1, applied: true})
		},
		"by a plane that takes the begin": func(p *plane) { p.locked(func() { p.lenient = true }) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				ops := make(chan string, 1)
				b.exec.execute["preflight"] = func(context.Context, *executor.Task) executor.Outcome {
					b.plane.cancel(t, <-ops) // accepted, and nobody has told the agent
					plane(b.plane)
					return executor.Done("")
				}
				b.start()
				op := b.plane.submit("early", time.Hour, resetPlan()...)
				ops <- op
				s := b.plane.ended(t, op, time.Minute)
				if got := b.world.issued(); s.Phase != operation.Cancelled || len(got) > 0 {
					t.Fatalf("ended %s, with the effects %v", s.Phase, got)
				}
				want := []string{"preflight:succeeded", "reset:skipped", "verify:skipped"}
				if got := b.plane.phases(op); !slices.Equal(got, want) || s.Generation != 1 {
					t.Errorf("steps %v under generation %d, want %v", got, s.Generation, want)
				}
				if at := s.FinishedAt.Sub(s.Cancel.RequestedAt); at > 5*time.Second {
					t.Errorf("it ended %s after the cancel", at)
				}
			})
		})
	}
}

// TestCancelledBetweenAttempts: between two attempts nothing is in flight, whatever the
// step. A cancel that is accepted there ends it, and one that came later does not.
func TestCancelledBetweenAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		tries := 0
		b.exec.execute["reset"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			tries++
			return executor.Outcome{Class: operation.OutcomeTransient, ErrorCode: "refused", After: time.Minute}
		}
		b.start()
		op := b.plane.submit("between", time.Hour, resetPlan()...)
		b.plane.wait(t, 10*time.Second, "the end of the first attempt", func() bool {
			st := b.plane.ops[op].State.Steps[1]
			return st.Phase == operation.StepPending && len(st.Attempts) == 1
		})
		b.plane.cancel(t, op)
		b.plane.ring(op, protocol.KindAttention)
		s := b.plane.ended(t, op, time.Minute)
		if at := s.FinishedAt.Sub(s.Cancel.RequestedAt); s.Phase != operation.Cancelled || tries != 1 || at > 5*time.Second {
			t.Errorf("ended %s after %d attempts, %s after the cancel", s.Phase, tries, at)
		}
	})
}

// TestCleanupBeginsAfterACancel: the cancel is what calls for it.
func TestCleanupBeginsAfterACancel(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["evict"] = func(_ context.Context, task *executor.Task) executor.Outcome {
			<-task.Cancelled
			return executor.Waiting("cancelled", "at a boundary")
		}
		b.start()
		plan := []operation.PlanStep{step("evict", effect), step("restore", cleanup, firm)}
		op := b.plane.submit("restored", time.Hour, plan...)
		b.plane.wait(t, 10*time.Second, "the eviction", func() bool { return b.plane.ops[op].State.Steps[0].Phase == operation.StepRunning })
		b.plane.cancel(t, op)
		b.plane.ring(op, protocol.KindAttention)
		s := b.plane.ended(t, op, time.Minute)
		if s.Phase != operation.Cancelled || s.Result.Cleanup.State != operation.CleanupDone || b.world.count("restore/1") != 1 {
			t.Errorf("ended %s, cleanup %+v, effects %v", s.Phase, s.Result.Cleanup, b.world.issued())
		}
	})
}
