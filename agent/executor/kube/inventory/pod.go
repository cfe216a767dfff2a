package inventory

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pod is what is kept of a pod that has not ended.
type pod struct {
	head
	node    string
	labels  map[string]string // shared by pods with the same ones
	owner   metav1.OwnerReference
	topKind string // the deployment that it belongs to; "": to none
	topName string

	ready, pending, localData, mirror, staysCordoned bool
	priority                                         int32
	finalizers                                       []string
	deletion                                         time.Time // zero: it is not being deleted
	grace                                            int64     // of the deletion, in seconds
	troubles                                         []trouble
}

// trouble is a container that was started again, was killed for want of memory
// or crashes over and over.
type trouble struct {
	container string
	restarts  int32
	oom       time.Time // when the newest of its ends for want of memory was; zero: none
	looping   bool
	exit      int32
}

// Labels and annotations that tell whose a pod is.
const (
	labelLeaderWorkerSet = "leaderworkerset.sigs.k8s.io/name"
	labelDynamoGraph     = "nvidia.com/dynamo-graph-deployment-name"
	labelTemplateHash    = "pod-template-hash"
)

// running leaves out pods that have ended: they hold no devices and never block.
func running(o *metav1.ListOptions) { o.FieldSelector = "status.phase!=Succeeded,status.phase!=Failed" }

func (m *model) stripPod(obj any) (*pod, bool) {
	o, ok := obj.(*corev1.Pod)
	if !ok || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil, false
	}
	p := &pod{head: headOf(o), node: intern(o.Spec.NodeName), labels: shareLabels(o.Labels), pending: o.Status.Phase == corev1.PodPending}
	if c := metav1.GetControllerOf(o); c != nil {
		p.owner = metav1.OwnerReference{APIVersion: intern(c.APIVersion), Kind: intern(c.Kind), Name: intern(c.Name), UID: c.UID}
	}
	p.topKind, p.topName = topOwner(o.Labels, p.owner)
	for i := range o.Status.Conditions {
		if c := &o.Status.Conditions[i]; c.Type == corev1.PodReady {
			p.ready = c.Status == corev1.ConditionTrue
		}
	}
	p.localData = m.opts.LocalData != nil && m.opts.LocalData(o)
	_, p.mirror = o.Annotations[corev1.MirrorPodAnnotationKey]
	p.staysCordoned = slices.ContainsFunc(o.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Effect != corev1.TaintEffectNoExecute && t.Effect != corev1.TaintEffectPreferNoSchedule &&
			(t.Key == corev1.TaintNodeUnschedulable || t.Key == "" && t.Operator == corev1.TolerationOpExists)
	})
	if o.Spec.Priority != nil {
		p.priority = *o.Spec.Priority
	}
	if len(o.Finalizers) > 0 {
		p.finalizers = slices.Clone(o.Finalizers)
	}
	if o.DeletionTimestamp != nil {
		p.deletion = o.DeletionTimestamp.Time
		if o.DeletionGracePeriodSeconds != nil {
			p.grace = *o.DeletionGracePeriodSeconds
		}
	}
	p.troubles = troublesOf(o.Status.InitContainerStatuses, troublesOf(o.Status.ContainerStatuses, nil))
	return p, true
}

func troublesOf(in []corev1.ContainerStatus, out []trouble) []trouble {
	for i := range in {
		c := &in[i]
		t := trouble{container: intern(c.Name), restarts: c.RestartCount}
		for _, end := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			if end == nil {
				continue
			}
			t.exit = end.ExitCode
			if end.Reason == "OOMKilled" {
				t.oom = end.FinishedAt.Time
			}
		}
		t.looping = c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
		if t.restarts > 0 || t.looping || !t.oom.IsZero() {
			out = append(out, t)
		}
	}
	return out
}

