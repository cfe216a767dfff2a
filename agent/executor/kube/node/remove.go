package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// call is what issue needs to know: the plan itself is the drive's alone.
type call struct {
	p               *planned // to name it in the result
	uid             types.UID
	namespace, name string
	stage           int
	grace           int64 // seconds: what a deletion names, and what an eviction comes to
	lost, finished  bool
	until           *metav1.Time  // when its grace ends, of one that was told to stop before the call
	within          time.Duration // how long it may take; 0: as calls are given
}

// evictPod is an effect of kind (b): it names the UID of one planned pod.
func (d *drive) evictPod(ctx context.Context, k call) (cluster.Reply, *executor.Outcome) {
	ev := eviction(k.namespace, k.name, k.uid, d.p.GracePeriodSeconds)
	return d.repeatable(ctx, k, "evict", func(ctx context.Context) error { return d.send(ctx, ev) })
}

func (k call) key() string { return k.namespace + "/" + k.name }

// Stages of the escalation that on_deadline: force asks for.
const (
	withGrace    = 1 // deleted past the disruption budgets, with its grace period
	withoutGrace = 2 // deleted at once: nobody waits for the kubelet any more
)

// deletePod is an effect of kind (b), as an eviction is; it asks no budget. A pod
// that is deleted without grace leaves the API at once, whatever its kubelet does.
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-forced
func (d *drive) deletePod(ctx context.Context, k call) (cluster.Reply, *executor.Outcome) {
	what := "delete without grace"
	if k.stage == withGrace {
		what = fmt.Sprintf("delete with %d s of grace", k.grace)
	}
	o := metav1.DeleteOptions{GracePeriodSeconds: &k.grace, Preconditions: &metav1.Preconditions{UID: &k.uid}}
	return d.repeatable(ctx, k, what, func(ctx context.Context) error {
		return d.c.Client.CoreV1().Pods(k.namespace).Delete(ctx, k.name, o)
	})
}

func (d *drive) repeatable(ctx context.Context, k call, what string, send func(ctx context.Context) error) (cluster.Reply, *executor.Outcome) {
	if k.within > 0 {
		return d.c.RepeatableWithin(ctx, d.t, k.within, what, "pod/"+string(k.uid), k.key(), send)
	}
	return d.c.Repeatable(ctx, d.t, what, "pod/"+string(k.uid), k.key(), send)
}

// ownGrace is the pod's own grace period in seconds; preStop hooks run within it.
// https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/#hook-handler-execution
func ownGrace(p *corev1.Pod) int64 {
	if p == nil || p.Spec.TerminationGracePeriodSeconds == nil {
		return corev1.DefaultTerminationGracePeriodSeconds
	}
	return *p.Spec.TerminationGracePeriodSeconds
}

// looked is what a pod was found to be after a call whose answer is not known.
type looked struct {
	pod  *corev1.Pod
	gone bool
	err  error
}

// lookAt reads a pod whose last call is not known to have been refused.
func (d *drive) lookAt(ctx context.Context, k call) *looked {
	rctx, cancel := d.c.Read(ctx)
	defer cancel()
	pod, err := d.c.Client.CoreV1().Pods(k.namespace).Get(rctx, k.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != k.uid:
		return &looked{gone: true}
	case err != nil:
		return &looked{err: err}
	}
	return &looked{pod: pod}
}

func (d *drive) found(p *planned, l *looked) {
	now := d.c.Now()
	open, doubt, accepted := p.unheard.open, p.doubt, p.accepted
	p.unheard.open, p.doubt = false, nil
	switch {
	case l.gone:
		p.lost, p.isGone, p.gone, p.taken = false, true, now, p.taken || p.unsure
	case l.err != nil && apierrors.IsForbidden(l.err):
		o := broken(l.err)
		d.worst = &o
	case l.err != nil: // nor is anything else answered
		p.unheard = unheard{}
		p.refused(&refusal{code: "api_unavailable", rule: "api_server", why: l.err.Error()}, now, 0)
	default:
		p.taken = p.taken || p.unsure && l.pod.DeletionTimestamp != nil
		p.unsure = p.unsure && l.pod.DeletionTimestamp != nil // else none was
		p.lost, p.accepted = false, false
		p.saw(l.pod)
		d.noteOpen(p)
		p.open = forcing{} // else it came to nothing
		switch {
		case p.terminating() && p.evicted.IsZero():
			p.evicted = askedAt(l.pod)
		case p.terminating() || !open && doubt == nil && !accepted:
		case p.finished: // it never stands in the way
			p.not, p.evicted = now.Add(time.Hour), time.Time{}
		case accepted:
			p.withoutEffect(now)
		case doubt != nil:
			p.refused(doubt, now, 0)
		default:
			p.refused(p.unheard.refusal(p.name, d.waits.why(p.unheard.stage)), now, 0)
		}
	}
}

// askedAt is when a pod was told to stop: its deletionTimestamp is when its grace
// ends.
func askedAt(p *corev1.Pod) time.Time {
	at := p.DeletionTimestamp.Time
	if p.DeletionGracePeriodSeconds != nil {
		at = at.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
	}
	return at.UTC()
}

func jitter(d time.Duration) time.Duration { return d - d/5 + rand.N(d/5*2+1) }
