package executor

import (
	"fmt"
	"strings"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// StepNamed finds a step of the plan; one that is not in it has no id.
func StepNamed(a *protocol.Assignment, name string) protocol.Step {
	for _, s := range a.Steps {
		if s.Name == name {
			return s
		}
	}
	return protocol.Step{PlanStep: operation.PlanStep{Name: name}}
}

// StepUnknown tells whether nobody knows what became of a step: what it was to
// bring about is not claimed as verified then.
func StepUnknown(a *protocol.Assignment, name string) bool {
	return StepNamed(a, name).Phase == operation.StepUnknown
}

// CameThrough tells whether every step that success needs succeeded.
func CameThrough(a *protocol.Assignment) bool {
	for _, s := range a.Steps {
		if s.Required && !s.Cleanup && s.Phase != operation.StepSucceeded {
			return false
		}
	}
	return true
}

// NoneEvicted words why an operation that was to evict pods evicted none: there
// were none, or it did not come that far.
func NoneEvicted(a *protocol.Assignment) string {
	if CameThrough(a) || StepNamed(a, "evict").Phase == operation.StepSucceeded {
		return "it had no pods to evict"
	}
	for _, s := range a.Steps {
		if s.Required && !s.Cleanup && s.Phase != operation.StepSucceeded {
			return "no pod was evicted: it did not get past its step " + s.Name
		}
	}
	return "no pod was evicted"
}

// Leave says that something is left behind of what a step was to do, in the
// plan's own words for the resource. A step that is unknown is listed as that.
func (end *Ending) Leave(a *protocol.Assignment, step, detail string) {
	s := StepNamed(a, step)
	if s.Phase == operation.StepUnknown {
		return
	}
	r := operation.Residual{StepID: s.ID, Step: s.Name, Resource: a.TargetID, Detail: detail}
	if len(s.Resources) > 0 {
		r.Resource = s.Resources[0]
	}
	end.Residual = append(end.Residual, r)
}

// maxNamed bounds how many pods a residual names.
const maxNamed = 10

// LeavePods leaves pods behind, if there are any, and names the first of them.
func (end *Ending) LeavePods(a *protocol.Assignment, step, what string, pods []string) {
	if n := len(pods); n > maxNamed {
		pods = append(pods[:maxNamed:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	if len(pods) > 0 {
		end.Leave(a, step, what+": "+strings.Join(pods, "; "))
	}
}
