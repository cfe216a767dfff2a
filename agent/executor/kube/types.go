package kube

import (
	"cmp"
	"slices"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component"
	"github.com/opsplane/opsplane/agent/executor/kube/deployment"
	"github.com/opsplane/opsplane/agent/executor/kube/device"
	"github.com/opsplane/opsplane/agent/executor/kube/inventory"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
)

// types are the operation types. A type is a package, one line here and its
// rights below.
func types(c *cluster.Cluster, inv *inventory.Inventory, o Options) []cluster.Type {
	options := node.Options{Describe: inv.Describe, PodsOn: device.PodsOn(c, inv.NodeName)}
	drains := node.NewDrains(c, options)
	return []cluster.Type{
		node.Cordon(c, options),
		node.Uncordon(c, options),
		drains.Type(),
		device.Reset(c, o.Device, drains),
		deployment.Roll(c),
		component.Upgrade(c, o.Component),
	}
}

// Rights are what the agent's role must grant under the options, each once: those
// of the inventory and of every type that is turned on.
func Rights(o Options) []cluster.Right {
	all := slices.Concat(inventory.Rights, node.Rights, device.PodsRights, deployment.Rights)
	if o.Device.Enabled {
		all = append(all, device.Rights...)
	}
	if len(o.Component.Components) > 0 {
		all = append(all, component.Rights...)
	}
	type key struct{ namespace, group, resource, verb string }
	seen := map[key]bool{}
	var out []cluster.Right
	for _, r := range all {
		if k := (key{r.Namespace, r.Group, r.Resource, r.Verb}); !seen[k] {
			seen[k] = true
			out = append(out, r)
		}
	}
	// What is granted in every namespace need not be granted in one.
	out = slices.DeleteFunc(out, func(r cluster.Right) bool {
		return r.Namespace != "" && seen[key{"", r.Group, r.Resource, r.Verb}]
	})
	slices.SortFunc(out, func(a, b cluster.Right) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb))
	})
	return out
}
