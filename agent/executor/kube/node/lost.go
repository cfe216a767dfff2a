package node

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// orphaned adds to the outcome of a drive whose node went, or became another one,
// what there is left to do: its pods outlive it until the cluster collects them, and
// for as long as a finalizer holds them.
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection
func (d *drive) orphaned(o executor.Outcome) executor.Outcome {
	if !nodeLost(o.ErrorCode) || d.s.plan == nil {
		return o
	}
	left, finalizers := 0, map[string]bool{}
	for _, p := range d.s.plan {
		if !p.left() || p.pod == nil {
			continue
		}
		left++
		for _, f := range lasting(p.pod) {
			finalizers[f] = true
		}
	}
	_, o.ActionCode, o.ActionText = executor.Action(o.ErrorCode)
	o.ActionText = "nothing is left to drain: " + o.ActionText
	if left > 0 {
		o.Detail += fmt.Sprintf("; %d of its planned pods were not seen gone", left)
		o.ActionCode, o.ActionText = operation.ActRestoreDependency, "see that the node's pods go: the cluster collects them once their node is gone"
	}
	if left > 0 && o.ErrorCode == "node_replaced" {
		o.ActionText = "its pods are bound to the node that has its name now, which nothing collects them from: drain that one"
	}
	if len(finalizers) > 0 {
		o.ActionText += ", all but those that have a finalizer, which has to be removed"
	}
	return o
}

func nodeLost(code string) bool { return code == "node_gone" || code == "node_replaced" }

// observeLost describes what is left of a drain whose node is gone: pods that are
// still there are named, and those that are not were collected, or seen to go.
func (e *drainer) observeLost(ctx context.Context, a *protocol.Assignment, s *session, end *executor.Ending, code, why string) {
	end.Message = why
	d := e.details(s, nil, nil, a)
	items, _, err := e.list(ctx, nodeName(a))
	if err != nil {
		end.NotVerified = append(end.NotVerified, "which pods of the node are still there: "+err.Error())
	}
	pods := asPods(items)
	if begun := executor.StepNamed(a, "evict").Phase; len(d.Pods) == 0 && code == "node_gone" && begun != "" && begun != operation.StepPending {
		d.adopt(a, pods) // an earlier lease made the plan, and it went with the node
	}
	on := make(map[types.UID]*corev1.Pod, len(pods))
	for _, p := range pods {
		on[p.UID] = p
	}
	for i := range d.Pods {
		if pod := on[types.UID(d.Pods[i].UID)]; pod != nil {
			d.outlives(&d.Pods[i], pod, code == "node_replaced")
		}
	}
	if n := d.Counts.Planned - d.Counts.Gone - d.Counts.Stopping - d.Counts.Left; n > 0 {
		end.NotVerified = append(end.NotVerified, fmt.Sprintf("that %d planned pods stopped: they went with their node", n))
	}
	if d.Counts.Planned > 0 {
		e.tellPods(a, end, d)
		end.Message = fmt.Sprintf("%s; %d of %d planned pods gone%s", why, d.Counts.Gone, d.Counts.Planned, countForced(d.Counts.Forced)+countOthers(d.Counts.Others))
		if n := d.Counts.Stopping + d.Counts.Left; n > 0 {
			end.Message += fmt.Sprintf(", %d still there", n)
		}
	}
	if d.GPUs == nil || d.GPUHours == nil {
		end.NotVerified = append(end.NotVerified, "how many GPUs were out of service, and for how long: what was kept of it went with the node")
	}
	end.Details = d.encode()
	if s != nil {
		s.slim()
	}
}

// adopt takes the pods that a drain with this payload is about as the plan.
func (d *details) adopt(a *protocol.Assignment, pods []*corev1.Pod) {
	p, err := readPayload(a)
	if err != nil || p.Device != "" { // who was on the device cannot be told
		return
	}
	for _, v := range p.judge(pods, nil) {
		if v.kind != finished {
			d.Counts.Planned++
			d.Pods = append(d.Pods, podOutcome{Pod: key(v.pod), UID: string(v.pod.UID), Outcome: outcomeUnknown, Detail: "its node is gone, and nobody saw it stop", unasked: true})
		}
	}
	slices.SortFunc(d.Pods, inOrder)
}

// outlives books a planned pod that is still there though its node is gone, or
// replaced: then the node that has the name now has it.
func (d *details) outlives(o *podOutcome, pod *corev1.Pod, replaced bool) {
	if o.Outcome != outcomeUnknown { // a watch that was ahead of the list
		return
	}
	on := "its node is gone"
	if replaced {
		on = "it is bound to the node that has the name of its own now"
	}
	if pod.DeletionTimestamp == nil {
		o.Outcome, o.Detail = outcomeLeft, on
		d.Counts.Left++
		return
	}
	o.Outcome, o.Detail = outcomeStopping, on
	if _, why := unremoved(pod, pod.DeletionTimestamp.Time); why != "" { // it has no grace without its node
		o.Detail += ", and " + why
	}
	d.Counts.Stopping++
}
