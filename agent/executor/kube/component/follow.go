package component

import (
	"context"
	"maps"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// follower watches the Jobs of one operation and their pods.
type follower struct {
	*follow.Group
	jobs *follow.Feed[*batchv1.Job]
	pods *follow.Feed[*corev1.Pod]
}

func (u *upgrader) follow(ctx context.Context, op string) *follower {
	f := &follower{Group: follow.NewGroup(ctx, u.Pulse)}
	o := metav1.ListOptions{LabelSelector: selector(op)}
	f.jobs = follow.Join(ctx, f.Group, follow.Of("jobs", u.Read, u.Client.BatchV1().Jobs(u.Namespace), o), func(o runtime.Object) *batchv1.Job { return o.(*batchv1.Job) })
	f.pods = follow.Join(ctx, f.Group, follow.Of("pods", u.Read, u.Client.CoreV1().Pods(u.Namespace), o), func(o runtime.Object) *corev1.Pod { return o.(*corev1.Pod) })
	return f
}

func (f *follower) scene() (s scene) {
	s.jobs, _ = f.jobs.In("")
	s.pods, _ = f.pods.In("")
	return s
}

// await calls judge with each new scene until it returns an outcome, or the step
// has to stop: then the outcome of stopped.
func (u *upgrader) await(ctx context.Context, t *executor.Task, judge func(scene) *executor.Outcome, stopped func(why string) executor.Outcome) executor.Outcome {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	f := u.follow(watching, t.Assignment.Operation)
	cancelled := t.Cancelled
	if t.Step.Cleanup {
		cancelled = nil
	}
	var away *cluster.Unanswered
	var asked <-chan map[types.UID]protocol.Blocker // why there are no pods; nil: it is not asked for
	refused := map[types.UID]protocol.Blocker{}
	look := time.NewTicker(podlessEvery)
	defer look.Stop()
	since := map[types.UID]time.Time{} // of Jobs that have ended and whose pods are not seen
	unseen := time.NewTimer(0)         // until what is not seen yet is judged
	defer unseen.Stop()
	for {
		select {
		case <-f.Changed():
		case <-unseen.C:
		case <-look.C:
			if asked == nil && away == nil && f.Ready() {
				asked = u.podless(watching, f.scene())
			}
		case said := <-asked:
			asked = nil
			maps.Copy(refused, said)
		case <-ctx.Done():
		case <-cancelled:
		}
		if halt := executor.Halted(ctx, t); halt != "" {
			return stopped(halt)
		}
		was := away
		var denied error
		away, denied = f.Trouble()
		switch {
		case denied != nil:
			return u.believed(t, cluster.Broken(denied))
		case away != nil:
			t.Progress(0, 1, "components", "the API server does not answer; the Job goes on by itself")
			tell(t, []protocol.Blocker{away.Blocker()})
			continue
		case was != nil:
			tell(t, nil) // until it is judged again
		}
		if !f.Ready() {
			continue
		}
		s := f.scene()
		s.refused = refused
		if left := s.unseen(since, u.Now()); left > 0 {
			unseen.Reset(left)
			continue
		}
		if o := judge(s); o != nil {
			return *o
		}
	}
}

// unseenMost is how long the pod of a Job that has ended may stay unseen: Jobs and pods come
// by two watches, neither of which waits for the other. One that ended longAgo has none.
const (
	unseenMost = 5 * time.Second
	longAgo    = time.Minute
)

// unseen is how long to wait yet for pods of Jobs that have ended; since keeps from when.
func (s scene) unseen(since map[types.UID]time.Time, now time.Time) (left time.Duration) {
	for _, j := range s.jobs {
		at, over := cluster.JobEndOf(j)
		if !over || len(s.podsOf(j)) > 0 || !at.IsZero() && now.Sub(at) > longAgo {
			continue
		}
		if since[j.UID].IsZero() {
			since[j.UID] = now
		}
		left = max(left, unseenMost-now.Sub(since[j.UID]))
	}
	return left
}

// look reads the operation's Jobs and pods once.
func (u *upgrader) look(ctx context.Context, op string) (scene, error) {
	return u.list(ctx, selector(op))
}

// list reads the Jobs and pods that a selector finds, once.
func (u *upgrader) list(ctx context.Context, selector string) (scene, error) {
	ctx, cancel := u.Read(ctx)
	defer cancel()
	var s scene
	o := metav1.ListOptions{LabelSelector: selector}
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
