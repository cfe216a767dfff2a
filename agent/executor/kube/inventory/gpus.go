package inventory

import corev1 "k8s.io/api/core/v1"

// GPUs counts a node's GPUs as its labels and capacity tell: cards, not the shares
// or parts that a device plugin may offer of them, and at most 64.
func GPUs(n *corev1.Node) int { return capacityOf(n).count }
