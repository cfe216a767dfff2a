package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// A drain that is cancelled between its preflight and its cordon has begun nothing, and
// whoever tells of it knows that.
func TestDrainCancelledBeforeItsCordon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		if o := b.run(b.e, "preflight"); o.Class != operation.OutcomeDone {
			t.Fatalf("%+v", o)
		}
		for i := range b.task.Assignment.Steps[1:] {
			b.task.Assignment.Steps[1+i].Phase = operation.StepSkipped
		}
		for who, e := range map[string]*drainer{"the agent": b.e, "another": b.agent()} {
			end, d := b.observe(e)
			if end.Message != "node is schedulable, no pod was evicted: it did not get past its step cordon" {
				t.Errorf("%s tells %q", who, end.Message)
			}
			if d.Planned != nil || d.GPUs == nil || *d.GPUs != 0 || d.GPUHours == nil || *d.GPUHours != 0 {
				t.Errorf("%s tells %s", who, end.Details)
			}
		}
	})
}
