package node

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// sign adds to the patch that opens a node whose doing it is.
func (e *nodes) sign(a *protocol.Assignment, set change) {
	b, _ := json.Marshal(executor.Doing(a, e.c.Now())) // plain values always marshal
	text := string(b)
	set.annotations[cluster.AnnotationUncordon] = &text
}

// LiftOf tells which operation opened the node last, as it says itself; nil: none is
// known to have. Whoever else opens it leaves no trace on the node: the API server's
// books name who set a field that is there, and not who took it away, so that only a
// lift that came with this patch is an operation's.
func LiftOf(n *corev1.Node) *protocol.Cordon {
	c, told := readCordon(n.Annotations[cluster.AnnotationUncordon])
	if !told {
		return nil
	}
	if wrote := (setting{manager: annotatedBy(n, cluster.AnnotationUncordon)}); wrote.other() {
		return nil
	}
	return &c
}

// lifted tells whether the node is open by a lift of the assignment's own run.
func lifted(a *protocol.Assignment, n *corev1.Node) bool {
	on, marked := cluster.ReadMark(n.Annotations)
	c := LiftOf(n)
	return !n.Spec.Unschedulable && c != nil && c.Operation == a.Operation && marked && on.SameRun(markOf(a))
}
