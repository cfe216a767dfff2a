package node

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// verdict is what a drain makes of one pod.
type verdict struct {
	pod  *corev1.Pod
	kind string
	// objections say what stands in the way for good: no drain with this payload gets
	// past any of them.
	objections []objection
	// unmanaged: nothing starts the pod again, and the payload allows that.
	unmanaged bool
	// returns: a replacement may be placed on this node again, and is left alone.
	returns bool
	// named: who made the pod named the node, and does so of its replacement.
	named bool
}

// objection is one rule that a drain does not break unless its payload says so.
type objection struct{ code, why string }

func (v *verdict) object(code, format string, args ...any) {
	v.objections = append(v.objections, objection{code, fmt.Sprintf(format, args...)})
}

// refuses words everything that stands in the pod's way; an empty code: nothing does.
func (v verdict) refuses() (code, why string) {
	for i, o := range v.objections {
		if i == 0 {
			code, why = o.code, o.why
			continue
		}
		why += "; " + strings.TrimPrefix(o.why, "pod "+key(v.pod)+" ")
	}
	return code, why
}

// late says why a pod that came after the plan is still there.
func (v verdict) late() string {
	if _, why := v.refuses(); why != "" {
		return "it came after the plan and " + strings.TrimPrefix(why, "pod "+key(v.pod)+" ")
	}
	return "it came after the plan"
}

// Kinds of verdicts.
const (
	toEvict  = "evict"
	stopping = "stopping" // told to stop already, whatever its phase: it is waited for
	finished = "finished" // has run to its end: it never stands in the way
)

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

// judge sorts a node's pods in the order of kubectl drain: DaemonSet and mirror
// pods are left alone, those that are stopping are waited for, finished ones never
// stand in the way, unmanaged ones and those with local data are refused unless the payload allows them. The verdicts
// are in the order of eviction. orphans are the pods whose DaemonSet is gone.
func (p payload) judge(pods []*corev1.Pod, orphans map[types.UID]bool) []verdict {
	var list []verdict
	for _, pod := range pods {
		if !p.about(pod) {
			continue
		}
		owner := metav1.GetControllerOf(pod)
		daemon := owner != nil && isDaemonSet(owner)
		v := verdict{pod: pod, kind: toEvict}
		switch {
		case daemon && !orphans[pod.UID]:
			continue
		case pod.DeletionTimestamp != nil:
			v.kind = stopping
		case hasFinished(pod):
			v.kind = finished
		default:
			if daemon && !p.Force {
				v.object("orphaned_daemonset_pod", "pod %s is of DaemonSet %s, which is gone: nothing would start it again", key(pod), owner.Name)
			}
			if owner == nil && !p.Force {
				v.object("unmanaged_pod", "pod %s has no controller: nothing would start it again", key(pod))
			}
			if HasLocalData(pod) && !p.DeleteEmptyDirData {
				v.object("local_data", "pod %s keeps data in an emptyDir, which would be lost", key(pod))
			}
		}
		v.unmanaged = owner == nil || daemon
		v.returns = !v.unmanaged && v.kind == toEvict && toleratesCordon(pod)
		v.named = !v.unmanaged && v.kind == toEvict && !v.returns && namesNode(pod)
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b verdict) int { return p.compare(a.pod, b.pod) })
	return list
}

// Refused tells why a drain with nothing allowed in its payload evicts the pod never;
// empty: it may. Whether a DaemonSet pod's DaemonSet is there it does not ask.
func Refused(p *corev1.Pod) (code, why string) {
	for _, v := range (payload{}).judge([]*corev1.Pod{p}, nil) {
		return v.refuses()
	}
	return "", ""
}

// about tells whether the drain is about the pod at all.
func (p payload) about(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	if p.only != nil && !p.only[pod.UID] {
		return false
	}
	return p.selector == nil || p.selector.Matches(labels.Set(pod.Labels))
}

// compare orders pods by priority, where the payload asks for it, then by name.
func (p payload) compare(a, b *corev1.Pod) int {
	if p.Order == orderPriority {
		if c := int(priority(a)) - int(priority(b)); c != 0 {
			return c
		}
	}
	return strings.Compare(key(a), key(b))
}

// priority is what the pod's priority class resolved to at its creation.
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// isFinished tells whether nothing of the pod runs any more. A kubelet says so as
// well of a pod that was told to stop, and a finalizer may hold such a one for long.
func isFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// hasFinished tells whether the pod has run to its end by itself.
func hasFinished(p *corev1.Pod) bool { return isFinished(p) && p.DeletionTimestamp == nil }

func isDaemonSet(o *metav1.OwnerReference) bool {
	return o.Kind == "DaemonSet" && strings.HasPrefix(o.APIVersion, "apps/")
}

// AnnotationScratch names, on a pod, those of its volumes whose data nobody misses,
// separated by commas. The cluster autoscaler evicts by it, too.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#what-types-of-pods-can-prevent-ca-from-removing-a-node
const AnnotationScratch = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"

// HasLocalData tells whether the pod keeps data in an emptyDir that is not known to
// be scratch: the one rule of local data, for drains of nodes and of devices and for
// what the inventory tells. One in memory is what processes share, and does not
// outlast the machine's next start either; the cluster autoscaler does not count it.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/drain/drain.go
func HasLocalData(p *corev1.Pod) bool {
	scratch := map[string]bool{}
	for name := range strings.SplitSeq(p.Annotations[AnnotationScratch], ",") {
		scratch[strings.TrimSpace(name)] = true
	}
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory && !scratch[v.Name]
	})
}

func hasPreStop(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Lifecycle != nil && c.Lifecycle.PreStop != nil })
}

// toleratesCordon tells whether the scheduler may place such a pod on a cordoned
// node: the cordon is to it a taint of this name.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-unschedulable
func toleratesCordon(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) &&
			(t.Key == corev1.TaintNodeUnschedulable || t.Key == "" && t.Operator == corev1.TolerationOpExists)
	})
}
