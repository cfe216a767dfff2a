package loop

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestCancelOfWhatNeverBegan: a cancel ends at once what changed nothing, whatever
// cannot be read of it: nothing that a probe could say matters any more.
func TestCancelOfWhatNeverBegan(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(b *bench) // what cannot be read
		begin func(b *bench) string
	}{
		"unsettled, in silence": {
			func(b *bench) { b.mutes("cordon", toRun) },
			func(b *bench) string { return b.unsettled(time.Hour, drainPlan()...) },
		},
		"unsettled, without a right": {
			func(b *bench) { b.needs("cordon") },
			func(b *bench) string { return b.unsettled(time.Hour, drainPlan()...) },
		},
		"unsettled, another's is under way": {
			func(b *bench) { b.keeps("cordon", executor.Unknown("in_progress", "job a has not ended")) },
			func(b *bench) string { return b.unsettled(time.Hour, drainPlan()...) },
		},
		"unsettled, no answer": {
			func(b *bench) { b.keeps("cordon", executor.Unknown("no_answer", "the host has not answered")) },
			func(b *bench) string { return b.unsettled(time.Hour, drainPlan()...) },
		},
		"it only read": {
			func(b *bench) {
				b.dies("preflight", func(context.Context, *executor.Task) executor.Outcome { return executor.Done("") })
				b.mutes("preflight", toRun)
			},
			func(b *bench) string { return b.plane.submit("read", time.Hour, drainPlan()...) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				tc.spoil(b)
				b.start()
				op := tc.begin(b)
				b.plane.wait(t, time.Minute, "what it waits for is told", func() bool { return standing(b.plane.ops[op].State) != nil })
				time.Sleep(11 * time.Second) // into whatever it waits for then
				b.plane.cancel(t, op)
				b.plane.ring(op, protocol.KindAttention)
				s := b.plane.ended(t, op, 2*time.Second)
				if s.Phase != operation.Cancelled || len(s.Result.Residual) > 0 || s.Result.Cleanup.State != operation.CleanupNone || len(b.world.issued()) > 0 {
					t.Errorf("ended %s, %+v, effects %v", s.Phase, s.Result, b.world.issued())
				}
				if got := b.unknowns(op); len(got) > 0 {
					t.Errorf("unknown: %v", got)
				}
			})
		})
	}
}

// TestCancelOfWhatMayHaveBegun: a record from a backup may lack that a step was begun,
// so that a cancel waits for an answer.
func TestCancelOfWhatMayHaveBegun(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		server := b.mutes("reset", toRun)
		b.start()
		op := b.restored(time.Hour, step("preflight"), step("reset", effect, firm))
		b.plane.wait(t, time.Minute, "silence is told", func() bool { return standing(b.plane.ops[op].State) != nil })
		b.plane.cancel(t, op)
		b.plane.ring(op, protocol.KindAttention)
		time.Sleep(40 * time.Second)
		if s := b.plane.state(op); s.Phase.Terminal() {
			t.Fatalf("ended %s before anything answered", s.Phase)
		}
		server.away.Store(false)
		if s := b.plane.ended(t, op, 2*time.Minute); s.Phase != operation.Cancelled {
			t.Errorf("ended %s", s.Phase)
		}
	})
}

// TestCancelReadsWhatWasBegun: a cancel cuts no probe short of a step that may have
// taken effect: work that was done first is a success.
func TestCancelReadsWhatWasBegun(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		var asked atomic.Bool
		b.dies("cordon", b.exec.effect)
		b.exec.probe["cordon"] = func(task *executor.Task) executor.Finding {
			asked.Store(true)
			pause(context.Background(), 4*time.Second)
			return executor.Found("it holds")
		}
		b.start()
		op := b.plane.submit("done", time.Hour, step("preflight"), step("cordon", effect))
		b.plane.wait(t, time.Minute, "a probe", func() bool {
			s := b.plane.ops[op].State
			return s.Generation == 2 && s.Lease != nil
		})
		b.plane.cancel(t, op)
		b.plane.ring(op, protocol.KindAttention)
		if s := b.plane.ended(t, op, time.Minute); s.Phase != operation.Succeeded || !asked.Load() {
			t.Errorf("ended %s, asked %v", s.Phase, asked.Load())
		}
	})
}
