package node

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// vainly is a drain of pods whose evictions are accepted and do nothing until the nth of
// each pod. It runs until its end.
type vainly struct {
	*outcomeBench
	mu      sync.Mutex
	asked   map[string][]time.Time // evictions, by pod
	deleted int
	notes   []string
	shown   []protocol.Blocker // when first told
	last    []protocol.Blocker
	first   time.Duration // when told first
	begun   time.Time
}

func drainVainly(t *testing.T, within time.Duration, payload string, works int, pods ...string) (*vainly, executor.Outcome) {
	t.Helper()
	b := &vainly{asked: map[string][]time.Time{}}
	b.outcomeBench = outcomeSetup(t)
	for _, name := range pods {
		p := aPod(name)
		p.Spec.NodeName = "n"
		if err := b.client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
		if len(ev.DeleteOptions.DryRun) > 0 {
			return nil
		}
		b.mu.Lock()
		b.asked[ev.Name] = append(b.asked[ev.Name], time.Now())
		n := len(b.asked[ev.Name])
		b.mu.Unlock()
		if n != works {
			return nil
		}
		return b.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), ev.Namespace, ev.Name)
	}
	b.client.PrependReactor("delete", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.deleted++
		return false, nil, nil
	})
	b.task.Assignment.Payload = []byte(payload)
	for _, step := range []string{"preflight", "cordon"} {
		if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
			t.Fatalf("%s: %+v", step, o)
		}
	}
	b.begun = time.Now()
	b.task.Assignment.Deadline = b.begun.Add(within)
	b.task.Note = func(code, text string) { b.notes = append(b.notes, code+": "+text) }
	b.task.Blocked = func(now []protocol.Blocker) {
		if len(b.shown) == 0 && len(now) > 0 {
			b.shown, b.first = now, time.Since(b.begun)
		}
		b.last = now
	}
	ctx, cancel := b.until(within)
	defer cancel()
	b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
	o := b.e.drain().Steps["evict"].Execute(ctx, b.task)
	b.task.Assignment.Steps[2].Phase = operation.StepFailed
	return b, o
}

// Evictions that are accepted and do nothing, as where a webhook makes dry runs of them,
// are told of each pod, asked for at a pace that backs off, and the cause at the end.
func TestEvictionsWithoutEffect(t *testing.T) {
	t.Parallel()
	for name, within := range map[string]time.Duration{"two minutes": 2 * time.Minute, "a deadline before the watch is given up": 6 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b, o := drainVainly(t, within, "", 0, "a", "b")
				if o.Class != operation.OutcomeWaiting || o.ErrorCode != codeNoEffect || !strings.Contains(o.ActionText, "mutating webhook") || !strings.Contains(o.Detail, "0 of 2 pods gone, waiting for pod ns/a: its eviction was accepted and did nothing") {
					t.Errorf("it ended with %+v", o)
				}
				if b.first > unseenFor+time.Second || b.first > within || len(b.last) != 2 || b.last[0].Resource == b.last[1].Resource {
					t.Errorf("told after %s; in the end %+v", b.first, b.last)
				}
				for _, h := range slices.Concat(b.shown, b.last) {
					if h.Code != codeNoEffect || h.Since == nil || !h.Since.Equal(b.begun) ||
						!strings.Contains(h.Detail, "mutating webhook") || !strings.Contains(h.Detail, "; at the deadline, ") {
						t.Errorf("told %+v", h)
					}
				}
				for pod, at := range b.asked {
					if len(at) > 7 || within > time.Minute && (len(at) < 4 || !strings.Contains(b.last[0].Detail, "the last of ")) {
						t.Errorf("%s: asked for %d evictions; in the end %s", pod, len(at), b.last[0].Detail)
					}
				}
				end, d := b.observe(b.e)
				for _, p := range d.Pods {
					if p.Outcome != outcomeLeft || p.Evicted != nil || !strings.HasPrefix(p.Detail, "its eviction was accepted and did nothing") {
						t.Errorf("%+v", p)
					}
				}
				if len(d.Pods) != 2 || d.Counts.Left != 2 || len(end.Residual) != 2 {
					t.Errorf("%+v, left %+v", d.Counts, end.Residual)
				}
			})
		})
	}
}

// No such eviction is asked for that could not be answered, and the pod read, before the
// deadline: whenever that is, it ends with the cause, not with one in flight.
func TestNoEvictionInVainAtTheDeadline(t *testing.T) {
	t.Parallel()
	for within := 14 * time.Second; within < 40*time.Second; within += time.Second {
		t.Run(within.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b, o := drainVainly(t, within, "", 0, "a")
				if o.Class != operation.OutcomeWaiting || o.ErrorCode != codeNoEffect {
					t.Errorf("it ended with %+v", o)
				}
				for _, at := range b.asked["a"][1:] {
					if left := within - at.Sub(b.begun); left < readBack+askLeast {
						t.Errorf("one was asked for %s before the deadline", left)
					}
				}
			})
		})
	}
}

// An eviction that does something after others did not is believed once it is seen.
func TestEvictionThatHasEffectAtLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b, o := drainVainly(t, 2*time.Minute, "", 3, "a")
		if o.Class != operation.OutcomeDone || len(b.last) != 0 || len(b.shown) != 1 || len(b.asked["a"]) != 3 {
			t.Errorf("%+v after %d evictions, told %+v", o, len(b.asked["a"]), b.last)
		}
		if _, d := b.observe(b.e); d.Counts.Gone != 1 || d.Counts.Forced != 0 {
			t.Errorf("%+v", d)
		}
	})
}

// In the force window such a pod is deleted, which admission makes no dry run of.
func TestForcedPastEvictionsWithoutEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b, o := drainVainly(t, time.Minute, `{"on_deadline":"force","force_window_seconds":40}`, 0, "a")
		_, d := b.observe(b.e)
		if len(b.notes) != 1 || !strings.HasPrefix(b.notes[0], "forced: pod ns/a") || !strings.Contains(b.notes[0], "its eviction was accepted and did nothing") || b.deleted != 1 {
			t.Errorf("%d deletions, notes %q", b.deleted, b.notes)
		}
		if o.Class != operation.OutcomeDone || d.Counts.Gone != 1 || d.Counts.Forced != 1 {
			t.Errorf("%+v, %+v", o, d)
		}
	})
}

// A pod whose accepted eviction was not seen yet says that at the end.
func TestAcceptedAndUnseenAtTheEnd(t *testing.T) {
	t.Parallel()
	pod, at := aPod("a"), metav1.Now().Time
	d := &details{}
	d.add(&planned{uid: pod.UID, name: key(pod), pod: pod, accepted: true, taken: true, evicted: at}, pod, &reading{node: theNode(true), at: at}, false)
	if o := d.Pods[0]; o.Outcome != outcomeLeft || o.Evicted == nil || o.Detail != "its eviction was accepted, and it was not seen to be told to stop" {
		t.Errorf("%+v", o)
	}
}
