package sim

import (
	"fmt"

	"github.com/opsplane/opsplane/shared/protocol"
)

// hindrances are what holds each pod that is left, and what becomes of it at the
// deadline.
func (e *Executor) hindrances(p drainPlan, r round) []protocol.Blocker {
	then := "the drain stops at its deadline"
	if p.OnDeadline == "force" {
		then = fmt.Sprintf("it is deleted %d s before the deadline", p.ForceWindowSeconds)
	}
	var list []protocol.Blocker
	for _, pod := range r.left {
		b := protocol.Blocker{Resource: "pod/" + pod.Key()}
		switch rule := r.rules[pod.UID]; {
		case rule != "":
			b.Code, b.Rule, b.Detail = "pdb", r.budgets[pod.UID], rule
			if r.blockCode == "two_pdbs" {
				b.Code = r.blockCode
			}
		case pod.DeletedAt != nil:
			b.Code, b.Detail = e.staying(pod, r.node)
			switch b.Code {
			case "finalizer":
				b.Rule = pod.Finalizer
			case "slow_stop", "stopping":
				b.Code = "terminating"
			}
		default:
			continue
		}
		b.Detail += "; " + then
		list = append(list, b)
	}
	return list
}
