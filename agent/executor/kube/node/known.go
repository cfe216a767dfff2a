package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/opsplane/opsplane/shared/protocol"
)

// Blockers tells what a drain of a node, with nothing allowed in its payload,
// would meet as far as the node's pods and the disruption budgets tell, in the
// words of the preflight. It asks nobody: whether a DaemonSet still exists, and
// what admission says to an eviction, only a preview finds out; so it does, where the
// pods' managedFields are not at hand, which of them were put on the node by name.
func Blockers(now func() time.Time) func(n *corev1.Node, pods []*corev1.Pod, budgets []*policyv1.PodDisruptionBudget) []protocol.Blocker {
	return func(n *corev1.Node, pods []*corev1.Pod, budgets []*policyv1.PodDisruptionBudget) []protocol.Blocker {
		var p payload
		p.Order = orderPriority
		s := &survey{pods: pods, verdicts: p.judge(pods, nil)}
		for _, b := range budgets {
			s.budgets = append(s.budgets, newBudget(b))
		}
		return s.blockers(n, now, nil)
	}
}
