package loop

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// kept is what keeps the probes of a step from telling, until it is over.
type kept struct {
	over  atomic.Bool
	tries atomic.Int64
}

// keeps lets the probes of a step find that until it is over.
func (b *bench) keeps(name string, f executor.Finding) *kept {
	k := &kept{}
	b.exec.probe[name] = func(*executor.Task) executor.Finding {
		k.tries.Add(1)
		if k.over.Load() {
			return executor.ToRun("nothing is under way")
		}
		if f.ErrorCode == codePanic {
			panic("in a probe")
		}
		return f
	}
	return k
}

// TestUnbegunWaitsForAnothers: what an earlier operation has under way on the resource,
// or what cannot be told of it, is no outcome of a step that never began. The step says
// what keeps it, asks again at a steady pace, and goes on by itself. Nobody is asked to
// settle it.
func TestUnbegunWaitsForAnothers(t *testing.T) {
	since := time.Date(1999, 12, 31, 23, 0, 0, 0, time.UTC) // before the bubble begins
	named := executor.Unknown("in_progress", "job a of operation op_earlier has not ended")
	named.Blocker = &protocol.Blocker{Code: "in_progress", Resource: "job/ops/a", Rule: "operation/op_earlier", Since: &since}
	for name, tc := range map[string]struct {
		found    executor.Finding
		code     string
		resource string
		faulty   bool // another agent may have an answer
	}{
		"named":      {named, "in_progress", "job/ops/a", false},
		"not named":  {executor.Unknown("in_progress", "a reset is under way"), "in_progress", "step/reset", false},
		"no answer":  {executor.Unknown("no_answer", "the host has not answered"), "no_answer", "step/reset", false},
		"api error":  {executor.Unknown("api_error", "internal error"), "api_error", "step/reset", false},
		"no code":    {executor.Unknown("", "nobody can tell"), codeUnreadable, "step/reset", false},
		"it panics":  {executor.Unknown(codePanic, ""), codePanic, "step/reset", true},
		"no verdict": {executor.Finding{ErrorCode: "odd"}, "odd", "step/reset", false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				begun := time.Now()
				k := b.keeps("reset", tc.found)
				b.start()
				op := b.unsettled(time.Hour, step("preflight"), step("reset", effect, firm))
				b.plane.wait(t, 3*time.Second, "what keeps it is told", func() bool {
					x := standing(b.plane.ops[op].State)
					return x != nil && x.Code == tc.code
				})
				x := standing(b.plane.state(op))
				if x.Resource != tc.resource || x.Since == nil || x.Since.Sub(begun) > 2*time.Second || tc.found.Blocker != nil && (!x.Since.Equal(since) || x.Rule != "operation/op_earlier") {
					t.Errorf("blocker %+v, begun %s", x, begun.UTC())
				}
				before := k.tries.Load()
				time.Sleep(10 * time.Minute) // the bubble's time
				s := b.plane.state(op)
				if held := s.Phase == operation.Running && s.Generation == 1; held == tc.faulty || s.Phase.Terminal() || s.Probes != 0 || s.Steps[1].Phase != operation.StepPending || standing(s) == nil || len(b.world.issued()) > 0 {
					t.Errorf("%s, generation %d, %d probes, reset %s, blocker %v, effects %v", s.Phase, s.Generation, s.Probes, s.Steps[1].Phase, standing(s), b.world.issued())
				}
				if tc.faulty {
					paced(t, s.Assignments[:len(s.Assignments)-1])
					if x := standing(s); x.Since == nil || x.Since.Sub(begun) > 2*time.Second || len(b.notes(op, tc.code)) > int(s.Generation)+1 {
						t.Errorf("blocker %+v, notes %+v", x, b.notes(op, tc.code))
					}
				}
				if n := k.tries.Load() - before; !tc.faulty && n < 45 || n > 80 {
					t.Errorf("%d probes in 10 minutes", n)
				}
				k.over.Store(true)
				if s = b.plane.ended(t, op, back+5*time.Second); s.Phase != operation.Succeeded || standing(s) != nil || len(b.world.issued()) != 1 {
					t.Errorf("ended %s, blocker %v, effects %v", s.Phase, standing(s), b.world.issued())
				}
				if got := b.unknowns(op); len(got) > 0 {
					t.Errorf("unknown: %v", got)
				}
			})
		})
	}
}

