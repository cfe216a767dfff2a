package loop

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// slowEyes is an executor whose observation runs into its own limit.
type slowEyes struct{ *script }

func (e slowEyes) Observe(ctx context.Context, a *protocol.Assignment) executor.Ending {
	pause(ctx, 8*time.Second)
	return e.script.Observe(ctx, a)
}

// TestCancelCutsAReadShort: a cancel ends a step that only reads, and the look at what it
// read, soon, whatever nothing answers; a step that may have done something comes to its
// own end.
func TestCancelCutsAReadShort(t *testing.T) {
	const soon = cutAfter + observeUntouched + time.Second
	reads := func(out executor.Outcome, heeds bool) func(context.Context, *executor.Task) executor.Outcome {
		return func(ctx context.Context, _ *executor.Task) executor.Outcome {
			if !heeds {
				ctx = context.Background()
			}
			pause(ctx, 8*time.Second)
			return out
		}
	}
	unread := executor.Transient(codeSilent, mute)
	for name, tc := range map[string]struct {
		step   string
		does   func(context.Context, *executor.Task) executor.Outcome
		within time.Duration
		phase  operation.Phase
	}{
		"a read in silence":      {"preflight", reads(unread, true), soon, operation.Cancelled},
		"one that waits":         {"preflight", reads(executor.Waiting(codeSilent, mute), true), soon, operation.Cancelled},
		"one that cannot tell":   {"preflight", reads(executor.Ambiguous("no answer"), true), soon, operation.Cancelled},
		"one that heeds nothing": {"preflight", reads(unread, false), soon + executeGrace, operation.Cancelled},
		"one that is decided":    {"preflight", reads(executor.Permanent("node_gone", "no node"), true), soon + 8*time.Second, operation.Failed},
		"a change":               {"cordon", reads(unread, true), 30 * time.Second, operation.Cancelled},
		"what comes after one":   {"confirm", reads(unread, true), 30 * time.Second, operation.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				begun := make(chan struct{}, 10)
				b.exec.execute[tc.step] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					begun <- struct{}{}
					return tc.does(ctx, task)
				}
				b.cfg.Executor = slowEyes{b.exec}
				b.start()
				op := b.plane.submit("cut", time.Hour, drainPlan()...)
				<-begun
				time.Sleep(100 * time.Millisecond)
				b.plane.cancel(t, op)
				b.plane.ring(op, protocol.KindAttention)
				asked := time.Now()
				s := b.plane.ended(t, op, tc.within)
				if s.Phase != tc.phase || len(s.Result.Residual) > 0 || len(b.unknowns(op)) > 0 || standing(s) != nil && tc.step == "preflight" {
					t.Errorf("ended %s, %+v, unknown %v, shows %v", s.Phase, s.Result, b.unknowns(op), standing(s))
				}
				if took := time.Since(asked); tc.step != "preflight" && took < 7*time.Second {
					t.Errorf("ended after %s", took)
				}
				time.Sleep(8 * time.Second) // of whoever heeds nothing
			})
		})
	}
}
