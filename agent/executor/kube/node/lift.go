package node

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// signature is what a lift leaves on the node: whose doing it was, of which run of the
// operation, and the cordon that was there.
type signature struct {
	protocol.Cordon
	Run int              `json:"run"`
	Was *protocol.Cordon `json:"was,omitempty"`
}

// sign adds to the patch that opens a node whose doing it is, and what was lifted.
func (e *nodes) sign(a *protocol.Assignment, was *protocol.Cordon, set change) {
	b, _ := json.Marshal(signature{*executor.Doing(a, e.c.Now()), a.Run, was}) // plain values always marshal
	text := string(b)
	set.annotations[cluster.AnnotationUncordon] = &text
}

// signed reads the signature; nil: no operation is known to have left one.
func signed(n *corev1.Node) *signature {
	text := n.Annotations[cluster.AnnotationUncordon]
	c, told := readCordon(text)
	if !told {
		return nil
	}
	if wrote := (setting{manager: annotatedBy(n, cluster.AnnotationUncordon)}); wrote.other() {
		return nil
	}
	s := signature{Cordon: c}
	_ = json.Unmarshal([]byte(text), &s) // an agent of before wrote neither run nor cordon
	return &s
}

// LiftOf tells which operation opened the node last, as it says itself; nil: none is
// known to have. Whoever else opens it leaves no trace on the node: the API server's
// books name who set a field that is there, and not who took it away, so that only a
// lift that came with this patch is an operation's.
func LiftOf(n *corev1.Node) *protocol.Cordon {
	if s := signed(n); s != nil {
		return &s.Cordon
	}
	return nil
}

// lifted tells whether the assignment's own run has opened the node, whatever became of
// the node since. Where an agent of before did not write of which run a lift was, the mark
// says so while the node is open.
func lifted(a *protocol.Assignment, n *corev1.Node) bool {
	s := signed(n)
	if s == nil || s.Operation != a.Operation {
		return false
	}
	if s.Run == 0 {
		on, marked := cluster.ReadMark(n.Annotations)
		return !n.Spec.Unschedulable && marked && on.SameRun(markOf(a))
	}
	return s.Run == a.Run
}

// honest is the node without what it says of a cordon, or of a lift, that admission took
// out of its patch: where the agent was not there any more to take that back, it tells of
// what never was. The mark stays. Else it is the node itself.
func honest(n *corev1.Node) *corev1.Node {
	says := func(key string) bool { return n.Annotations[key] != "" }
	switch s := signed(n); {
	case !n.Spec.Unschedulable && (says(cluster.AnnotationCordon) || says(annotationDrain)) && cordonStripped(n):
		n = n.DeepCopy()
		delete(n.Annotations, cluster.AnnotationCordon)
		delete(n.Annotations, annotationDrain)
	case n.Spec.Unschedulable && !says(cluster.AnnotationCordon) && s != nil && liftStripped(n):
		n = n.DeepCopy()
		delete(n.Annotations, cluster.AnnotationUncordon)
		if s.Was != nil && s.Was.Owner == "opsplane" {
			b, _ := json.Marshal(s.Was) // plain values always marshal
			n.Annotations[cluster.AnnotationCordon] = string(b)
		}
	}
	return n
}

// cordonStripped tells whether admission took an agent's cordon out of its patch. The API
// server books who sets a field before it asks those who mutate: what they take out is
// still in its books, and what anybody takes away later is not.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
func cordonStripped(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && closedBy(n).manager == fieldManager
}

// liftStripped tells likewise whether admission took the lift of a cordon out of an
// agent's patch: nobody has closed the node then, by books that know the agent.
func liftStripped(n *corev1.Node) bool {
	return n.Spec.Unschedulable && closedBy(n).manager == "" && annotatedBy(n, cluster.AnnotationUncordon) == fieldManager
}
