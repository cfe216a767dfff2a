package node

import (
	"context"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Rights that change the cluster. A preview asks for them by name.
var (
	patchRight  = cluster.Right{Verb: "patch", Resource: "nodes", Why: "to cordon and uncordon"}
	evictRight  = cluster.Right{Verb: "create", Resource: "pods/eviction", Why: "to evict"}
	deleteRight = cluster.Right{Verb: "delete", Resource: "pods", Why: "to delete what is left in the window before the deadline, with on_deadline: force"}
)

// Rights are what the three types need of the agent's role, no more.
var Rights = []cluster.Right{
	{Verb: "get", Resource: "nodes", Why: "to read the node that an operation is about"},
	{Verb: "list", Resource: "nodes", Why: "to see a node uncordoned, deleted or unreachable while it is drained"},
	{Verb: "watch", Resource: "nodes", Why: "to see a node uncordoned, deleted or unreachable while it is drained"},
	patchRight,
	{Verb: "get", Resource: "pods", Why: "to learn what became of an eviction whose answer was lost"},
	{Verb: "list", Resource: "pods", Why: "to judge the pods of a node and to see them gone"},
	{Verb: "watch", Resource: "pods", Why: "to see the pods of a node stop"},
	evictRight,
	deleteRight,
	{Verb: "get", Group: "apps", Resource: "daemonsets", Why: "to tell an orphaned DaemonSet pod from one that its DaemonSet would start again"},
	{Verb: "list", Group: "policy", Resource: "poddisruptionbudgets", Why: "to say which budget holds a pod, and to evict as soon as it allows"},
	{Verb: "watch", Group: "policy", Resource: "poddisruptionbudgets", Why: "to say which budget holds a pod, and to evict as soon as it allows"},
	{Verb: "list", Group: "discovery.k8s.io", Resource: "endpointslices", Why: "to see whether a stopping pod still serves requests"},
	{Verb: "watch", Group: "discovery.k8s.io", Resource: "endpointslices", Why: "to see whether a stopping pod still serves requests"},
	{Verb: "list", Group: "storage.k8s.io", Resource: "volumeattachments", Why: "to see the node's volumes detached, with await_volume_detach"},
	{Verb: "watch", Group: "storage.k8s.io", Resource: "volumeattachments", Why: "to see the node's volumes detached, with await_volume_detach"},
	{Verb: "get", Resource: "persistentvolumeclaims", Why: "to tell the volumes of pods that stay on the node, with await_volume_detach"},
	cluster.EventRight,
}

// Cordon is node.cordon.
func Cordon(c *cluster.Cluster, o Options) cluster.Type {
	e := &nodes{c: c, o: o}
	return cluster.Type{
		Name: "node.cordon", Capabilities: []protocol.Capability{{Name: "node.cordon", Version: 1}},
		Steps: map[string]cluster.Step{
			"cordon": {Probe: e.probeCordon, Execute: e.lenient(func(ctx context.Context, t *executor.Task) executor.Outcome {
				return e.cordon(ctx, t, &placing{})
			})},
			"confirm": {Probe: readAgain, Execute: e.lenient(e.confirmCordon)},
		},
		Observe: e.observe, Preview: e.preview,
	}
}

// Uncordon is node.uncordon.
func Uncordon(c *cluster.Cluster, o Options) cluster.Type {
	e := &nodes{c: c, o: o}
	return cluster.Type{
		Name: "node.uncordon", Capabilities: []protocol.Capability{{Name: "node.cordon", Version: 1}},
		Steps: map[string]cluster.Step{
			"uncordon": {Probe: e.probeUncordon, Execute: e.lenient(e.uncordon)},
			"confirm":  {Probe: readAgain, Execute: e.lenient(e.confirmUncordon)},
		},
		Observe: e.observe, Preview: e.preview,
	}
}

// drain is node.drain.
func (e *drainer) drain() cluster.Type {
	return cluster.Type{
		// Version 2 knows device and await_volume_detach.
		Name: "node.drain", Capabilities: []protocol.Capability{{Name: "node.drain", Version: 2}, {Name: "node.cordon", Version: 1}},
		Steps: map[string]cluster.Step{
			"preflight": {Probe: readAgain, Execute: e.timed(e.preflight)},
			"cordon":    {Probe: e.probeCordon, Execute: e.timed(e.cordonPlanned)},
			"evict":     {Probe: e.probeEvict, Execute: e.timed(e.evict)},
			"wait":      {Probe: e.probeGone, Execute: e.timed(e.waitGone)},
			"confirm":   {Probe: readAgain, Execute: e.timed(e.confirm)},
			"restore":   {Probe: e.probeRestore, Execute: e.timed(e.restore)},
		},
		Observe: e.observeDrain, Preview: e.previewDrain,
	}
}

func readAgain(context.Context, *executor.Task) executor.Finding {
	return executor.ToRun("it is read again")
}
