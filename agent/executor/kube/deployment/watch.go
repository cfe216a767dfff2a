package deployment

import (
	"context"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/follow"
)

// watcher follows one object, its pods and what the cluster says of it. What the
// API server streams wakes it; nothing is asked for again.
type watcher struct {
	*follow.Group
	roller *roller
	of     *rollout
	object *follow.Feed[*unstructured.Unstructured]
	pods   *follow.Feed[*corev1.Pod]
	sets   *follow.Feed[*appsv1.ReplicaSet] // nil but of a Deployment
	events *follow.Feed[*corev1.Event]      // nil where conditions tell
}

// watch begins to follow d until ctx ends.
func (r *roller) watch(ctx context.Context, d *rollout) *watcher {
	w := &watcher{Group: follow.NewGroup(ctx, r.Pulse), roller: r, of: d}
	namespace := d.object.GetNamespace()
	named := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, d.object.GetName()).String()}
	w.object = follow.Join(ctx, w.Group, follow.Of(d.resource.Resource, r.Read, r.Dynamic.Resource(d.resource).Namespace(namespace), named), trim[*unstructured.Unstructured])
	w.pods = follow.Join(ctx, w.Group, follow.Of("pods", r.Read, r.Client.CoreV1().Pods(namespace), metav1.ListOptions{LabelSelector: d.selector.String()}), trim[*corev1.Pod])
	if d.kind == deployments {
		w.sets = follow.Join(ctx, w.Group, follow.Of("replicasets", r.Read, r.Client.AppsV1().ReplicaSets(namespace), metav1.ListOptions{LabelSelector: d.selector.String()}), owner)
	}
	if d.kind.events {
		about := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.kind": "StatefulSet", "involvedObject.name": d.object.GetName(), "reason": "FailedCreate"}.String()}
		w.events = follow.Join(ctx, w.Group, follow.Of("events", r.Read, r.Client.CoreV1().Events(namespace), about), trim[*corev1.Event])
	}
	return w
}

// trim drops what nobody reads.
func trim[T metav1.Object](o runtime.Object) T {
	v := o.(T)
	v.SetManagedFields(nil)
	return v
}

// owner keeps of a ReplicaSet whose it is.
func owner(o runtime.Object) *appsv1.ReplicaSet {
	from := o.(*appsv1.ReplicaSet)
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{UID: from.UID, OwnerReferences: from.OwnerReferences}}
}

// own takes down whose a ReplicaSet is.
func (s *scene) own(set *appsv1.ReplicaSet) {
	if s.sets == nil {
		s.sets = map[types.UID]types.UID{}
	}
	s.sets[set.UID] = ""
	if of := metav1.GetControllerOf(set); of != nil {
		s.sets[set.UID] = of.UID
	}
}

// scene is what was heard; nil when the object is gone, or another has its name.
func (w *watcher) scene() (*scene, error) {
	var u *unstructured.Unstructured // one of another UID may be there as well
	objects, _ := w.object.In("")
	for _, o := range objects {
		if o.GetUID() == w.of.object.GetUID() {
			u = o
		}
	}
	if u == nil {
		return nil, nil
	}
	d, err := w.roller.read(w.of.kind, w.of.resource, u)
	if err != nil {
		return nil, err
	}
	s := &scene{rollout: d}
	s.pods, _ = w.pods.In("")
	if w.sets != nil {
		sets, _ := w.sets.In("")
		for _, set := range sets {
			s.own(set)
		}
	}
	if w.events != nil {
		events, _ := w.events.In("")
		for _, e := range events {
			s.hear(e)
		}
	}
	return s, nil
}

// hear takes an event that says why a pod could not be made since the restart,
// as long as pods are missing.
func (s *scene) hear(e *corev1.Event) {
	at := e.LastTimestamp.Time
	if at.IsZero() {
		at = e.EventTime.Time
	}
	if s.record == nil || at.Before(s.record.At) || s.total >= s.desired || !strings.HasPrefix(e.Reason, "FailedCreate") {
		return
	}
	since := e.FirstTimestamp.Time
	if since.Before(s.record.At) {
		since = s.record.At
	}
	s.events = append(s.events, refusedPods(strings.ToLower(s.kind.name)+"/"+s.name(), e.Message, since))
}

// look reads the pods once, and whose they are.
func (r *roller) look(ctx context.Context, d *rollout) (*scene, error) {
	ctx, cancel := r.Read(ctx)
	defer cancel()
	list, err := r.Client.CoreV1().Pods(d.object.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: d.selector.String()})
	if err != nil {
		return nil, err
	}
	s := &scene{rollout: d}
	for i := range list.Items {
		s.pods = append(s.pods, &list.Items[i])
	}
	if d.kind != deployments {
		return s, nil
	}
	// After the pods: a pod's ReplicaSet is there before it.
	sets, err := r.Client.AppsV1().ReplicaSets(d.object.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: d.selector.String()})
	if err != nil {
		return nil, err
	}
	for i := range sets.Items {
		s.own(&sets.Items[i])
	}
	return s, nil
}

// timer is when time alone is worth another look; nil: never.
func timer(at, now time.Time) (<-chan time.Time, func()) {
	if at.IsZero() {
		return nil, func() {}
	}
	t := time.NewTimer(max(at.Sub(now), time.Millisecond))
	return t.C, func() { t.Stop() }
}