// topOwner names the deployment that a pod belongs to. The two CRDs' operators
// label their pods; a Deployment's ReplicaSet is named after it and the hash that
// its pods carry
// (https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pod-template-hash-label),
// so that ReplicaSets need not be watched. Where that leads to no deployment, as from a
// name that was too long for the hash and was cut, deploymentOf goes by the selectors.
func topOwner(labels map[string]string, owner metav1.OwnerReference) (kind, name string) {
	switch hash := labels[labelTemplateHash]; {
	case labels[labelDynamoGraph] != "":
		return kindDynamoGraph, intern(labels[labelDynamoGraph])
	case labels[labelLeaderWorkerSet] != "":
		return kindLeaderWorkerSet, intern(labels[labelLeaderWorkerSet])
	case owner.Kind == "ReplicaSet" && hash != "" && strings.HasSuffix(owner.Name, "-"+hash):
		return kindAppsDeployment, intern(strings.TrimSuffix(owner.Name, "-"+hash))
	case owner.Kind == kindStatefulSet || owner.Kind == kindDaemonSet:
		return owner.Kind, owner.Name
	}
	return "", ""
}

// shared keeps one copy of each set of labels, which the pods of one template
// have in common. It begins anew when it is full.
var shared = struct {
	sync.Mutex
	sets map[string]map[string]string
}{sets: map[string]map[string]string{}}

const sharedMost = 20_000

// ownLabels differ from pod to pod of one template.
var ownLabels = []string{"statefulset.kubernetes.io/pod-name", "batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/controller-uid"}

func shareLabels(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	for _, own := range ownLabels {
		if _, ok := in[own]; ok {
			return copyLabels(in)
		}
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(in)) {
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(in[k])
		b.WriteByte(0)
	}
	shared.Lock()
	defer shared.Unlock()
	if have, ok := shared.sets[b.String()]; ok {
		return have
	}
	if len(shared.sets) >= sharedMost {
		clear(shared.sets)
	}
	set := copyLabels(in)
	shared.sets[b.String()] = set
	return set
}

func copyLabels(in map[string]string) map[string]string {
	set := make(map[string]string, len(in))
	for k, v := range in {
		set[intern(k)] = intern(v)
	}
	return set
}

// applyPod takes a pod as it is now.
func (m *model) applyPod(was, is *pod) {
	if was != nil && (is == nil || was.node != is.node) {
		m.placePod(was, false)
	}
	if was != nil && is != nil && was.node == is.node {
		delete(m.pods[is.node], was)
		m.pods[is.node][is] = struct{}{}
		if s := m.nodeNames[is.node]; s != nil && !sameForDrain(was, is) {
			s.unjudged = true
		}
	} else if is != nil {
		m.placePod(is, true)
	}
	if is != nil {
		m.troubles(was, is)
	}
}

func (m *model) placePod(p *pod, on bool) {
	set := m.pods[p.node]
	if on {
		if set == nil {
			set = map[*pod]struct{}{}
			m.pods[p.node] = set
		}
		set[p] = struct{}{}
	} else if delete(set, p); len(set) == 0 {
		delete(m.pods, p.node)
	}
	if s := m.nodeNames[p.node]; s != nil {
		m.touchNode(s)
	}
}

// sameForDrain tells whether a drain would treat both alike.
func sameForDrain(a, b *pod) bool {
	return a.ready == b.ready && a.deletion.Equal(b.deletion) && a.grace == b.grace && a.owner == b.owner && a.localData == b.localData && a.pending == b.pending &&
		a.mirror == b.mirror && a.staysCordoned == b.staysCordoned && slices.Equal(a.finalizers, b.finalizers) && maps.Equal(a.labels, b.labels)
}

// troubles counts what went wrong in a pod since it was last seen.
func (m *model) troubles(was, is *pod) {
	for i := range is.troubles {
		t := &is.troubles[i]
		var old trouble
		if was != nil {
			for _, o := range was.troubles {
				if o.container == t.container {
					old = o
				}
			}
		}
		detail := map[string]any{"pod": is.key(), "pod_uid": is.uid, "container": t.container, "restarts": t.restarts, "node": is.node}
		if t.oom.After(old.oom) {
			m.fold("deployment.oom", is, t.oom, detail)
		}
		if t.looping && (!old.looping || t.restarts > old.restarts) {
			loop := maps.Clone(detail)
			loop["exit_code"] = t.exit
			m.fold("deployment.crash_loop", is, time.Time{}, loop)
		}
	}
}
