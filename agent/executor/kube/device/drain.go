package device

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	// maxRounds is how often the pods of a device are evicted: some may come between
	// two looks, but not for ever.
	maxRounds = 4
	paceLeast = 500 * time.Millisecond
	paceMost  = 5 * time.Second
)

// drainHolders evicts the pods that hold the device, within their budgets, waits
// until they are gone, and has the host look again.
func (e *devices) drainHolders(ctx context.Context, t *executor.Task, d target) executor.Outcome {
	total := 0
	var on *holders
	for range maxRounds {
		a, stop := e.look(ctx, t, d, report.VerbPreflight)
		if stop != nil {
			return *stop
		}
		if a.OK {
			t.Progress(total, total, "pods", fmt.Sprintf("%d of %d pods gone", total, total))
			return executor.Done(fmt.Sprintf("%d pods were evicted, nothing holds GPU %s", total, d.uuid))
		}
		if a.Code != report.CodeBusy || a.Device == nil {
			return refused(a, d)
		}
		var err error
		if on, err = e.resolve(ctx, d, a); err != nil {
			return cluster.Broken(err)
		}
		if code, why := on.never(); code != "" {
			return executor.Permanent(code, why)
		}
		if len(on.pods) == 0 && on.lost == 0 {
			o := executor.Permanent(a.Code, a.Detail)
			o.ActionText = on.free(true)
			return o
		}
		total += len(on.pods)
		if stop := e.evictAll(ctx, t, d, on.pods, total); stop != nil {
			return *stop
		}
		e.note(t.Assignment.Operation, func(o *outcome) {
			for _, p := range on.pods {
				o.drained = append(o.drained, p.Namespace+"/"+p.Name)
			}
		})
		if !on.drainable() && on.lost == 0 {
			o := executor.Permanent(a.Code, a.Detail)
			o.ActionText = on.free(true)
			return o
		}
	}
	o := executor.Permanent(report.CodeBusy, fmt.Sprintf("GPU %s is held again each time its pods were evicted, now by %s", d.uuid, on.names()))
	o.ActionText = "cordon the node, then reset again"
	return o
}

// holders are a device's holders as the cluster knows them.
type holders struct {
	pods   []*corev1.Pod // that can be evicted
	fixed  []string      // pods that eviction does not move, in words
	others []report.Holder
	// lost counts pods that the host names and the cluster does not know: they
	// ended in between, or the host's word is old.
	lost    int
	uids    []types.UID // of all pods
	refusal func() (code, why string)
}

func (h *holders) drainable() bool { return len(h.fixed) == 0 && len(h.others) == 0 }

// never tells of a pod that this operation must not evict.
func (h *holders) never() (code, why string) {
	if h.refusal == nil {
		return "", ""
	}
	return h.refusal()
}

func (h *holders) names() string {
	var out []string
	for _, p := range h.pods {
		out = append(out, p.Namespace+"/"+p.Name)
	}
	out = append(out, h.fixed...)
	for _, o := range h.others {
		out = append(out, o.String())
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
		if p == nil {
			out.lost++
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
	case owner == nil:
		h.refuse("unmanaged_pod", fmt.Sprintf("pod %s holds the device and has no controller: nothing would start it again", key))
	case localData(p) != "":
		h.refuse("local_data", fmt.Sprintf("pod %s holds the device and has data of its own in volume %s, which is lost with it: drain the device with delete_emptydir_data first", key, localData(p)))
	default:
		h.pods = append(h.pods, p)
	}
}

func (h *holders) refuse(code, why string) {
	if h.refusal == nil {
		h.refusal = func() (string, string) { return code, why }
	}
}

// localData names an emptyDir that keeps data past a container's end. One in
// memory is shared memory to those that use GPUs, and is lost with its processes
// anyway.
func localData(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			return v.Name
		}
	}
	return ""
}

