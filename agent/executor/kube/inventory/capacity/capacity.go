// Package capacity reads from a node's labels and capacity what GPUs it has, for
// those that report nodes and those that act on them.
package capacity

import (
	"slices"
	"strconv"
	"strings"

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

// Offer is a resource of a node's GPUs: how many there are, and how many of them the
// node gives to pods. A device plugin takes a GPU that is ill out of the second, as
// does the kubelet with all of them while the plugin is away.
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#device-plugin-and-unhealthy-devices
type Offer struct {
	Resource    string `json:"resource"`
	Capacity    int64  `json:"capacity"`
	Allocatable int64  `json:"allocatable"`
}

// Cards tells whether the resource counts whole GPUs of the node, as labels and
// capacity count them, and not shares or parts of them.
func (f Offer) Cards(gpus int) bool {
	return f.Capacity == int64(gpus) && !strings.HasPrefix(f.Resource, migPrefix) && !strings.HasSuffix(f.Resource, sharedSuffix)
}

// NVIDIA's device plugin names parts of a GPU and, if it is told to, shares so.
// https://github.com/NVIDIA/k8s-device-plugin
const (
	migPrefix    = "nvidia.com/mig-"
	sharedSuffix = ".shared"
)

// offersMost bounds the resources that are looked at: a GPU has a score of MIG
// profiles.
const offersMost = 32

// Offers lists the resources of GPUs that a node has any of, in the order of their
// names. A node that says nothing of what it gives to pods gives all.
func Offers(o *corev1.Node) []Offer {
	var out []Offer
	for name, have := range o.Status.Capacity {
		if !ofGPUs(string(name)) || have.Value() <= 0 {
			continue
		}
		f := Offer{Resource: string(name), Capacity: have.Value(), Allocatable: have.Value()}
		if o.Status.Allocatable != nil {
			free := o.Status.Allocatable[name]
			f.Allocatable = min(max(free.Value(), 0), f.Capacity)
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Offer) int { return strings.Compare(a.Resource, b.Resource) })
	return out[:min(len(out), offersMost)]
}

func ofGPUs(resource string) bool {
	if strings.HasPrefix(resource, migPrefix) {
		return true
	}
	for _, v := range vendors {
		if strings.TrimSuffix(resource, sharedSuffix) == v.resource {
			return true
		}
	}
	return false
}
