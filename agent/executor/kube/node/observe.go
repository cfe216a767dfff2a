package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/inventory/capacity"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// observedFor is how long what confirm read counts as what was observed at the end.
const observedFor = 2 * time.Second

// observe describes the node after a cordon or an uncordon.
func (e *nodes) observe(ctx context.Context, a *protocol.Assignment, end *executor.Ending) {
	n, code, detail, err := e.read(cluster.Operation(ctx, a), a)
	switch {
	case err != nil:
		end.Message = "the node could not be read: " + err.Error()
	case code != "":
		end.Message = detail
	default:
		e.tellNode(a, end, n, -1, n.ResourceVersion)
	}
}

// tellNode says whether the node is cordoned, and what of that is left behind.
// pods of -1 are not known.
func (e *nodes) tellNode(a *protocol.Assignment, end *executor.Ending, n *corev1.Node, pods int, version string) {
	end.Observed = &protocol.Inventory{Nodes: []protocol.Node{e.describe(n, pods, version)}}
	end.Message = "node is cordoned"
	if !n.Spec.Unschedulable {
		end.Message = "node is schedulable"
	}
	if !executor.StepUnknown(a, "cordon") && !executor.StepUnknown(a, "uncordon") && !executor.StepUnknown(a, "restore") {
		end.Verified = append(end.Verified, end.Message)
	}
	c := CordonOf(n)
	if c != nil && !ours(c, a.Operation) {
		end.Verified = append(end.Verified, "the cordon is not this operation's: "+describe(c))
	}
	if ours(c, a.Operation) && !executor.CameThrough(a) {
		by := "cordon"
		if s := executor.StepNamed(a, "restore"); s.ID != "" {
			by = s.Name // it was to lift the cordon
		}
		end.Leave(a, by, fmt.Sprintf("node %s is left cordoned by this operation", n.Name))
	}
}

// gpusOf counts the node's GPUs as its labels and capacity tell.
func gpusOf(n *corev1.Node) int {
	count, _ := capacity.Of(n)
	return count
}

// describe words the node for the plane's inventory.
func (e *nodes) describe(n *corev1.Node, pods int, version string) protocol.Node {
	if e.o.Describe != nil {
		return e.o.Describe(n, pods)
	}
	rv, _ := strconv.ParseInt(version, 10, 64) // one that is no number is older than any
	return protocol.Node{UID: string(n.UID), Name: n.Name, Revision: rv << 10, Schedulable: !n.Spec.Unschedulable,
		Ready: cluster.IsReady(n), Cordon: CordonOf(n), Labels: maps.Clone(n.Labels), GPUs: gpusOf(n), Pods: max(pods, 0)}
}

// gpus counts the node's GPUs as the inventory does; of a node that it has not seen
// yet, as the node itself tells.
func (e *nodes) gpus(n *corev1.Node) int {
	return cmp.Or(e.describe(n, -1, n.ResourceVersion).GPUs, gpusOf(n))
}

// observeDrain describes the node and what became of each planned pod.
func (e *drainer) observeDrain(ctx context.Context, a *protocol.Assignment, end *executor.Ending) {
	ctx = cluster.Operation(ctx, a)
	s := e.session(a, false)
	r := e.lastReading(s)
	if r == nil {
		n, code, detail, err := e.read(ctx, a)
		if err != nil {
			end.Message = "the node could not be read: " + err.Error()
			return
		}
		if code != "" {
			e.observeLost(ctx, a, s, end, code, detail)
			return
		}
		items, version, err := e.list(ctx, n.Name)
		if err != nil {
			end.Message = "the node's pods could not be read: " + err.Error()
			return
		}
		r = &reading{node: n, pods: asPods(items), version: version, at: e.c.Now()}
	}
	if s != nil && s.node != nil && s.node.UID != r.node.UID {
		e.observeLost(ctx, a, s, end, "node_replaced", fmt.Sprintf("node %s is another one now (%s, not %s)", r.node.Name, r.node.UID, s.node.UID))
		return
	}
	e.tellNode(a, end, r.node, len(r.pods), r.version)
	cordon := end.Message
	end.NotVerified = append(end.NotVerified, "application readiness")
	d := e.details(s, readRecord(r.node, a), r, a)
	e.explain(ctx, d, r, a)
	e.tellPods(a, end, d)
	if d.GPUs == nil && unsettled(a) {
		end.NotVerified = append(end.NotVerified, "how many GPUs were out of service, and for how long: whether the cordon came through is not known")
	}
	end.Details = d.encode()
	if s != nil {
		for _, who := range s.byName() {
			end.NotVerified = append(end.NotVerified, fmt.Sprintf("that no pods of %s come back: they are put on this node by name (spec.nodeName), past the cordon", who))
		}
		s.slim()
	}
	if p, err := readPayload(a); err == nil && p.AwaitVolumeDetach && executor.StepNamed(a, "wait").Phase == operation.StepSucceeded {
		end.Verified = append(end.Verified, "the node's volumes are detached")
	}
	switch c := d.Counts; {
	case c.Planned > 0:
		end.Message = fmt.Sprintf("%s, %d of %d planned pods gone%s", cordon, c.Gone, c.Planned, countForced(c.Forced)+countOthers(c.Others))
	case !executor.CameThrough(a) && !d.known && !unsettled(a) && executor.StepNamed(a, "preflight").Phase == operation.StepSucceeded:
		end.Message = cordon + ", and nobody knows any more which evictions were planned"
	default:
		end.Message = cordon + ", " + executor.NoneEvicted(a)
	}
}

