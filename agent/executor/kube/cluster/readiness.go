package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Readiness is what the node's kubelet says of it, or the cluster for it where the
// kubelet does not report (Unknown); nil: nobody tells.
// https://kubernetes.io/docs/reference/node/node-status/#condition
func Readiness(n *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &n.Status.Conditions[i]
}

// IsReady tells whether the node's kubelet says that it is ready.
func IsReady(n *corev1.Node) bool {
	c := Readiness(n)
	return c != nil && c.Status == corev1.ConditionTrue
}
