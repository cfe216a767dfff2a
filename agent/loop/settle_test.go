package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
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

// unknowns lists the steps that the plane was ever told to be unknown, or has made so.
func (b *bench) unknowns(op string) (names []string) {
	b.plane.mu.Lock()
	defer b.plane.mu.Unlock()
	for i, s := range b.plane.ops[op].State.Steps {
		told := slices.ContainsFunc(b.plane.entries[op], func(e operation.Entry) bool {
			return e.Kind == operation.EntryStep && e.StepID == b.plane.ops[op].Spec.Steps[i].ID && strings.Contains(string(e.After), `"unknown"`)
		})
		if told || s.Phase == operation.StepUnknown {
			names = append(names, b.plane.ops[op].Spec.Steps[i].Name)
		}
	}
	return names
}

// TestUnbegunIsNeverUnknown: nothing is issued before the plane knows that a step
// starts, so the outcome of one that never began is not unknown, whatever a probe
// cannot read.
func TestUnbegunIsNeverUnknown(t *testing.T) {
	for _, code := range []string{codeSilent, "forbidden", "api_error", "no_answer", "in_progress", codePanic} {
		t.Run(code, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.dies("preflight", func(context.Context, *executor.Task) executor.Outcome { return executor.Done("") })
				for _, name := range []string{"cordon", "evict"} {
					b.exec.probe[name] = func(*executor.Task) executor.Finding {
						if code == codePanic {
							panic("in a probe")
						}
						return executor.Unknown(code, "it cannot be read")
					}
				}
				b.start()
				op := b.plane.submit("unbegun", time.Hour, drainPlan()...)
				s := b.plane.ended(t, op, time.Minute)
				if s.Phase != operation.Succeeded || s.Generation != 2 {
					t.Errorf("ended %s, generation %d: %+v", s.Phase, s.Generation, s.Result)
				}
				if got := b.unknowns(op); len(got) > 0 {
					t.Errorf("unknown: %v", got)
				}
				if diff := cmp.Diff([]string{"cordon/2", "evict/2"}, b.world.issued()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestBegunBehindAdmission: a step that was begun, and whose probe makes something that
// admission lets nobody make, is asked for until it does, and shown. The lease is given back
// each minute: a person who knows what became of the step can say so then.
func TestBegunBehindAdmission(t *testing.T) {
	for name, resolved := range map[string]bool{"it comes back": false, "a person settles it": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.loses("cordon")
				var mended atomic.Bool
				b.exec.probe["cordon"] = func(*executor.Task) executor.Finding {
					if mended.Load() {
						return executor.Found("it holds")
					}
					f := executor.Unknown(codeAdmission, "the API server cannot call admission webhook guard")
					f.Blocker = &protocol.Blocker{Code: codeAdmission, Resource: "cluster", Rule: "webhook/guard"}
					return f
				}
				b.start()
				op := b.plane.submit("webhook", time.Hour, drainPlan()...)
				b.plane.wait(t, time.Minute, "the webhook is named", func() bool {
					s := b.plane.ops[op].State
					x := standing(s)
					return s.Generation == 2 && x != nil && x.Rule == "webhook/guard"
				})
				since := standing(b.plane.state(op)).Since
				if !resolved {
					time.Sleep(10 * time.Minute) // the bubble's time
				}
				free := func() bool {
					s := b.plane.ops[op].State
					return s.Lease == nil && s.Phase == operation.Reconciling && s.Steps[1].Phase == operation.StepUnknown
				}
				b.plane.wait(t, 2*holdUnknown, "the lease is given back", free)
				s := b.plane.state(op)
				if x := standing(s); x == nil || x.Rule != "webhook/guard" || !x.Since.Equal(*since) {
					t.Errorf("shown %+v", x)
				}
				paced(t, s.Assignments[1:])
				generation := s.Generation + 1
				if resolved {
					b.plane.locked(func() {
						o := b.plane.ops[op]
						if err := b.plane.apply(o, operation.Resolve{StepID: o.Spec.Steps[1].ID, Outcome: operation.ResolveDone,
							By: operation.Actor{ID: "someone", Kind: "token"}, Evidence: "the node is cordoned"}); err != nil {
							t.Error(err)
						}
					})
				} else {
					mended.Store(true)
				}
				s = b.plane.ended(t, op, 2*time.Minute)
				if s.Phase != operation.Succeeded || s.Generation != generation || !slices.Equal(b.world.issued(), []string{"cordon/1", fmt.Sprintf("evict/%d", generation)}) {
					t.Errorf("ended %s, generation %d, issued %v: %+v", s.Phase, s.Generation, b.world.issued(), s.Result)
				}
			})
		})
	}
}

