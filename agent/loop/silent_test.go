package loop

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// unheard is what an executor makes of a read that nobody answered for 8 s.
func unheard(ctx context.Context) executor.Outcome {
	pause(ctx, 8*time.Second)
	return executor.Transient(codeSilent, "the API server does not answer: context deadline exceeded")
}

// standing is the first blocker of an operation, nil if it has none.
func standing(s operation.State) *operation.Blocker {
	if s.Progress == nil || len(s.Progress.Blockers) == 0 {
		return nil
	}
	return &s.Progress.Blockers[0]
}

// TestSilenceOfWhatIsRead: a step that only reads outlasts whatever does not answer,
// in one attempt a lease; the operation says so meanwhile, since when, and no longer.
func TestSilenceOfWhatIsRead(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		begun := time.Now()
		back := begun.Add(3 * time.Minute)
		b.exec.execute["preflight"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if time.Now().Before(back) {
				return unheard(ctx)
			}
			return executor.Done("read")
		}
		release := make(chan struct{})
		b.exec.execute["cordon"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			<-release
			return b.exec.effect(ctx, task)
		}
		b.start()
		op := b.plane.submit("silence", 30*time.Minute, drainPlan()...)
		b.plane.wait(t, 11*time.Second, "what does not answer is told", func() bool { return standing(b.plane.ops[op].State) != nil })
		x := standing(b.plane.state(op))
		if x.Code != codeSilent || !strings.Contains(x.Detail, "does not answer") || x.Since == nil || x.Since.Sub(begun) > 2*time.Second {
			t.Errorf("blocker %+v, the operation began %s", x, begun)
		}
		b.plane.wait(t, 5*time.Minute, "the step after", func() bool { return b.plane.ops[op].State.Steps[1].Phase == operation.StepRunning })
		b.plane.wait(t, 5*time.Second, "nothing stands in the way", func() bool { return standing(b.plane.ops[op].State) == nil })
		close(release)
		if s := b.plane.ended(t, op, time.Minute); s.Phase != operation.Succeeded || len(s.Steps[0].Attempts) > int(s.Generation) || s.Generation > 4 {
			t.Errorf("ended %s, generation %d, after %d attempts: %+v", s.Phase, s.Generation, len(s.Steps[0].Attempts), s.Result)
		}
	})
}

// TestSilenceOfWhatIsChanged: a step with an effect keeps to its budget of attempts,
// and tells what does not answer all the same.
func TestSilenceOfWhatIsChanged(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["cordon"] = func(ctx context.Context, task *executor.Task) executor.Outcome { return unheard(ctx) }
		b.start()
		op := b.plane.submit("silence", 30*time.Minute, drainPlan()...)
		b.plane.wait(t, 11*time.Second, "what does not answer is told", func() bool {
			x := standing(b.plane.ops[op].State)
			return x != nil && x.Code == codeSilent
		})
		s := b.plane.ended(t, op, time.Minute)
		if s.Phase != operation.Failed || s.Result.Cause.ErrorCode != codeSilent || len(s.Steps[1].Attempts) != 3 {
			t.Errorf("ended %s after %d attempts: %+v", s.Phase, len(s.Steps[1].Attempts), s.Result)
		}
	})
}

// TestSilenceEndsWithAnAnswer: while a step goes on, an answered command is proof that
// whatever was silent is back.
func TestSilenceEndsWithAnAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		tries, release := 0, make(chan struct{})
		b.exec.execute["cordon"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if tries++; tries == 1 {
				return unheard(ctx)
			}
			out := b.exec.effect(ctx, task)
			<-release
			return out
		}
		b.start()
		op := b.plane.submit("silence", 30*time.Minute, drainPlan()...)
		b.plane.wait(t, 11*time.Second, "what does not answer is told", func() bool { return standing(b.plane.ops[op].State) != nil })
		b.plane.wait(t, 15*time.Second, "nothing stands in the way", func() bool { return standing(b.plane.ops[op].State) == nil })
		close(release)
		if s := b.plane.ended(t, op, time.Minute); s.Phase != operation.Succeeded {
			t.Errorf("ended %s: %+v", s.Phase, s.Result)
		}
	})
}

// TestDeadlineSaysNothingTwice: what an executor last told of its progress and what it
// says when it is stopped are one text where one holds the other.
func TestDeadlineSaysNothingTwice(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		const far = "1 of 2 replicas updated"
		b.exec.execute["preflight"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			task.Progress(1, 2, "replicas", far)
			<-ctx.Done()
			return executor.Waiting("interrupted", "web: the image cannot be pulled; "+far)
		}
		b.start()
		op := b.plane.submit("twice", 10*time.Second, drainPlan()...)
		if s := b.plane.ended(t, op, time.Minute); s.Phase != operation.TimedOut || s.Result.Cause.Detail != "web: the image cannot be pulled; "+far {
			t.Errorf("ended %s: %+v", s.Phase, s.Result.Cause)
		}
	})
}

// TestCleanupThatHadNothingToDo: a cleanup step that left everything as it is did not
// clean up.
func TestCleanupThatHadNothingToDo(t *testing.T) {
	for name, nothing := range map[string]bool{"nothing": true, "something": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.exec.execute["evict"] = func(context.Context, *executor.Task) executor.Outcome {
					return executor.Permanent("pdb_blocked", "a budget")
				}
				b.exec.execute["restore"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					o := executor.Done("left as it is")
					o.Nothing = nothing
					return o
				}
				b.start()
				op := b.plane.submit("cleanup", time.Hour, drainPlan()...)
				want := operation.Cleanup{State: operation.CleanupDone}
				if nothing {
					want = operation.Cleanup{State: operation.CleanupNone, Detail: "restore: left as it is"}
				}
				if s := b.plane.ended(t, op, time.Minute); s.Result.Cleanup != want {
					t.Errorf("cleanup %+v, want %+v", s.Result.Cleanup, want)
				}
			})
		})
	}
}
