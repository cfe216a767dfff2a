package loop

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestCancelledBeforeStaysCancelled: a step that a cancel ended is no failure to the
// lease that goes on with the cleanup.
func TestCancelledBeforeStaysCancelled(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		running := make(chan struct{})
		b.exec.execute["evict"] = func(_ context.Context, task *executor.Task) executor.Outcome {
			close(running)
			<-task.Cancelled
			return executor.Waiting("cancelled", "at a boundary")
		}
		b.dies("restore", b.exec.effect)
		b.start()
		op := b.plane.submit("cancelled", time.Hour, drainPlan()...)
		<-running
		b.plane.cancel(t, op)
		b.plane.ring(op, protocol.KindAttention)
		s := b.plane.ended(t, op, 2*time.Minute)
		if s.Phase != operation.Cancelled || s.Generation != 2 || s.Result.Cleanup.State != operation.CleanupDone || b.world.count("restore/2") != 1 {
			t.Errorf("ended %s, generation %d, effects %v: %+v", s.Phase, s.Generation, b.world.issued(), s.Result)
		}
	})
}