// evictAll evicts pods and waits until each is gone by UID.
func (e *devices) evictAll(ctx context.Context, t *executor.Task, d target, pods []*corev1.Pod, total int) *executor.Outcome {
	under, cancel := context.WithCancel(ctx)
	defer cancel()
	defer blocked(t)
	events, failed := e.follow(under, "", metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node})
	left := map[types.UID]*corev1.Pod{}
	for _, p := range pods {
		left[p.UID] = p
	}
	asked, why := map[types.UID]bool{}, map[types.UID]protocol.Blocker{}
	pace := paceLeast
	again := time.NewTimer(0)
	defer again.Stop()
	say := func() string {
		var now []protocol.Blocker
		message := fmt.Sprintf("%d of %d pods gone", total-len(left), total)
		for _, p := range pods {
			if b, ok := why[p.UID]; ok && left[p.UID] != nil {
				if now = append(now, b); len(now) == 1 {
					message += fmt.Sprintf(", waiting for %s: %s", strings.Replace(b.Resource, "/", " ", 1), b.Detail)
				}
			}
		}
		blocked(t, now...)
		t.Progress(total-len(left), total, "pods", message)
		return message
	}
	for len(left) > 0 {
		select {
		case s, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			if p := left[s.pod.UID]; p != nil && (s.gone || finished(s.pod)) {
				delete(left, p.UID)
				say()
			} else if p != nil && s.pod.DeletionTimestamp != nil {
				asked[p.UID], why[p.UID] = true, stopping(s.pod)
				say()
			}
		case err := <-failed:
			if apierrors.IsForbidden(err) {
				o := cluster.Broken(err)
				return &o
			}
		case <-again.C:
			for _, p := range pods {
				if left[p.UID] == nil || asked[p.UID] {
					continue
				}
				if executor.Halted(ctx, t) != "" {
					break
				}
				b, gone, stop := e.evict(ctx, t, p)
				if stop != nil {
					return stop
				}
				switch {
				case gone:
					delete(left, p.UID)
				case b == nil:
					asked[p.UID], why[p.UID] = true, stopping(p)
				default:
					why[p.UID] = *b
				}
			}
			say()
			again.Reset(pace + rand.N(pace/4))
			pace = min(2*pace, paceMost)
		case <-t.Cancelled:
			o := executor.Waiting("cancelled", say())
			return &o
		case <-ctx.Done():
			message := say()
			o := executor.Waiting("interrupted", message)
			for _, p := range pods {
				if b, ok := why[p.UID]; ok && left[p.UID] != nil {
					o = executor.Waiting(outcomeCode(b.Code), message)
					break
				}
			}
			return &o
		}
	}
	say()
	return nil
}

// outcomeCode is the outcome's code of a blocker.
func outcomeCode(code string) string {
	switch code {
	case "pdb":
		return "pdb_blocked"
	case "terminating":
		return "slow_stop"
	}
	return code
}

func stopping(p *corev1.Pod) protocol.Blocker {
	b := protocol.Blocker{Code: "terminating", Resource: "pod/" + p.Namespace + "/" + p.Name, Detail: "it is stopping"}
	if p.DeletionTimestamp != nil {
		b.Detail = "it is stopping, until " + p.DeletionTimestamp.UTC().Format(time.RFC3339) + " at the latest"
		if len(p.Finalizers) > 0 {
			b.Code, b.Rule = "finalizer", p.Finalizers[0]
			b.Detail = "it was told to stop and is kept by its finalizers " + strings.Join(p.Finalizers, ", ")
		}
	}
	return b
}

// evict asks for one eviction of one pod, by UID. A blocker: it was refused.
func (e *devices) evict(ctx context.Context, t *executor.Task, p *corev1.Pod) (b *protocol.Blocker, gone bool, stop *executor.Outcome) {
	key := p.Namespace + "/" + p.Name
	r, stop := e.c.Repeatable(ctx, t, "evict pod", "pod/"+string(p.UID), key, func(ctx context.Context) error {
		return e.c.Client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
	})
	if stop != nil {
		if stop.ErrorCode == "api_unavailable" { // nothing was sent: later
			return &protocol.Blocker{Code: "api_unavailable", Resource: "pod/" + key, Detail: stop.Detail}, false, nil
		}
		return nil, false, stop
	}
	switch {
	case r.Category == cluster.OK:
		return nil, false, nil
	case r.NotFound() || r.Category == cluster.Conflict: // gone, or another of its name
		return nil, true, nil
	case r.Category == cluster.Throttled:
		return &protocol.Blocker{Code: "pdb", Resource: "pod/" + key, Rule: budgetOf(p.Namespace, r.Err), Detail: r.Err.Error() + ": " + causes(r.Err)}, false, nil
	case r.Category == cluster.Failed && strings.Contains(r.Err.Error(), "more than one PodDisruptionBudget"):
		// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
		o := executor.Permanent("two_pdbs", fmt.Sprintf("pod %s is selected by two disruption budgets: the cluster evicts no such pod", key))
		return nil, false, &o
	case r.Category == cluster.Refused:
		return &protocol.Blocker{Code: "eviction_refused", Resource: "pod/" + key, Detail: r.Err.Error()}, false, nil
	}
	// The answer was lost, or the server failed: the watch tells, or it is asked for
	// once more.
	return &protocol.Blocker{Code: "api_unavailable", Resource: "pod/" + key, Detail: r.Err.Error()}, false, nil
}

// causes are the API server's words on a budget: "The disruption budget web needs
// 2 healthy pods and has 2 currently".
func causes(err error) string {
	var s apierrors.APIStatus
	if !errors.As(err, &s) || s.Status().Details == nil {
		return ""
	}
	var out []string
	for _, c := range s.Status().Details.Causes {
		out = append(out, c.Message)
	}
	return strings.Join(out, "; ")
}

func budgetOf(namespace string, err error) string {
	words := strings.Fields(causes(err))
	if i := slices.Index(words, "budget"); i >= 0 && i+1 < len(words) {
		return "pdb/" + namespace + "/" + words[i+1]
	}
	return "pdb"
}
