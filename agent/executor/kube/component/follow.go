package component

import (
	"context"
	"fmt"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
)

// follower watches the Jobs of one operation and their pods.
type follower struct {
	jobs, pods cache.SharedIndexInformer
	changed    chan struct{}

	mu      sync.Mutex
	trouble map[string]error // by resource and verb, what the last try met
}

func (u *upgrader) follow(ctx context.Context, op string) (*follower, error) {
	f := &follower{changed: make(chan struct{}, 1), trouble: map[string]error{}}
	jobs, pods := u.Client.BatchV1().Jobs(u.Namespace), u.Client.CoreV1().Pods(u.Namespace)
	f.jobs = f.informer("jobs", &batchv1.Job{}, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector(op)
			return jobs.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector(op)
			return jobs.Watch(ctx, o)
		},
	})
	f.pods = f.informer("pods", &corev1.Pod{}, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector(op)
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector(op)
			return pods.Watch(ctx, o)
		},
	})
	for _, i := range []cache.SharedIndexInformer{f.jobs, f.pods} {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { f.wake() }, UpdateFunc: func(_, _ any) { f.wake() }, DeleteFunc: func(any) { f.wake() },
		}); err != nil {
			return nil, fmt.Errorf("watch Jobs: %w", err)
		}
		go i.RunWithContext(ctx)
	}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), f.jobs.HasSynced, f.pods.HasSynced) { // an empty list makes no event
			f.wake()
		}
	}()
	return f, nil
}

// informer keeps what a source tells, and whether it can be heard: each list and
// watch that is answered says so, an empty one too.
func (f *follower) informer(name string, of runtime.Object, lw cache.ListWatch) cache.SharedIndexInformer {
	list, watches := lw.ListWithContextFunc, lw.WatchFuncWithContext
	lw.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		l, err := list(ctx, o)
		f.heard(ctx, "list "+name, err)
		return l, err
	}
	lw.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := watches(ctx, o)
		f.heard(ctx, "watch "+name, err)
		return w, err
	}
	i := cache.NewSharedIndexInformer(&source{&lw}, of, 0, cache.Indexers{})
	_ = i.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}) // it is not running yet, so this cannot fail
	return i
}

// source is listed and then watched, so that the same rights are needed whatever
// the API server's version.
type source struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what client-go asks.
func (*source) IsWatchListSemanticsUnSupported() bool { return true }

func (f *follower) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// heard books how a list or a watch was answered. That a version is too old is how
// a watch that fell behind ends: the informer lists again.
func (f *follower) heard(ctx context.Context, what string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	f.mu.Lock()
	if err == nil {
		delete(f.trouble, what)
	} else {
		f.trouble[what] = err
	}
	f.mu.Unlock()
	f.wake()
}

// deaf tells why nothing is heard: a right is missing, or the API server does not
// answer.
func (f *follower) deaf() (denied, away error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, err := range f.trouble {
		if apierrors.IsForbidden(err) {
			denied = err
		} else {
			away = err
		}
	}
	return denied, away
}

func (f *follower) scene() scene {
	var s scene
	for _, o := range f.jobs.GetStore().List() {
		if j, ok := o.(*batchv1.Job); ok {
			s.jobs = append(s.jobs, j)
		}
	}
	for _, o := range f.pods.GetStore().List() {
		if p, ok := o.(*corev1.Pod); ok {
			s.pods = append(s.pods, p)
		}
	}
	return s
}

// await calls judge with each new scene until it returns an outcome, or the step
// has to stop: then the outcome of stopped.
func (u *upgrader) await(ctx context.Context, t *executor.Task, judge func(scene) *executor.Outcome, stopped func(why string) executor.Outcome) executor.Outcome {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	f, err := u.follow(watching, t.Assignment.Operation)
	if err != nil {
		return executor.Transient("api_error", err.Error())
	}
	cancelled := t.Cancelled
	if t.Step.Cleanup {
		cancelled = nil
	}
	for {
		select {
		case <-f.changed:
		case <-ctx.Done():
		case <-cancelled:
		}
		if halt := executor.Halted(ctx, t); halt != "" {
			return stopped(halt)
		}
		denied, away := f.deaf()
		switch {
		case denied != nil:
			return u.believed(t, cluster.Broken(denied))
		case away != nil:
			t.Progress(0, 1, "components", "the API server does not answer; the Job goes on by itself")
			continue
		case !f.jobs.HasSynced() || !f.pods.HasSynced():
			continue
		}
		if o := judge(f.scene()); o != nil {
			return *o
		}
	}
}

// look reads the operation's Jobs and pods once.
func (u *upgrader) look(ctx context.Context, op string) (scene, error) {
	ctx, cancel := u.Read(ctx)
	defer cancel()
	var s scene
	o := metav1.ListOptions{LabelSelector: selector(op)}
	jobs, err := u.Client.BatchV1().Jobs(u.Namespace).List(ctx, o)
	if err != nil {
		return s, err
	}
	pods, err := u.Client.CoreV1().Pods(u.Namespace).List(ctx, o)
	if err != nil {
		return s, err
	}
	for i := range jobs.Items {
		s.jobs = append(s.jobs, &jobs.Items[i])
	}
	for i := range pods.Items {
		s.pods = append(s.pods, &pods.Items[i])
	}
	return s, nil
}

// unread is the outcome of a step that could not read the API server: it waits,
// bounded by the operation's deadline, unless a right is missing.
func (u *upgrader) unread(t *executor.Task, err error) executor.Outcome {
	o := u.believed(t, cluster.Broken(err))
	if o.Class == operation.OutcomeTransient {
		o.Class, o.After = operation.OutcomeWaiting, again
	}
	return o
}
