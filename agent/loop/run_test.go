package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestHappyPath(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.ending = executor.Ending{Message: "drained", Verified: []string{"no pods"}, Details: []byte(`{"token":"opt_abcdefgh","pods":3}`)}
		b.start()
		op := b.plane.submit("happy", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 10*time.Second)
		if s.Phase != operation.Succeeded || s.Generation != 1 {
			t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
		}
		if diff := cmp.Diff([]string{"no pods"}, s.Result.Verified); diff != "" {
			t.Error(diff)
		}
		if got := string(s.Result.Details); got != `{"pods":3,"token":"[redacted]"}` {
			t.Errorf("details %s", got)
		}
		if diff := cmp.Diff([]string{"cordon/1", "evict/1"}, b.world.issued()); diff != "" {
			t.Error(diff)
		}
		// One report a boundary: preflight ends and cordon starts in one, cordon
		// ends and evict starts in one, the rest and the end in one.
		b.plane.mu.Lock()
		var got []string
		for _, r := range b.plane.heard {
			var steps []string
			for _, s := range r.Steps {
				for _, x := range b.plane.ops[op].Spec.Steps {
					if x.ID == s.StepID {
						steps = append(steps, x.Name+":"+string(s.Phase))
					}
				}
			}
			if r.Final != nil {
				steps = append(steps, "="+r.Final.Outcome)
			}
			got = append(got, fmt.Sprintf("%d %s", r.N, strings.Join(steps, " ")))
			for _, c := range r.Commands {
				if strings.Contains(c.Output, "hunter2") {
					t.Errorf("a secret left: %s", c.Output)
				}
			}
		}
		b.plane.mu.Unlock()
		want := []string{
			"1 preflight:succeeded cordon:running",
			"2 cordon:succeeded evict:running",
			"3 evict:succeeded confirm:running confirm:succeeded =succeeded",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		b.plane.wait(t, time.Second, "the doorbell deleted", func() bool { return b.plane.queue.left() == 0 })
	})
}

func TestLostAnswers(t *testing.T) {
	for _, applied := range []bool{true, false} {
		t.Run(fmt.Sprint("applied=", applied), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				for _, path := range []string{"heartbeat", "claims", "reports", "renewals"} {
					b.plane.spoil(rule{path: "/v1/agent/" + path, times: 2, applied: applied})
				}
				b.start()
				op := b.plane.submit("lost", time.Hour, drainPlan()...)
				s := b.plane.ended(t, op, time.Minute)
				if s.Phase != operation.Succeeded || s.Generation != 1 {
					t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
				}
				if diff := cmp.Diff([]string{"cordon/1", "evict/1"}, b.world.issued()); diff != "" {
					t.Error(diff)
				}
				b.plane.mu.Lock()
				defer b.plane.mu.Unlock()
				var ns []int64
				for _, r := range b.plane.heard {
					ns = append(ns, r.N)
				}
				want := []int64{1, 2, 3}
				if applied {
					want = []int64{1, 1, 1, 2, 3}
				}
				if diff := cmp.Diff(want, ns); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestTransientWithinBudget(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fails int
		want  operation.Phase
	}{{"recovers", 2, operation.Succeeded}, {"gives up", 3, operation.Failed}} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				tries := 0
				b.exec.execute["cordon"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					tries++
					if task.Attempt != tries {
						b.exec.broken(fmt.Sprintf("attempt %d at try %d", task.Attempt, tries))
					}
					if tries <= tc.fails {
						_, end := task.Begin("patch node", "n1")
						end("throttled", "slow down")
						return executor.Outcome{Class: operation.OutcomeTransient, ErrorCode: "throttled", Detail: "slow down"}
					}
					return b.exec.effect(ctx, task)
				}
				b.start()
				op := b.plane.submit("transient", time.Hour, drainPlan()...)
				s := b.plane.ended(t, op, time.Minute)
				if s.Phase != tc.want {
					t.Fatalf("ended %s: %+v", s.Phase, s.Result)
				}
				if got := len(s.Steps[1].Attempts); got != 3 {
					t.Errorf("%d attempts", got)
				}
				if tc.want == operation.Failed {
					c := s.Result.Cause
					if c.ErrorCode != "throttled" || c.StepID == "" || c.CommandID == "" || !s.Result.Retryable {
						t.Errorf("cause %+v retryable %v", c, s.Result.Retryable)
					}
					if s.Result.Cleanup.State != operation.CleanupDone || b.world.count("restore/1") != 1 {
						t.Errorf("cleanup %+v", s.Result.Cleanup)
					}
				}
			})
		})
	}
}

func TestWaitingIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		n := 0
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if n++; n < 20 {
				return executor.Outcome{Class: operation.OutcomeWaiting, After: 2 * time.Second, Detail: "pods left"}
			}
			return b.exec.effect(ctx, task)
		}
		b.start()
		op := b.plane.submit("waiting", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 2*time.Minute)
		if s.Phase != operation.Succeeded || len(s.Steps[2].Attempts) != 1 || s.Generation != 1 {
			t.Fatalf("ended %s, %d attempts", s.Phase, len(s.Steps[2].Attempts))
		}
	})
}

func TestAmbiguousIsProbed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["cordon"] = func(_ context.Context, task *executor.Task) executor.Outcome {
			b.world.issue(task.Assignment.Operation, "cordon", task.Assignment.Generation)
			return executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: "timeout", Detail: "no answer"}
		}
		b.exec.probe["cordon"] = func(*executor.Task) executor.Finding { return executor.Finding{Phase: operation.StepSucceeded} }
		b.start()
		op := b.plane.submit("ambiguous", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 2*time.Minute)
		if s.Phase != operation.Succeeded || s.Generation != 2 {
			t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
		}
		if diff := cmp.Diff([]string{"cordon/1", "evict/2"}, b.world.issued()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestUnknownStaysReconciling(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["cordon"] = func(context.Context, *executor.Task) executor.Outcome {
			panic("in the middle of it")
		}
		b.exec.probe["cordon"] = func(*executor.Task) executor.Finding { return executor.Finding{Phase: operation.StepUnknown} }
		b.start()
		op := b.plane.submit("unknown", time.Hour, drainPlan()...)
		b.plane.wait(t, 2*time.Minute, "a third generation, reconciling", func() bool {
			s := b.plane.ops[op].State
			return s.Phase == operation.Reconciling && s.Generation >= 3 && s.Lease == nil
		})
		if len(b.world.issued()) > 0 {
			t.Errorf("effects %v", b.world.issued())
		}
	})
}

func TestDeadlineStops(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			task.Progress(3, 8, "pods", "web-0 is held by budget web")
			<-ctx.Done()
			return executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: "cut", Detail: "the call was cut"}
		}
		b.start()
		op := b.plane.submit("deadline", 40*time.Second, drainPlan()...)
		s := b.plane.ended(t, op, time.Minute)
		if s.Phase != operation.TimedOut || s.FinishedAt.Sub(s.Deadline) > time.Second {
			t.Fatalf("ended %s %s after the deadline", s.Phase, s.FinishedAt.Sub(s.Deadline))
		}
		c := s.Result.Cause
		if c.ErrorCode != "deadline_exceeded" || !strings.Contains(c.Detail, "web-0") || c.StepID != id.Derive(id.Step, "deadline", "evict") {
			t.Errorf("cause %+v", c)
		}
		if len(s.Result.Residual) != 2 || s.Result.Residual[0].Step != "evict" || s.Result.Residual[1].Step != "cordon" || s.Result.Cleanup.State != operation.CleanupAbandoned {
			t.Errorf("residual %+v cleanup %+v", s.Result.Residual, s.Result.Cleanup)
		}
	})
}