// unsettled tells whether nobody knows what became of the drain's cordon, and no
// eviction was begun yet.
func unsettled(a *protocol.Assignment) bool {
	evict := executor.StepNamed(a, "evict")
	return executor.StepUnknown(a, "cordon") && evict.Attempts == 0 && (evict.Phase == "" || evict.Phase == operation.StepPending)
}

func (e *drainer) lastReading(s *session) *reading {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.final == nil || e.c.Now().Sub(s.final.at) > observedFor {
		return nil
	}
	return s.final
}

// tellPods says what is verified of the planned pods, and which are left behind.
func (e *drainer) tellPods(a *protocol.Assignment, end *executor.Ending, d *details) {
	var kept, stop, others []string
	unseen := 0
	for _, o := range d.Pods {
		if o.unseen {
			unseen++
		}
		switch o.Outcome {
		case outcomeStopping:
			list := &stop
			if o.unasked {
				list = &others
			}
			*list = append(*list, fmt.Sprintf("pod %s (%s)", o.Pod, o.Detail))
		case outcomeLeft:
			kept = append(kept, fmt.Sprintf("pod %s (%s)", o.Pod, o.Detail))
		}
		if o.Dangling != "" {
			end.NotVerified = append(end.NotVerified, fmt.Sprintf("that service %s sends nothing to pod %s any more", o.Dangling, o.Pod))
		}
	}
	switch {
	case d.Counts.Gone > 0:
		end.Verified = append(end.Verified, fmt.Sprintf("%d planned pods gone by UID", d.Counts.Gone))
	case d.Counts.Planned == 0 && executor.CameThrough(a):
		end.Verified = append(end.Verified, "there were no pods to evict")
	}
	if d.Counts.CameAfter > 0 {
		end.NotVerified = append(end.NotVerified, fmt.Sprintf("an empty node: %d pods that tolerate the cordon came after the plan", d.Counts.CameAfter))
	}
	if unseen > 0 {
		end.NotVerified = append(end.NotVerified, fmt.Sprintf("that the processes of %d pods ended: they were deleted without grace, which waits for no kubelet", unseen))
	}
	end.LeavePods(a, "evict", "not evicted", kept)
	end.LeavePods(a, "wait", "evicted and still there", stop)
	end.LeavePods(a, "wait", "stopping and still there", others)
}

// countOthers adds to a summary how many pods somebody else deleted.
func countOthers(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d deleted by somebody else", n)
}

// encode writes the result, with as many of the pods as fit into what the plane
// takes of it.
func (d *details) encode() json.RawMessage {
	b, _ := json.Marshal(d) // plain values always marshal
	if len(b) <= protocol.MaxDetailsBytes {
		return b
	}
	all := d.Pods
	slices.SortStableFunc(all, func(a, b podOutcome) int { return outcomeRank(a.Outcome) - outcomeRank(b.Outcome) })
	for len(b) > protocol.MaxDetailsBytes && len(d.Pods) > 0 { // the ones that went well are left out first
		d.Pods = d.Pods[:len(d.Pods)*3/4]
		d.Omitted = len(all) - len(d.Pods)
		b, _ = json.Marshal(d)
	}
	return b
}
