package deployment

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watcher follows one object, its pods and what the cluster says of it. What the
// API server streams wakes it; nothing is asked for again.
type watcher struct {
	object, pods, events cache.SharedIndexInformer // events: nil where conditions tell
	of                   *rollout
	changed              chan struct{}

	mu      sync.Mutex
	unheard map[string]error // by resource and verb, what the last try met
}

// watch begins to follow d until ctx ends.
func (r *roller) watch(ctx context.Context, d *rollout) (*watcher, error) {
	w := &watcher{of: d, changed: make(chan struct{}, 1), unheard: map[string]error{}}
	namespace := d.object.GetNamespace()
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, d.object.GetName()).String()
	objects := r.Dynamic.Resource(d.resource).Namespace(namespace)
	w.object = w.informer(d.resource.Resource, &unstructured.Unstructured{}, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = named
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = named
			return objects.Watch(ctx, o)
		},
	})
	pods := r.Client.CoreV1().Pods(namespace)
	w.pods = w.informer("pods", &corev1.Pod{}, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = d.selector.String()
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = d.selector.String()
			return pods.Watch(ctx, o)
		},
	})
	all := []cache.SharedIndexInformer{w.object, w.pods}
	if d.kind.events {
		events := r.Client.CoreV1().Events(namespace)
		about := fields.Set{"involvedObject.kind": "StatefulSet", "involvedObject.name": d.object.GetName(), "reason": "FailedCreate"}.String()
		w.events = w.informer("events", &corev1.Event{}, cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = about
				return events.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = about
				return events.Watch(ctx, o)
			},
		})
		all = append(all, w.events)
	}
	var synced []cache.InformerSynced
	for _, i := range all {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { w.wake() }, UpdateFunc: func(_, _ any) { w.wake() }, DeleteFunc: func(any) { w.wake() },
		}); err != nil {
			return nil, fmt.Errorf("watch %s: %w", d.name(), err)
		}
		synced = append(synced, i.HasSynced)
		go i.RunWithContext(ctx)
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) { // an empty list makes no event
			w.wake()
		}
	}()
	return w, nil
}

// informer keeps what a source tells, and whether it can be heard: each list and
// watch that is answered says so, an empty one too.
func (w *watcher) informer(name string, of runtime.Object, lw cache.ListWatch) cache.SharedIndexInformer {
	list, watches := lw.ListWithContextFunc, lw.WatchFuncWithContext
	lw.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		l, err := list(ctx, o)
		w.heard(ctx, "list "+name, err)
		return l, err
	}
	lw.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		stream, err := watches(ctx, o)
		w.heard(ctx, "watch "+name, err)
		return stream, err
	}
	i := cache.NewSharedIndexInformer(&source{&lw}, of, 0, cache.Indexers{})
	// Neither is running yet, so neither can fail.
	_ = i.SetTransform(cache.TransformFunc(trim))
	_ = i.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	return i
}

// source is listed and then watched. Streaming the list is for long ones; this
// way the same rights are needed whatever the API server's version.
type source struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what client-go asks.
func (*source) IsWatchListSemanticsUnSupported() bool { return true }

// trim drops what nobody reads.
func trim(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

func (w *watcher) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// heard books how a list or a watch was answered. That a version is too old is how
// a watch that fell behind ends: the informer lists again.
func (w *watcher) heard(ctx context.Context, what string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	w.mu.Lock()
	if err == nil {
		delete(w.unheard, what)
	} else {
		w.unheard[what] = err
	}
	w.mu.Unlock()
	w.wake()
}

func (w *watcher) synced() bool {
	return w.object.HasSynced() && w.pods.HasSynced() && (w.events == nil || w.events.HasSynced())
}

// trouble tells why nothing is heard: a right is missing, or the API server does
// not answer.
func (w *watcher) trouble() (denied, away error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.unheard {
		if apierrors.IsForbidden(err) {
			denied = err
		} else {
			away = err
		}
	}
	return denied, away
}

// scene is what was heard; nil when the object is gone, or another has its name.
func (w *watcher) scene() (*scene, error) {
	list := w.object.GetStore().List()
	if len(list) == 0 {
		return nil, nil
	}
	u, ok := list[0].(*unstructured.Unstructured)
	if !ok || u.GetUID() != w.of.object.GetUID() {
		return nil, nil
	}
	d, err := read(w.of.kind, w.of.resource, u)
	if err != nil {
		return nil, err
	}
	s := &scene{rollout: d}
	for _, o := range w.pods.GetStore().List() {
		if p, ok := o.(*corev1.Pod); ok {
			s.pods = append(s.pods, p)
		}
	}
	if w.events != nil {
		for _, o := range w.events.GetStore().List() {
			if e, ok := o.(*corev1.Event); ok {
				s.hear(e)
			}
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

// look reads object and pods once.
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