// The cause names what held the operation up, also when the only word on it is
// a probe's after a crash. What an executor leaves behind is told, and once.
func TestDeadlineAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		evict := id.Derive(id.Step, "crash", "evict")
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			<-ctx.Done()
			return executor.Outcome{Class: operation.OutcomeWaiting, ActionCode: operation.ActRestoreDependency, ActionText: "add replicas"}
		}
		b.exec.probe["evict"] = func(*executor.Task) executor.Finding {
			return executor.Finding{Phase: operation.StepPending, Detail: "waiting for pod web-0: PDB web"}
		}
		b.exec.probe["confirm"] = func(*executor.Task) executor.Finding {
			return executor.Finding{Phase: operation.StepPending, Detail: "it is read again"}
		}
		b.start()
		op := b.plane.submit("crash", 2*time.Minute, drainPlan()...)
		b.plane.wait(t, time.Minute, "evict running", func() bool { return b.plane.ops[op].State.Steps[2].Phase == operation.StepRunning })
		resource := b.plane.ops[op].Spec.Resources[0]
		b.exec.ending.Residual = []operation.Residual{
			{StepID: evict, Step: "evict", Resource: resource, Detail: "pod web-0"},
			{StepID: evict, Step: "evict", Resource: resource, Detail: "pod web-0"},
		}
		_ = b.halt()
		b.start()
		s := b.plane.ended(t, op, 3*time.Minute)
		if s.Phase != operation.TimedOut || s.Generation < 2 {
			t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
		}
		if c := s.Result.Cause; !strings.Contains(c.Detail, "pod web-0: PDB web") || s.Result.NextAction.Text != "add replicas" {
			t.Errorf("cause %+v, next %+v", c, s.Result.NextAction)
		}
		if diff := cmp.Diff(b.exec.ending.Residual[:1], s.Result.Residual[:1]); diff != "" {
			t.Error(diff)
		}
		if rest := s.Result.Residual[1:]; len(rest) != 1 || rest[0].Step != "cordon" { // nobody looked at it
			t.Errorf("residual %+v", rest)
		}
	})
}

func TestDeadlineOfAnExecutorThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		release := make(chan struct{})
		var late error
		returned := make(chan struct{})
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			<-release
			_, _, late = task.Fence(context.Background())
			close(returned)
			return executor.Done("")
		}
		b.start()
		op := b.plane.submit("hang", 10*time.Second, drainPlan()...)
		s := b.plane.ended(t, op, time.Minute)
		close(release)
		<-returned
		if s.Phase != operation.TimedOut || s.FinishedAt.Sub(s.Deadline) > time.Second {
			t.Fatalf("ended %s %s after the deadline", s.Phase, s.FinishedAt.Sub(s.Deadline))
		}
		if !errors.Is(late, executor.ErrFenced) {
			t.Errorf("the fence said %v to an executor that was given up on", late)
		}
	})
}

