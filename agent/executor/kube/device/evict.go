package device

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// How soon an eviction that was refused is asked for again, and how long a server
// may put it off.
const (
	paceLeast = 500 * time.Millisecond
	paceMost  = 5 * time.Second
	mostAfter = 30 * time.Second
)

// evicting is a wait for pods to be gone by UID.
type evicting struct {
	e     *devices
	t     *executor.Task
	pods  []*corev1.Pod
	left  map[types.UID]*corev1.Pod // as it was seen last
	total int
	// told are the pods whose eviction was asked for at least once, lost those of
	// them whose answer does not tell whether it was taken; stopping are those that
	// stop, whoever told them to: nothing is asked of them any more.
	told, lost, stopping map[types.UID]bool
	why                  map[types.UID]protocol.Blocker
	after                time.Duration // what the server asked for, in this round
}

// evictAll evicts pods and waits until each is gone by UID.
func (e *devices) evictAll(ctx context.Context, t *executor.Task, d target, pods []*corev1.Pod, total int) *executor.Outcome {
	under, cancel := context.WithCancel(ctx)
	defer cancel()
	defer blocked(t)
	events, failed := e.follow(under, "", metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node})
	w := &evicting{e: e, t: t, pods: pods, total: total, left: map[types.UID]*corev1.Pod{}, told: map[types.UID]bool{}, lost: map[types.UID]bool{},
		stopping: map[types.UID]bool{}, why: map[types.UID]protocol.Blocker{}}
	for _, p := range pods {
		w.left[p.UID] = p
		w.see(p, false)
	}
	pace := paceLeast
	again := time.NewTimer(0)
	defer again.Stop()
	for len(w.left) > 0 {
		select {
		case s, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			if w.see(s.pod, s.gone) {
				w.say()
			}
		case err := <-failed:
			if apierrors.IsForbidden(err) {
				o := cluster.Broken(err)
				return &o
			}
		case <-again.C:
			if stop := w.ask(ctx); stop != nil {
				return stop
			}
			w.say()
			again.Reset(max(pace+rand.N(pace/4), min(w.after, mostAfter)))
			pace = min(2*pace, paceMost)
		case <-t.Cancelled:
			o := executor.Waiting("cancelled", w.say())
			return &o
		case <-ctx.Done():
			message := w.say()
			o := executor.Waiting("interrupted", message)
			for _, p := range pods {
				if b, ok := w.why[p.UID]; ok && w.left[p.UID] != nil {
					o = executor.Waiting(outcomeCode(b.Code), message)
					break
				}
			}
			return &o
		}
	}
	w.say()
	return nil
}

// see takes a pod as it is now and tells whether that is news.
func (w *evicting) see(p *corev1.Pod, gone bool) bool {
	switch {
	case w.left[p.UID] == nil:
		return false
	case w.lost[p.UID] && (gone || p.DeletionTimestamp != nil): // it was taken
		delete(w.lost, p.UID)
		w.evicted(p)
	}
	if gone || finished(p) {
		delete(w.left, p.UID)
		return true
	}
	w.left[p.UID] = p
	if p.DeletionTimestamp == nil {
		return false
	}
	w.stopping[p.UID], w.why[p.UID] = true, stopping(p)
	return true
}

// evicted remembers a pod for the result.
func (w *evicting) evicted(p *corev1.Pod) {
	w.e.note(w.t.Assignment, func(o *outcome) { o.drained = append(o.drained, key(p)) })
}

// say shows how far it is.
func (w *evicting) say() string {
	var now []protocol.Blocker
	message := fmt.Sprintf("%d of %d pods gone", w.total-len(w.left), w.total)
	for _, p := range w.pods {
		if b, ok := w.why[p.UID]; ok && w.left[p.UID] != nil {
			if now = append(now, b); len(now) == 1 {
				message += fmt.Sprintf(", waiting for %s: %s", strings.Replace(b.Resource, "/", " ", 1), b.Detail)
			}
		}
	}
	blocked(w.t, now...)
	w.t.Progress(w.total-len(w.left), w.total, "pods", message)
	return message
}

// ask asks for the eviction of each pod that does not stop yet. One that was asked
// for before is looked at first: its answer may have been lost, and what it asked
// for been done.
func (w *evicting) ask(ctx context.Context) *executor.Outcome {
	w.after = 0
	for _, p := range w.pods {
		if w.left[p.UID] == nil || w.stopping[p.UID] {
			continue
		}
		if executor.Halted(ctx, w.t) != "" {
			return nil
		}
		if w.told[p.UID] {
			now, err := w.e.lookAt(ctx, p)
			if apierrors.IsForbidden(err) {
				o := cluster.Broken(err)
				return &o
			}
			if err != nil {
				w.why[p.UID] = protocol.Blocker{Code: "api_unavailable", Resource: "pod/" + key(p), Detail: err.Error()}
				continue
			}
			if now == nil {
				w.see(p, true)
			} else {
				w.see(now, false)
			}
			if w.left[p.UID] == nil || w.stopping[p.UID] {
				continue
			}
		}
		w.told[p.UID] = true
		if stop := w.evict(ctx, w.left[p.UID]); stop != nil {
			return stop
		}
	}
	return nil
}

// lookAt reads a pod, nil: it is gone, or another has its name. It lists, for the
// role has that right already.
func (e *devices) lookAt(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	read, cancel := e.c.Read(ctx)
	defer cancel()
	list, err := e.c.Client.CoreV1().Pods(p.Namespace).List(read, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, p.Name).String()})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].UID == p.UID {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// evict asks for one eviction of one pod, by UID, and keeps what was said to it.
func (w *evicting) evict(ctx context.Context, p *corev1.Pod) *executor.Outcome {
	r, stop := w.e.c.Repeatable(ctx, w.t, "evict pod", "pod/"+string(p.UID), key(p), func(ctx context.Context) error {
		return w.e.c.Client.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
	})
	switch {
	case stop != nil && stop.ErrorCode == "api_unavailable": // later
		w.lost[p.UID] = true
		w.why[p.UID] = protocol.Blocker{Code: stop.ErrorCode, Resource: "pod/" + key(p), Detail: stop.Detail}
		return nil
	case stop != nil:
		return stop
	case r.Category == cluster.OK:
		w.stopping[p.UID], w.why[p.UID] = true, stopping(p)
		delete(w.lost, p.UID)
		w.evicted(p)
		return nil
	case r.NotFound() || r.Category == cluster.Conflict: // gone, or another of its name
		delete(w.left, p.UID)
		return nil
	}
	w.lost[p.UID] = w.lost[p.UID] || r.Category == cluster.Timeout || r.Category == cluster.Failed
	w.after = max(w.after, r.RetryAfter)
	b := refusal(p, r)
	if b.Code == "two_pdbs" {
		o := executor.Permanent(b.Code, b.Detail)
		return &o
	}
	w.why[p.UID] = b
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

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

func stopping(p *corev1.Pod) protocol.Blocker {
	b := protocol.Blocker{Code: "terminating", Resource: "pod/" + key(p), Detail: "it is stopping"}
	if p.DeletionTimestamp != nil {
		b.Detail = "it is stopping, until " + p.DeletionTimestamp.UTC().Format(time.RFC3339) + " at the latest"
		if len(p.Finalizers) > 0 {
			b.Code, b.Rule = "finalizer", p.Finalizers[0]
			b.Detail = "it was told to stop and is kept by its finalizers " + strings.Join(p.Finalizers, ", ")
		}
	}
	return b
}