// TestUnbegunIsAskedForOnce: what does not answer for one step that never began is not
// asked for the next ones: each would take as long as a read may, and change nothing.
func TestUnbegunIsAskedForOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.dies("preflight", func(context.Context, *executor.Task) executor.Outcome { return executor.Done("") })
		cordon, evict := b.mutes("cordon", found), b.mutes("evict", found)
		b.start()
		op := b.plane.submit("unbegun", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, time.Minute)
		if s.Phase != operation.Succeeded || cordon.tries.Load() != 1 || evict.tries.Load() != 0 {
			t.Errorf("ended %s, %d and %d tries", s.Phase, cordon.tries.Load(), evict.tries.Load())
		}
	})
}

// TestUnbegunAtTheDeadline: what was never begun is not left behind at the deadline.
func TestUnbegunAtTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.dies("preflight", func(ctx context.Context, _ *executor.Task) executor.Outcome { return unheard(ctx) })
		silent := func(*executor.Task) executor.Finding {
			return executor.Unknown(codeSilent, "the API server does not answer")
		}
		b.exec.probe["cordon"], b.exec.probe["evict"] = silent, silent
		b.start()
		op := b.plane.submit("unbegun", 2*time.Minute, drainPlan()...)
		s := b.plane.ended(t, op, 3*time.Minute)
		if s.Phase != operation.TimedOut || s.Generation != 3 || len(s.Result.Residual) != 0 || len(b.world.issued()) != 0 {
			t.Errorf("ended %s, generation %d, residual %+v, effects %v", s.Phase, s.Generation, s.Result.Residual, b.world.issued())
		}
		if got := b.unknowns(op); len(got) > 0 {
			t.Errorf("unknown: %v", got)
		}
		if c := s.Result.Cause; !strings.Contains(c.Detail, "does not answer") {
			t.Errorf("cause %+v", c)
		}
	})
}

// restored is an operation whose record was taken from a backup: it may lack that a
// step was begun.
func (b *bench) restored(deadline time.Duration, steps ...operation.PlanStep) string {
	op := b.plane.add("restored", deadline, steps...)
	b.plane.locked(func() {
		for _, c := range []operation.Change{
			operation.Claim{Agent: "another", Boot: "b", Until: time.Now().Add(time.Hour)},
			operation.Restored{By: operation.Actor{ID: "someone", Kind: "token"}},
		} {
			if err := b.plane.apply(b.plane.ops[op], c); err != nil {
				b.t.Error(err)
			}
		}
	})
	b.plane.ring(op, protocol.KindOperation)
	return op
}

// TestRestoredUnknownStays: what a probe cannot tell of a step that never began counts
// where the record may lack that it began: nothing is issued then.
func TestRestoredUnknownStays(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		var over atomic.Bool
		b.exec.probe["reset"] = func(*executor.Task) executor.Finding {
			if over.Load() {
				return executor.ToRun("none is on record")
			}
			return executor.Unknown("in_progress", "a reset of the device is under way")
		}
		b.start()
		op := b.restored(time.Hour, step("preflight"), step("reset", effect, firm))
		b.plane.wait(t, time.Minute, "a second lease that could not tell", func() bool {
			s := b.plane.ops[op].State
			return s.Phase == operation.Reconciling && s.Lease == nil && s.Probes >= 1 && s.Steps[1].Phase == operation.StepUnknown
		})
		if len(b.world.issued()) > 0 {
			t.Errorf("effects %v", b.world.issued())
		}
		over.Store(true)
		if s := b.plane.ended(t, op, time.Minute); s.Phase != operation.Succeeded || len(b.world.issued()) != 1 {
			t.Errorf("ended %s, effects %v", s.Phase, b.world.issued())
		}
	})
}
