package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// A deletion in the force window that is refused is asked for again at the pace of
// refusals, and what refuses it is told; that evictions were refused before, however
// often, delays no deletion.
func TestRefusedDeletionsHaveAPace(t *testing.T) {
	t.Parallel()
	denied := status(400, `admission webhook "guard.example.com" denied the request: no`)
	for name, tt := range map[string]struct {
		guarded  bool          // by a budget that allows nothing
		eviction error         // the answer to each
		deletion error         // the answer to each
		before   time.Duration // the window
		apart    time.Duration // two deletions, at least
		most     int           // deletions in a window of 30 s
		code     string
	}{
		"a budget, and a webhook":               {guarded: true, deletion: denied, apart: denialLeast * 8 / 10, most: 7, code: "eviction_refused"},
		"a budget, and a busy server":           {guarded: true, deletion: status(429, "busy"), apart: paceLeast * 8 / 10, most: 13, code: "throttled"},
		"a webhook":                             {eviction: denied, deletion: denied, apart: denialLeast * 8 / 10, most: 7, code: "eviction_refused"},
		"a webhook, for long before the window": {eviction: denied, deletion: denied, before: 10 * time.Minute, apart: denialLeast * 8 / 10, most: 7, code: "eviction_refused"},
		"a busy server":                         {eviction: status(429, "busy"), deletion: status(429, "busy"), before: 10 * time.Minute, apart: paceLeast * 8 / 10, most: 13, code: "throttled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				const window = 30 * time.Second
				b := outcomeSetup(t, aPod("a"))
				if tt.guarded {
					if err := b.client.Tracker().Add(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "b"},
						Spec:   policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
						Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}}); err != nil {
						t.Fatal(err)
					}
				}
				b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
					if len(ev.DeleteOptions.DryRun) > 0 {
						return nil
					}
					return tt.eviction
				}
				var mu sync.Mutex
				var asked []time.Time
				b.client.PrependReactor("delete", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
					mu.Lock()
					asked = append(asked, time.Now())
					mu.Unlock()
					return true, nil, tt.deletion
				})
				b.task.Assignment.Payload = []byte(`{"on_deadline":"force","force_window_seconds":30}`)
				for _, step := range []string{"preflight", "cordon"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				begun, told := time.Now(), []protocol.Blocker(nil)
				b.task.Remaining = func() time.Duration { return tt.before + window - time.Since(begun) }
				b.task.Blocked = func(now []protocol.Blocker) {
					mu.Lock()
					defer mu.Unlock()
					if len(asked) > 0 {
						told = append(told, now...)
					}
				}
				b.task.Begin = func(string, string) (string, func(string, string)) {
					time.Sleep(10 * time.Millisecond) // a call takes its time
					return "cmd", func(string, string) {}
				}
				ctx, cancel := context.WithTimeout(t.Context(), tt.before+window)
				defer cancel()
				b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
				if o := b.e.drain().Steps["evict"].Execute(ctx, b.task); o.ErrorCode != tt.code && o.ErrorCode != "fenced" { // its end met a call
					t.Errorf("%+v", o)
				}
				if len(asked) < 3 || len(asked) > tt.most {
					t.Fatalf("asked for %d deletions", len(asked))
				}
				if late := asked[0].Sub(begun) - tt.before; late < 0 || late > 100*time.Millisecond {
					t.Errorf("asked for the first %s after the window began", late)
				}
				for i := range asked[1:] {
					if d := asked[i+1].Sub(asked[i]); d < tt.apart {
						t.Errorf("deletion %d came %s after the one before", i+1, d)
					}
				}
				if !slices.ContainsFunc(told, func(b protocol.Blocker) bool { return b.Code == tt.code && b.Resource == "pod/ns/a" }) {
					t.Errorf("told %+v", told)
				}
			})
		})
	}
}

// A pod that is stopping, whose deletion without grace was refused, is asked for again
// when its time has come.
func TestRefusedDeletionOfAStoppingPod(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := &drive{drainer: newDrainer(&cluster.Cluster{Now: func() time.Time { return now }}, Options{}), gone: true,
		s: &session{node: theNode(true, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})},
		p: payload{DrainPayload: operation.DrainPayload{OnDeadline: onDeadlineForce, ForceWindowSeconds: 30, GracePeriodSeconds: -1}}}
	p := &planned{name: "ns/a", pod: aPod("a", ago(time.Hour))}
	p.refused(&refusal{stage: withoutGrace, code: "throttled"}, now, 3*time.Second)
	for _, at := range []time.Duration{0, p.not.Sub(now)} {
		l, stage := &look{force: map[*planned]int{}, next: heartbeat}, 0
		now = now.Add(at)
		d.lookStopping(l, p, true, 5*time.Second, func(_ *planned, s int) { stage = s })
		if early := now.Before(p.not); early != (stage == 0) || early && l.next != p.not.Sub(now) {
			t.Errorf("%s before its time: stage %d, looks again in %s", p.not.Sub(now), stage, l.next)
		}
	}
}

// An eviction that is answered with a conflict, though the pod is the planned one, is
// asked for again at the pace of refusals, and what keeps the pod is told.
func TestConflictsHaveAPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		var mu sync.Mutex
		asked := 0
		b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
			if len(ev.DeleteOptions.DryRun) > 0 {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			asked++
			return apierrors.NewConflict(corev1.Resource("pods"), "a", errors.New("the object has been modified"))
		}
		for _, step := range []string{"preflight", "cordon"} {
			if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
				t.Fatalf("%s: %+v", step, o)
			}
		}
		var told []protocol.Blocker
		b.task.Blocked = func(now []protocol.Blocker) { told = append(told, now...) }
		ctx, cancel := b.until(time.Minute)
		defer cancel()
		b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
		o := b.e.drain().Steps["evict"].Execute(ctx, b.task)
		class := map[string]string{"api_error": operation.OutcomeWaiting, "answer_lost": operation.OutcomeAmbiguous}[o.ErrorCode] // its end may meet a call
		if class == "" || o.Class != class || !strings.Contains(o.Detail, "answers with a conflict, though the pod is the planned one") {
			t.Errorf("%+v", o)
		}
		if asked < 5 || asked > 16 {
			t.Errorf("asked for %d evictions in a minute", asked)
		}
		if !slices.ContainsFunc(told, func(b protocol.Blocker) bool { return b.Code == "api_error" && b.Resource == "pod/ns/a" }) {
			t.Errorf("told %+v", told)
		}
	})
}
