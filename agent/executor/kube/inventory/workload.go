package inventory

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/opsplane/opsplane/shared/protocol"
)

// Kinds of what runs pods.
const (
	kindAppsDeployment  = "Deployment"
	kindStatefulSet     = "StatefulSet"
	kindDaemonSet       = "DaemonSet"
	kindLeaderWorkerSet = "LeaderWorkerSet"
	kindDynamoGraph     = "DynamoGraphDeployment"
)

// workload is what is kept of what runs pods: a deployment that is reported, or
// a part of a component, or both.
type workload struct {
	head
	kind                    string
	desired, ready, updated int
	image                   string
	available               bool
	// rollout names what is being rolled out or was last; complete tells which.
	// Complete is what runs, and all of it is of the newest revision: not what a
	// partition keeps back, and not where nothing runs.
	rollout  string
	complete bool
	// moving: at first sight a rollout was under way.
	moving bool
	stuck  string // why the controller has given up on the rollout
	// halfway: some of its pods are of before the newest revision, or those of it are
	// not all available. A roll that keeps enough old pods is available all the while.
	halfway bool
	hidden  bool // another deployment made it
	// selector is a Deployment's, of its pods; nil else.
	selector labels.Selector
	part     part // of a component

	reported bool
	changed  int64
	pending  bool // a rollout is under way whose end will be told
}

func workloadKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

func (w *workload) path() string { return workloadKey(w.kind, w.namespace, w.name) }

// made tells whether another deployment made this one: a StatefulSet of a
// LeaderWorkerSet (its workers' belong to the leader pod), anything of Dynamo's.
func made(o metav1.Object) bool {
	c := metav1.GetControllerOf(o)
	if c == nil {
		return false
	}
	switch c.Kind {
	case kindLeaderWorkerSet, kindDynamoGraph, "DynamoComponentDeployment", "PodCliqueSet", "PodClique", "Pod":
		return true
	}
	return false
}

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

func image(t *corev1.PodTemplateSpec) string {
	if len(t.Spec.Containers) == 0 {
		return ""
	}
	return intern(t.Spec.Containers[0].Image)
}

func stripDeployment(obj any) (*workload, bool) {
	o, ok := obj.(*appsv1.Deployment)
	if !ok {
		return nil, false
	}
	w := &workload{head: headOf(o), kind: kindAppsDeployment, desired: replicas(o.Spec.Replicas), ready: int(o.Status.ReadyReplicas),
		updated: int(o.Status.UpdatedReplicas), image: image(&o.Spec.Template), hidden: made(o), part: partOf(o),
		rollout: o.Annotations["deployment.kubernetes.io/revision"]}
	if by, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil { // the API server takes no other
		w.selector = by
	}
	seen := o.Status.ObservedGeneration >= o.Generation
	w.available = w.desired == 0
	for i := range o.Status.Conditions {
		switch c := &o.Status.Conditions[i]; c.Type {
		case appsv1.DeploymentAvailable:
			w.available = c.Status == corev1.ConditionTrue
		case appsv1.DeploymentProgressing:
			w.moving = c.Reason != "NewReplicaSetAvailable"
			if c.Reason == "ProgressDeadlineExceeded" && seen {
				w.stuck = cut(c.Message, 512)
			}
		}
	}
	// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#complete-deployment
	old, missing := int(o.Status.Replicas) != w.updated, w.updated < w.desired
	w.halfway = w.stuck != "" || seen && (old || missing || w.moving && int(o.Status.AvailableReplicas) < w.desired)
	w.complete = w.desired > 0 && seen && w.updated >= w.desired && int(o.Status.Replicas) == w.updated && int(o.Status.AvailableReplicas) >= w.desired
	return w, true
}

func stripStatefulSet(obj any) (*workload, bool) {
	o, ok := obj.(*appsv1.StatefulSet)
	if !ok {
		return nil, false
	}
	s := &o.Status
	w := &workload{head: headOf(o), kind: kindStatefulSet, desired: replicas(o.Spec.Replicas), ready: int(s.ReadyReplicas), updated: int(s.UpdatedReplicas),
		image: image(&o.Spec.Template), hidden: made(o), part: partOf(o), rollout: s.UpdateRevision}
	w.moving = s.CurrentRevision != s.UpdateRevision
	partition := 0
	if r := o.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		partition = int(*r.Partition)
	}
	if !w.moving { // the controller counts no updated replicas when nothing is to be updated
		w.updated = int(s.CurrentReplicas)
	}
	there := s.ObservedGeneration >= o.Generation && w.ready >= w.desired
	w.complete = w.desired > 0 && there && (!w.moving || w.updated >= w.desired)
	// What a partition keeps somebody wants kept: that is neither complete nor halfway.
	// With OnDelete whoever deletes the pods rolls them.
	w.halfway = w.moving && !(there && w.updated >= w.desired-partition) && o.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
	w.available = w.ready >= w.desired || w.moving && w.ready >= w.desired-1 // it updates one at a time
	return w, true
}

