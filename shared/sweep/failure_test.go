package sweep_test

import (
	"testing"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestTheNextHolderIsToldWhatFailed: what an attempt met is with the next lease, though a
// probe in between has found that the step may be tried again.
func TestTheNextHolderIsToldWhatFailed(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	device := p.gpu("GPU-1", "n0")
	op := p.create(map[string]any{"type": "device.reset", "target": device, "reason": "XID 79"})
	p.settle()
	as := a.granted(op)
	lost := steps(as, operation.StepUnknown, "reset")
	lost[0].Outcome, lost[0].ErrorCode, lost[0].Detail = operation.OutcomeAmbiguous, "answer_lost", "failed calling webhook gate"
	a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 1,
		Steps: append(append(steps(as, operation.StepSucceeded, "preflight"), steps(as, operation.StepRunning, "reset")...), lost...),
		Final: &protocol.Final{Outcome: protocol.FinalAmbiguous}})
	p.settle()
	as = a.granted(op)
	a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 1, Settled: true, Steps: steps(as, operation.StepPending, "reset"),
		Final: &protocol.Final{Outcome: protocol.FinalHandBack}})
	p.settle()
	as = a.granted(op)
	if f := as.Steps[1].Failure; f == nil || f.ErrorCode != "answer_lost" || f.Detail != "failed calling webhook gate" || as.Steps[0].Failure != nil {
		t.Errorf("steps %+v, failure %+v", as.Steps, f)
	}
}
