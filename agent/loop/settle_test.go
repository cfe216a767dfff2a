package loop

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// dies lets the plane lose the lease of the first generation in a step, and has the
// generations after it carry the step out with do.
func (b *bench) dies(step string, do func(context.Context, *executor.Task) executor.Outcome) {
	b.exec.execute[step] = func(ctx context.Context, task *executor.Task) executor.Outcome {
		if task.Assignment.Generation > 1 {
			return do(ctx, task)
		}
		b.plane.locked(func() {
			if err := b.plane.apply(b.plane.ops[task.Assignment.Operation], operation.LoseLease{}); err != nil {
				b.t.Error(err)
			}
		})
		<-ctx.Done()
		return executor.Ambiguous("its agent died")
	}
}

// TestFailedProbeIsTheCause: of a step that turns out to have failed under an earlier
// lease, the cause is what its probe read, with the advice of that code, and not how
// the lease ended.
func TestFailedProbeIsTheCause(t *testing.T) {
	for _, tc := range []struct {
		code      string
		retryable bool
		act       string
	}{
		{"node_gone", false, operation.ActCorrectInput},
		{"node_replaced", false, operation.ActCorrectInput},
		{"deployment_gone", false, operation.ActCorrectInput},
		{"superseded", true, operation.ActRetry},
		{"progress_deadline_exceeded", true, operation.ActRestoreDependency},
		{"mig_change_pending", false, operation.ActEscalate},
	} {
		t.Run(tc.code, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.dies("evict", b.exec.effect)
				b.exec.probe["evict"] = func(*executor.Task) executor.Finding { return executor.Lost(tc.code, "as it was read") }
				b.start()
				op := b.plane.submit("failed", time.Hour, drainPlan()...)
				s := b.plane.ended(t, op, 2*time.Minute)
				if s.Phase != operation.Failed || s.Generation != 2 {
					t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
				}
				evict := b.plane.ops[op].Spec.Steps[2].ID
				if c := s.Result.Cause; c.ErrorCode != tc.code || c.Detail != "as it was read" || c.StepID != evict {
					t.Errorf("cause %+v", c)
				}
				_, _, text := executor.Action(tc.code)
				if next := s.Result.NextAction; s.Result.Retryable != tc.retryable || next.Code != tc.act || next.Text != text {
					t.Errorf("retryable %v, next %+v", s.Result.Retryable, next)
				}
				if got := b.exec.observed("evict"); got.ErrorCode != tc.code || got.Detail != "as it was read" {
					t.Errorf("observed with %s: %s", got.ErrorCode, got.Detail)
				}
			})
		})
	}
}

// TestFailedBeforeKeepsItsWords: a step that the plane knows to have failed is the
// cause in the words that it failed with, whatever cut the lease off after that.
func TestFailedBeforeKeepsItsWords(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["evict"] = func(context.Context, *executor.Task) executor.Outcome {
			return executor.Permanent("pdb_blocked", "web allows no eviction")
		}
		b.dies("restore", b.exec.effect)
		b.start()
		op := b.plane.submit("failed", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 2*time.Minute)
		if s.Phase != operation.Failed || s.Generation != 2 || b.world.count("restore/2") != 1 {
			t.Fatalf("ended %s, generation %d, effects %v", s.Phase, s.Generation, b.world.issued())
		}
		if c := s.Result.Cause; c.ErrorCode != "pdb_blocked" || c.Detail != "web allows no eviction" {
			t.Errorf("cause %+v", c)
		}
		_, act, text := executor.Action("pdb_blocked")
		if next := s.Result.NextAction; !s.Result.Retryable || next.Code != act || next.Text != text {
			t.Errorf("retryable %v, next %+v", s.Result.Retryable, next)
		}
	})
}

// TestHandedOverWordsStay: what a step was handed over with is still known when it is
// observed: a probe that finds it half done does not take it away.
func TestHandedOverWordsStay(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if task.Assignment.Generation == 1 {
				return executor.HandBack("own_node", "2 of 3 are gone: serve/a, serve/b")
			}
			return b.exec.effect(ctx, task)
		}
		b.exec.probe["evict"] = func(*executor.Task) executor.Finding { return executor.ToRun("1 pod is left") }
		b.start()
		op := b.plane.submit("handed", time.Hour, drainPlan()...)
		if s := b.plane.ended(t, op, 5*time.Minute); s.Phase != operation.Succeeded || s.Generation != 2 {
			t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
		}
		if got := b.exec.observed("evict"); got.ErrorCode != "own_node" || got.Detail != "2 of 3 are gone: serve/a, serve/b" {
			t.Errorf("observed with %s: %s", got.ErrorCode, got.Detail)
		}
	})
}
