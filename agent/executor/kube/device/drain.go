package device

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// maxRounds is how often the pods of a device are evicted: some may come between
// two looks, but not for ever.
const maxRounds = 4

// codeOwnNode is the code with which a drain hands its lease over.
const codeOwnNode = "own_node"

// drainHolders evicts the pods that hold the device, within their budgets, waits
// until they are gone, and has the host look again.
func (e *devices) drainHolders(ctx context.Context, t *executor.Task, d target) executor.Outcome {
	total, waits := 0, 0
	pods := e.drains.Chosen()
	var still *protocol.Blocker // what outlives its pod
	for rounds := 0; ; {
		a, stop := e.look(ctx, standing(t, still), d, report.VerbPreflight)
		if stop != nil {
			return *stop
		}
		if a.OK {
			blocked(t)
			t.Progress(total, total, "pods", fmt.Sprintf("%d of %d pods gone", total, total))
			return executor.Done(fmt.Sprintf("%d pods were evicted, nothing holds GPU %s", total, d.uuid))
		}
		if a.Code != report.CodeBusy || a.Device == nil {
			return refused(a, d)
		}
		on, err := e.resolve(ctx, d, a)
		if err != nil {
			return cluster.Broken(err)
		}
		if code, why := on.never(); code != "" {
			return again(executor.Permanent(code, why))
		}
		// What eviction does not move stays when the pods are gone: none goes for nothing.
		if on.lost == 0 && (len(on.pods) == 0 || !on.drainable()) {
			o := executor.Permanent(a.Code, a.Detail)
			o.ActionText = on.free(true)
			return o
		}
		if still = on.outlive(d, still, e.c.Now()); len(on.pods) == 0 || !on.drainable() { // the host's word may be old: it is asked again first
			if !on.drainable() {
				if rounds++; rounds >= maxRounds {
					o := executor.Permanent(report.CodeBusy, fmt.Sprintf("GPU %s is held by %s", d.uuid, on.names()))
					o.ActionText = on.free(true)
					return o
				}
			}
			waits++
			if stop := e.outwait(ctx, t, d, on, still, waits); stop != nil {
				return *stop
			}
			continue
		}
		if rounds >= maxRounds {
			return e.heldAgain(ctx, d, on)
		}
		if stop := e.late(t, d); stop != nil { // no pod goes for nothing
			return *stop
		}
		rounds, total = rounds+1, total+len(on.pods)
		if stop := e.evict(ctx, t, d, pods, on.pods); stop != nil {
			return *stop
		}
	}
}

// heldAgain is the outcome where pods came each time that they were evicted.
func (e *devices) heldAgain(ctx context.Context, d target, on *holders) executor.Outcome {
	o := executor.Permanent(report.CodeBusy, fmt.Sprintf("GPU %s is held again each time its pods were evicted, now by %s", d.uuid, on.names()))
	o.ActionText = "cordon the node, then reset again"
	if n, _, err := e.readNode(ctx, d.node); err == nil && n != nil && n.Spec.Unschedulable {
		o.ActionText = fmt.Sprintf("find out what puts pods on node %s, which is cordoned, then reset again", d.node)
	}
	return o
}

// evict evicts pods until each is gone by UID.
func (e *devices) evict(ctx context.Context, t *executor.Task, d target, chosen *node.Chosen, pods []*corev1.Pod) *executor.Outcome {
	n, away, err := e.readNode(ctx, d.node)
	switch {
	case err != nil:
		o := cluster.Broken(err)
		return &o
	case away != nil:
		o := e.without(t, d, away, false)
		return &o
	}
	o := chosen.Evict(ctx, t, n, pods)
	e.note(t.Assignment, func(out *outcome) {
		for _, name := range chosen.Taken() {
			if !slices.Contains(out.drained, name) {
				out.drained = append(out.drained, name)
			}
		}
		out.kept = chosen.Kept()
	})
	o = again(o)
	switch {
	case o.Class == operation.OutcomeDone:
		return nil
	case o.Class == executor.ClassHandBack: // what this agent knows goes with its lease
		e.note(t.Assignment, func(out *outcome) {
			if len(out.drained) > 0 {
				o.Detail += "; evicted so far: " + some(out.drained)
			}
		})
	case o.ErrorCode == "node_gone" || o.ErrorCode == "node_replaced":
		o.ErrorCode = report.CodeGone
	}
	return &o
}

// afresh is what a person can do about what keeps a device's pods, where the advice
// to a drain of the node does not fit.
var afresh = map[string]string{
	"local_data":    "move the data away, or drain the device's pods with node.drain, which takes device and delete_emptydir_data, then reset again",
	"unmanaged_pod": "move the pod away, or drain the device's pods with node.drain, which takes device and force, then reset again",
	"two_pdbs":      "leave one disruption budget on the pod, for Kubernetes evicts no pod that has two, then reset again",
	"slow_stop":     "reset again with a later deadline",
	"stopping":      "reset again with a later deadline",
	"interrupted":   "reset again with a later deadline",
}