// panicky is an executor whose probes panic.
type panicky struct{ *script }

func (panicky) Probe(context.Context, *executor.Task) executor.Finding { panic("in a probe") }

// TestAFaultyAgentLeavesIt: what an agent cannot tell by its own fault another one can.
func TestAFaultyAgentLeavesIt(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.cfg.Executor = panicky{b.exec}
		b.start()
		op := b.unsettled(time.Hour, step("preflight"), step("reset", effect, firm))
		b.plane.wait(t, 3*time.Second, "the fault is told", func() bool {
			x := standing(b.plane.ops[op].State)
			return x != nil && x.Code == codePanic
		})
		defer b.beside(b.exec)()
		// Of two that are well in all they see, chance says who takes what is given back.
		s := b.plane.ended(t, op, 20*time.Minute)
		if s.Phase != operation.Succeeded || s.Generation < 2 || standing(s) != nil {
			t.Errorf("ended %s, generation %d, blocker %v", s.Phase, s.Generation, standing(s))
		}
		if got := b.notes(op, codePanic); len(got) != int(s.Generation) { // it begins, and is left to others with each lease
			t.Errorf("generation %d, notes %+v", s.Generation, got)
		}
	})
}

// TestKeptAtTheDeadline: what kept it is the cause, and nothing is left behind.
func TestKeptAtTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.keeps("reset", executor.Unknown("in_progress", "job a of operation op_earlier has not ended"))
		b.start()
		op := b.unsettled(2*time.Minute, step("preflight"), step("reset", effect, firm))
		s := b.plane.ended(t, op, 2*time.Minute+3*time.Second)
		if s.Phase != operation.TimedOut || len(s.Result.Residual) > 0 || !strings.Contains(s.Result.Cause.Detail, "job a of operation op_earlier") {
			t.Errorf("ended %s, residual %+v, cause %+v", s.Phase, s.Result.Residual, s.Result.Cause)
		}
		if _, act, text := executor.Action("in_progress"); s.Result.NextAction.Code != act || s.Result.NextAction.Text != anew(text) {
			t.Errorf("next %+v", s.Result.NextAction)
		}
	})
}

// TestAWordOnWhatNeverBegan: an agent of before took what it could not tell of another
// operation's for an outcome of this one's. Whether a person has said since that it never
// took effect, which is true, or not: nothing is issued while the other's is under way.
func TestAWordOnWhatNeverBegan(t *testing.T) {
	for name, resolved := range map[string]bool{"a person's word": true, "nobody's": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				k := b.keeps("reset", executor.Unknown("in_progress", "job a has not ended"))
				op := b.plane.add("word", time.Hour, step("preflight"), step("reset", effect, firm))
				b.plane.locked(func() {
					o := b.plane.ops[op]
					o.Spec.Unsettled = []string{"op_earlier"}
					reset := o.Spec.Steps[1].ID
					changes := []operation.Change{
						operation.Claim{Agent: "another", Boot: "b", Until: time.Now().Add(time.Hour)},
						operation.Report{Agent: "another", Generation: 1, N: 1, Steps: []operation.StepReport{{StepID: reset, Phase: operation.StepUnknown}},
							Final: &operation.Final{Outcome: operation.FinalAmbiguous}},
					}
					if resolved {
						changes = append(changes, operation.Resolve{StepID: reset, Outcome: operation.ResolveNotDone,
							By: operation.Actor{ID: "someone", Kind: "token"}, Evidence: "it was never begun"})
					}
					for _, c := range changes {
						if err := b.plane.apply(o, c); err != nil {
							t.Error(err)
						}
					}
				})
				b.start()
				b.plane.ring(op, protocol.KindOperation)
				time.Sleep(time.Minute)
				if s := b.plane.state(op); s.Steps[1].Phase != operation.StepPending || standing(s) == nil || len(b.world.issued()) > 0 {
					t.Errorf("reset %s, blocker %v, effects %v", s.Steps[1].Phase, standing(s), b.world.issued())
				}
				k.over.Store(true)
				if s := b.plane.ended(t, op, 15*time.Second); s.Phase != operation.Succeeded || len(b.world.issued()) != 1 {
					t.Errorf("ended %s, effects %v", s.Phase, b.world.issued())
				}
			})
		})
	}
}
