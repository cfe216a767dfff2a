package sweep_test

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestCancelledIsNotBegun: a reset that was cancelled before its agent told that it begins
// is not let begin, also when the report comes once more. An agent that takes the answer
// for an error leaves it alone as well, and another ends it.
func TestCancelledIsNotBegun(t *testing.T) {
	t.Parallel()
	for name, knows := range map[string]bool{"agent": true, "older agent": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			a := p.agent("a")
			op := p.create(map[string]any{"type": "device.reset", "target": p.gpu("GPU-1", "n0"), "reason": "XID 79"})
			p.settle()
			as := a.granted(op)
			p.cancel(op, 202)
			begin := protocol.Report{Operation: op, Generation: as.Generation, N: 1,
				Steps: append(steps(as, operation.StepSucceeded, "preflight"), steps(as, operation.StepRunning, "reset")...)}
			for range 2 {
				if r := a.report(begin); r.OK || r.ErrorCode != protocol.ResultNotBegun || !r.Cancel {
					t.Fatalf("the reset may begin: %+v", r)
				}
			}
			o := p.want(op, operation.Cancelling)
			if o.State.Steps[0].Phase != operation.StepSucceeded || o.State.Steps[1].Phase != operation.StepPending || len(o.State.Steps[1].Attempts) > 0 {
				t.Errorf("preflight is %s, reset %+v", o.State.Steps[0].Phase, o.State.Steps[1])
			}
			p.cancel(op, 202) // as ever while it is not begun
			n := int64(2)
			if !knows { // its lease runs out
				p.pass(operation.OneMachine.Lease + operation.OneMachine.CallDeadline + time.Second)
				p.sweepAll()
				a, n = p.agent("b"), 1
				if as = a.granted(op); !as.Cancel || !as.Probe || as.Steps[1].Attempts > 0 {
					t.Fatalf("the second lease has cancel %t, probe %t, reset %+v", as.Cancel, as.Probe, as.Steps[1])
				}
			}
			a.told(protocol.Report{Operation: op, Generation: as.Generation, N: n, Settled: as.Probe,
				Steps: steps(as, operation.StepSkipped, "reset"), Final: &protocol.Final{Outcome: protocol.FinalCancelled}})
			if o = p.want(op, operation.Cancelled); len(o.State.Result.Residual) > 0 {
				t.Errorf("left behind %+v", o.State.Result.Residual)
			}
			p.sound()
		})
	}
}

// TestBegunIsNotCancelled: once the plane has it that a reset begins no cancel is taken,
// and the reset may report.
func TestBegunIsNotCancelled(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	op := p.create(map[string]any{"type": "device.reset", "target": p.gpu("GPU-1", "n0"), "reason": "XID 79"})
	p.settle()
	as := a.granted(op)
	a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 1,
		Steps: append(steps(as, operation.StepSucceeded, "preflight"), steps(as, operation.StepRunning, "reset")...)})
	if _, _, err := p.ctl.Cancel(context.Background(), call(""), op, control.CancelInput{}); err == nil {
		t.Fatal("a cancel was accepted of a reset that is under way")
	}
	a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 2,
		Steps: append(steps(as, operation.StepPending, "reset"), steps(as, operation.StepRunning, "reset")...)})
	a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 3, Steps: steps(as, operation.StepSucceeded, "reset")})
	p.cancel(op, 202) // what is left to do is to look
}