// again words what a person can do about an eviction that was made for a reset.
func again(o executor.Outcome) executor.Outcome {
	if text, ok := afresh[o.ErrorCode]; ok {
		o.ActionText = text
	}
	o.ActionText = strings.ReplaceAll(o.ActionText, "drain again", "reset again")
	return o
}

// some names the first of the pods, and how many there are besides.
func some(pods []string) string {
	const most = 10
	if len(pods) <= most {
		return strings.Join(pods, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(pods[:most], ", "), len(pods)-most)
}

// holders are a device's holders as the cluster knows them.
type holders struct {
	pods   []*corev1.Pod // that eviction moves, if a drain may evict them
	fixed  []string      // pods that eviction does not move, in words
	others []report.Holder
	// lost counts pods that the host names and that do not run as far as the cluster
	// knows: they ended in between, or the host's word is old.
	lost int
	// outlived are what holds the device of the lost ones, as the host has it.
	outlived  []report.Holder
	uids      []types.UID // of all pods
	code, why string      // of a pod that no drain without allowances evicts
}

func (h *holders) drainable() bool { return len(h.fixed) == 0 && len(h.others) == 0 }

// never tells of a pod that this operation must not evict.
func (h *holders) never() (code, why string) { return h.code, h.why }

func (h *holders) names() string {
	var out []string
	for _, p := range h.pods {
		out = append(out, p.Namespace+"/"+p.Name)
	}
	out = append(out, h.fixed...)
	for _, o := range h.others {
		out = append(out, o.String())
	}
	for _, o := range h.outlived {
		out = append(out, outliving(o))
	}
	return strings.Join(out, ", ")
}

// free says what a person can do about the holders. Only pods can be drained.
func (h *holders) free(drain bool) string {
	if h.drainable() && !drain {
		return "reset with drain, or move the pods away and reset again"
	}
	var acts []string
	if len(h.pods) > 0 && !drain {
		acts = append(acts, "move the pods away")
	}
	if len(h.fixed) > 0 {
		acts = append(acts, fmt.Sprintf("take %s off the node (the GPU operator's are switched off by the node's labels nvidia.com/gpu.deploy.dcgm-exporter=false, nvidia.com/gpu.deploy.dcgm=false and nvidia.com/gpu.deploy.device-plugin=false)",
			strings.Join(h.fixed, ", ")))
	}
	kinds := map[string]bool{}
	for _, o := range h.others {
		kinds[o.Kind] = true
	}
	if kinds[report.HolderPersistence] || kinds[report.HolderDaemon] {
		acts = append(acts, "turn persistence mode off")
	}
	if kinds[report.HolderVM] {
		acts = append(acts, "stop the virtual machines")
	}
	if kinds[report.HolderProcess] || kinds[report.HolderExporter] || kinds[report.HolderDevicePlugin] || kinds[report.HolderAllocation] {
		acts = append(acts, "stop the processes that hold the device")
	}
	return strings.Join(append(acts, "reset again"), ", then ")
}

// resolve finds the holders that the host names among the pods of its node.
func (e *devices) resolve(ctx context.Context, d target, a *report.Answer) (*holders, error) {
	read, cancel := e.c.Read(ctx)
	defer cancel()
	list, err := e.c.Client.CoreV1().Pods("").List(read, metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node})
	if err != nil {
		return nil, err
	}
	out := &holders{}
	seen := map[types.UID]bool{}
	for _, h := range a.Device.Holders {
		if !h.Blocks(e.cfg.ReleasePersistence) {
			continue
		}
		if h.Pod == nil {
			out.others = append(out.others, h)
			continue
		}
		p := match(list.Items, h.Pod)
		if p == nil || finished(p) {
			out.lost, out.outlived = out.lost+1, append(out.outlived, h)
			continue
		}
		if seen[p.UID] {
			continue
		}
		seen[p.UID] = true
		out.uids = append(out.uids, p.UID)
		out.add(p)
	}
	return out, nil
}

// match finds a pod: by UID, by its name where the host does not know that, and a
// static pod by the hash that its cgroup carries.
func match(pods []corev1.Pod, want *report.Pod) *corev1.Pod {
	for i := range pods {
		p := &pods[i]
		switch {
		case want.UID != "" && (string(p.UID) == want.UID || p.Annotations["kubernetes.io/config.hash"] == want.UID):
			return p
		case want.UID == "" && p.Namespace == want.Namespace && p.Name == want.Name:
			return p
		}
	}
	return nil
}

func (h *holders) add(p *corev1.Pod) {
	key := p.Namespace + "/" + p.Name
	owner := metav1.GetControllerOf(p)
	switch {
	case p.Annotations[corev1.MirrorPodAnnotationKey] != "":
		h.fixed = append(h.fixed, "static pod "+key)
	case owner != nil && owner.Kind == "DaemonSet":
		h.fixed = append(h.fixed, fmt.Sprintf("pod %s of DaemonSet %s", key, owner.Name))
	default:
		h.pods = append(h.pods, p)
		if code, why := node.Refused(p); code != "" && h.code == "" {
			h.code, h.why = code, why+"; it holds the device"
		}
	}
}
