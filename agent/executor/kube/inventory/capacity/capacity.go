// Package capacity reads from a node's labels and capacity what GPUs it has, for
// those that report nodes and those that act on them.
package capacity

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// vendors by the resource that their device plugins offer, with the labels in
// which feature discovery counts and names the GPUs. The count of a resource may
// be of shares of a GPU (time slicing) or lack those cut up for MIG; the label
// counts the cards. https://github.com/NVIDIA/gpu-feature-discovery
var vendors = []struct {
	resource, count, product, words string
}{
	{"nvidia.com/gpu", "nvidia.com/gpu.count", "nvidia.com/gpu.product", "NVIDIA GPU"},
	{"amd.com/gpu", "", "amd.com/gpu.product-name", "AMD GPU"},
	{"gpu.intel.com/i915", "", "gpu.intel.com/product", "Intel GPU"},
	{"gpu.intel.com/xe", "", "gpu.intel.com/product", "Intel GPU"},
}

// Most bounds what a node may claim to have.
const Most = 64

// Of counts a node's GPUs, at most Most: cards, not the shares or parts that a
// device plugin may offer of them; and names their product.
func Of(o *corev1.Node) (count int, product string) {
	for _, v := range vendors {
		n := 0
		if q, ok := o.Status.Capacity[corev1.ResourceName(v.resource)]; ok {
			n = int(max(0, min(q.Value(), Most)))
		}
		if c, err := strconv.Atoi(o.Labels[v.count]); v.count != "" && err == nil && c > 0 {
			n = c
		}
		if n > 0 {
			product = o.Labels[v.product]
			if product == "" {
				product = v.words
			}
			return min(n, Most), product
		}
	}
	return 0, ""
}
