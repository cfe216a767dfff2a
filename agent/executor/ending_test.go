package executor

import (
	"testing"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Why nothing was evicted is told as it was: there was nothing, or the operation
// ended before.
func TestNoneEvicted(t *testing.T) {
	t.Parallel()
	const none = "it had no pods to evict"
	drain := func(at string, phase operation.StepPhase) *protocol.Assignment {
		a := &protocol.Assignment{Type: "node.drain"}
		now := operation.StepSucceeded
		for _, name := range []string{"preflight", "cordon", "evict", "wait", "confirm"} {
			s := protocol.Step{PlanStep: operation.PlanStep{Name: name, Required: true}, Phase: now}
			if name == at {
				s.Phase, now = phase, operation.StepPending
			}
			a.Steps = append(a.Steps, s)
		}
		a.Steps = append(a.Steps, protocol.Step{PlanStep: operation.PlanStep{Name: "restore", Required: true, Cleanup: true}, Phase: operation.StepFailed})
		return a
	}
	for _, c := range []struct {
		at    string
		phase operation.StepPhase
		want  string
	}{
		{"", "", none},
		{"preflight", operation.StepFailed, "no pod was evicted: it did not get past its step preflight"},
		{"preflight", operation.StepPending, "no pod was evicted: it did not get past its step preflight"}, // at its deadline
		{"cordon", operation.StepUnknown, "no pod was evicted: it did not get past its step cordon"},
		{"evict", operation.StepFailed, "no pod was evicted: it did not get past its step evict"},
		{"wait", operation.StepFailed, none},
		{"confirm", operation.StepFailed, none}, // uncordoned by somebody else
	} {
		if got := NoneEvicted(drain(c.at, c.phase)); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.at, c.phase, got, c.want)
		}
	}
}