func stripDaemonSet(obj any) (*workload, bool) {
	o, ok := obj.(*appsv1.DaemonSet)
	if !ok {
		return nil, false
	}
	w := &workload{head: headOf(o), kind: kindDaemonSet, desired: int(o.Status.DesiredNumberScheduled), ready: int(o.Status.NumberReady),
		updated: int(o.Status.UpdatedNumberScheduled), part: partOf(o)}
	if w.part.component == "" {
		return nil, false // no deployment, and part of nothing that is reported
	}
	// In a large cluster some node is always away: a tenth may be, and one.
	w.available = w.ready*10 >= w.desired*9 || w.desired > 1 && w.desired-w.ready <= 1
	return w, true
}

func sameWorkload(a, b *workload) bool {
	return a.desired == b.desired && a.ready == b.ready && a.updated == b.updated && a.image == b.image && a.available == b.available &&
		a.hidden == b.hidden && a.stuck == b.stuck && a.rollout == b.rollout && a.complete == b.complete
}

// applyWorkload takes a workload as it is now.
func (m *model) applyWorkload(was, is *workload) {
	if was != nil {
		delete(m.workloads, was.path())
		m.leaveComponent(was)
	}
	if is != nil {
		is.reported = is.kind != kindDaemonSet && !is.hidden && !slices.Contains(m.opts.Exclude, is.namespace)
		m.workloads[is.path()] = is
		m.joinComponent(is)
		m.applyDeployment(was, is)
	} else if was.reported {
		m.mark(kindDeployment, was.uid)
		delete(m.byUIDs, was.uid)
		delete(m.folds, foldKey{"deployment.oom", was.uid})
		delete(m.folds, foldKey{"deployment.crash_loop", was.uid})
		m.tell("deployment.deleted", kindDeployment, was.uid, was.key(), time.Time{}, map[string]any{"kind": was.kind})
	}
	for _, w := range []*workload{was, is} {
		if w != nil && w.part.component != "" {
			m.refreshComponent(w.part.component)
		}
	}
}

func (m *model) applyDeployment(was, is *workload) {
	if !is.reported {
		if was != nil && was.reported {
			delete(m.byUIDs, was.uid)
			m.mark(kindDeployment, was.uid)
		}
		return
	}
	m.byUIDs[is.uid] = is
	if was == nil || !was.reported {
		is.pending = is.moving && is.rollout != "" && is.rollout != "1" && m.quiet
		is.changed = m.mark(kindDeployment, is.uid)
		m.tell("deployment.created", kindDeployment, is.uid, is.key(), time.Time{}, map[string]any{"kind": is.kind, "image": is.image})
		return
	}
	is.changed, is.pending = was.changed, was.pending
	if sameWorkload(was, is) {
		return
	}
	is.changed = m.mark(kindDeployment, is.uid)
	m.deploymentEvents(was, is)
}

func (m *model) deploymentEvents(was, is *workload) {
	tell := func(typ string, detail map[string]any) {
		detail["kind"], detail["desired"], detail["ready"] = is.kind, is.desired, is.ready
		m.tell(typ, kindDeployment, is.uid, is.key(), time.Time{}, detail)
	}
	if was.rollout != "" && is.rollout != was.rollout {
		is.pending = true
	}
	if is.pending && is.complete {
		is.pending = false
		tell("deployment.rolled", map[string]any{"revision": is.rollout, "image": is.image, "updated": is.updated})
	}
	if is.stuck != "" && was.stuck == "" {
		tell("deployment.rollout_stuck", map[string]any{"reason": is.stuck, "updated": is.updated})
	}
	switch {
	case !was.available && is.available:
		tell("deployment.available", map[string]any{})
	case was.available && !is.available:
		tell("deployment.unavailable", map[string]any{})
	}
}

// deploymentOf is the workload that a pod belongs to; nil: none that is known. What
// was made anew under a name has none of the pods of before.
func (m *model) deploymentOf(p *pod) *workload {
	w := m.workloads[workloadKey(p.topKind, p.namespace, p.topName)]
	switch {
	case p.topKind == kindStatefulSet || p.topKind == kindDaemonSet:
		if w != nil && w.uid != string(p.owner.UID) {
			return nil
		}
		return w
	case w != nil || p.topKind != kindAppsDeployment:
		return w
	}
	// Its ReplicaSet's name was cut, or another Deployment has adopted it.
	for _, d := range m.workloads {
		if d.kind != kindAppsDeployment || d.namespace != p.namespace || d.selector == nil || d.selector.Empty() || !d.selector.Matches(labels.Set(p.labels)) {
			continue
		}
		if w != nil {
			return nil // it could be either's
		}
		w = d
	}
	return w
}

func (m *model) byUID(uid string) *workload { return m.byUIDs[uid] }

func (m *model) reportDeployment(w *workload) protocol.Deployment {
	return protocol.Deployment{UID: w.uid, Name: w.key(), Kind: w.kind, Revision: m.revision(w.changed), Desired: w.desired, Ready: w.ready,
		Updated: w.updated, Image: w.image, Available: w.available}
}