func TestCancel(t *testing.T) {
	for _, tc := range []struct {
		name  string
		plan  []operation.PlanStep
		at    string // the step during which it is asked
		want  operation.Phase
		steps []string
	}{
		{"interruptible", drainPlan(), "evict", operation.Cancelled,
			[]string{"preflight:succeeded", "cordon:succeeded", "evict:failed", "confirm:skipped", "restore:succeeded"}},
		{"before any effect", drainPlan(), "preflight", operation.Cancelled,
			[]string{"preflight:failed", "cordon:skipped", "evict:skipped", "confirm:skipped", "restore:skipped"}},
		{"the last is done first", []operation.PlanStep{step("cordon", effect), step("restore", cleanup)}, "cordon", operation.Succeeded,
			[]string{"cordon:succeeded", "restore:skipped"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				running := make(chan struct{})
				b.exec.execute[tc.at] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					close(running)
					select {
					case <-task.Cancelled:
					case <-time.After(time.Minute):
						b.exec.broken("the step was not told of the cancel")
					}
					if tc.want == operation.Succeeded {
						return b.exec.effect(ctx, task)
					}
					return executor.Outcome{Class: operation.OutcomeWaiting, Detail: "at a boundary"}
				}
				b.start()
				op := b.plane.submit("cancel", time.Hour, tc.plan...)
				<-running
				b.plane.cancel(t, op)
				b.plane.ring(op, protocol.KindAttention)
				s := b.plane.ended(t, op, time.Second) // by the attention, not the next renewal
				if s.Phase != tc.want {
					t.Fatalf("ended %s", s.Phase)
				}
				if diff := cmp.Diff(tc.steps, b.plane.phases(op)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestCancelWaitsForAFirmStep(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		running := make(chan struct{})
		b.exec.execute["wait"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			close(running)
			<-time.After(3 * time.Second)
			return executor.Done("")
		}
		b.exec.execute["reset"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			select {
			case <-task.Cancelled:
				b.exec.broken("a firm step was told of the cancel")
			case <-time.After(5 * time.Second):
			}
			return b.exec.effect(ctx, task)
		}
		b.start()
		// The cancel comes while a step that ignores it runs, so that it is still
		// pending when the firm one would start: it must not.
		op := b.plane.submit("firm", time.Hour, step("wait", effect), step("reset", effect, firm), step("verify"))
		<-running
		b.plane.cancel(t, op)
		b.plane.ring(op, protocol.KindAttention)
		s := b.plane.ended(t, op, time.Minute)
		if s.Phase != operation.Cancelled || len(b.world.issued()) != 0 {
			t.Fatalf("ended %s, effects %v", s.Phase, b.world.issued())
		}
	})
}

func TestFirmStepFinishesFirst(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		running := make(chan struct{})
		b.exec.execute["reset"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			close(running)
			select {
			case <-task.Cancelled:
				b.exec.broken("a firm step was told of the cancel")
			case <-time.After(8 * time.Second):
			}
			return b.exec.effect(ctx, task)
		}
		b.start()
		op := b.plane.submit("firm", time.Hour, step("reset", effect, firm), step("verify"), step("restore", cleanup))
		<-running
		// The plane refuses to cancel a firm step, so the request reaches the agent
		// as it would if it had crossed the report of its start.
		b.agent.runs.cancel(op, 1)
		b.plane.locked(func() {
			b.plane.ops[op].State.Cancel = &operation.CancelRequest{}
			b.plane.ops[op].State.Phase = operation.Cancelling
		})
		s := b.plane.ended(t, op, time.Minute)
		if s.Phase != operation.Cancelled {
			t.Fatalf("ended %s", s.Phase)
		}
		if diff := cmp.Diff([]string{"reset/1", "restore/1"}, b.world.issued()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPermanentFailure(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["note"] = func(context.Context, *executor.Task) executor.Outcome {
			return executor.Outcome{Class: operation.OutcomePermanent, ErrorCode: "optional"}
		}
		b.exec.execute["evict"] = func(context.Context, *executor.Task) executor.Outcome {
			return executor.Outcome{Class: operation.OutcomePermanent, ErrorCode: "unmanaged_pod", Detail: "web-0", ActionCode: operation.ActCorrectInput, ActionText: "use force"}
		}
		b.exec.execute["restore"] = func(context.Context, *executor.Task) executor.Outcome {
			return executor.Outcome{Class: operation.OutcomePermanent, ErrorCode: "gone", Detail: "no such node"}
		}
		b.start()
		plan := append([]operation.PlanStep{step("note", optional)}, drainPlan()...)
		op := b.plane.submit("permanent", time.Hour, plan...)
		s := b.plane.ended(t, op, 10*time.Second)
		if s.Phase != operation.Failed || s.Result.Cause.ErrorCode != "unmanaged_pod" || s.Result.Retryable {
			t.Fatalf("ended %s %+v", s.Phase, s.Result)
		}
		if s.Result.Cleanup.State != operation.CleanupFailed {
			t.Errorf("cleanup %+v", s.Result.Cleanup)
		}
	})
}
