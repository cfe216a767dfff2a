package node

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// slowDeletes is a client whose deletions of pods admission takes so long over, before
// answer; nil: they are done.
type slowDeletes struct {
	kubernetes.Interface
	takes  time.Duration
	answer error

	mu     sync.Mutex
	limits []time.Duration // how long each might take
}

func (c *slowDeletes) CoreV1() typedcorev1.CoreV1Interface {
	return slowCore{c.Interface.CoreV1(), c}
}

type slowCore struct {
	typedcorev1.CoreV1Interface
	c *slowDeletes
}

func (s slowCore) Pods(namespace string) typedcorev1.PodInterface {
	return slowPods{s.CoreV1Interface.Pods(namespace), s.c}
}

type slowPods struct {
	typedcorev1.PodInterface
	c *slowDeletes
}

func (s slowPods) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	end, _ := ctx.Deadline()
	s.c.mu.Lock()
	s.c.limits = append(s.c.limits, time.Until(end))
	s.c.mu.Unlock()
	select {
	case <-ctx.Done():
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	case <-time.After(s.c.takes):
	}
	if s.c.answer != nil {
		return s.c.answer
	}
	return s.PodInterface.Delete(context.Background(), name, o)
}

// A deletion in the force window has the time that admission may take, as an eviction has:
// the first one where there is no time for a second, the next one else. What is waited for
// is shown, and a webhook that denies, or that the API server gives up, is named.
func TestForcedDeletionsThatTakeLong(t *testing.T) {
	t.Parallel()
	denied := status(400, `admission webhook "guard.example.com" denied the request: no`)
	uncalled := status(500, `Internal error occurred: failed calling webhook "slow.example.com": context deadline exceeded`)
	for name, tt := range map[string]struct {
		window string // in seconds
		takes  time.Duration
		answer error
		limits []time.Duration // of the first deletions
		shown  string          // a blocker
		code   string          // the end; "": done
		rule   string
	}{
		"done, in a short window":   {"30", 25 * time.Second, nil, []time.Duration{28 * time.Second}, "", "", ""},
		"done, in a long one":       {"90", 25 * time.Second, nil, []time.Duration{8 * time.Second, 35 * time.Second}, codeUndeleted, "", "admission"},
		"denied":                    {"30", 25 * time.Second, denied, []time.Duration{28 * time.Second}, "eviction_refused", "eviction_refused", "webhook/guard.example.com"},
		"given up":                  {"30", 25 * time.Second, uncalled, []time.Duration{28 * time.Second}, "eviction_refused", "eviction_refused", "webhook/slow.example.com"},
		"never, in a short window":  {"30", time.Hour, nil, []time.Duration{28 * time.Second}, codeUndeleted, codeUndeleted, "admission"},
		"never, in a long one":      {"90", time.Hour, nil, []time.Duration{8 * time.Second, 35 * time.Second, 35 * time.Second}, codeUndeleted, codeUndeleted, "admission"},
		"never, and little is left": {"10", time.Hour, nil, []time.Duration{8 * time.Second}, codeUndeleted, codeUndeleted, "admission"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("a"))
				if err := b.client.Tracker().Add(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "b"},
					Spec:   policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
					Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}}); err != nil {
					t.Fatal(err)
				}
				b.task.Assignment.Payload = []byte(`{"on_deadline":"force","force_window_seconds":` + tt.window + `}`)
				for _, step := range []string{"preflight", "cordon"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				synctest.Wait() // events are told by then
				c := &slowDeletes{Interface: b.e.c.Client, takes: tt.takes, answer: tt.answer}
				b.e.c.Client = c
				begun, shown := time.Now(), []protocol.Blocker(nil)
				b.task.Blocked = func(now []protocol.Blocker) { shown = append(shown, now...) }
				within, err := time.ParseDuration(tt.window + "s")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := b.until(within)
				defer cancel()
				b.task.Step = executor.StepNamed(b.task.Assignment, "evict")
				o := b.e.drain().Steps["evict"].Execute(ctx, b.task)
				if tt.code == "" && o.Class != operation.OutcomeDone || tt.code != "" && (o.ErrorCode != tt.code || o.Class != operation.OutcomeWaiting || o.ActionCode != operation.ActRestoreDependency) {
					t.Errorf("%+v", o)
				}
				if tt.code == codeUndeleted && (!strings.Contains(o.Detail, "its deletion was not answered within ") || !strings.Contains(o.ActionText, "deletions of pods")) {
					t.Errorf("%+v", o)
				}
				if got := c.limits[:min(len(c.limits), len(tt.limits))]; !slices.Equal(got, tt.limits) || len(c.limits) > len(tt.limits)+1 {
					t.Errorf("the deletions were given %v", c.limits)
				}
				if tt.shown != "" && !slices.ContainsFunc(shown, func(x protocol.Blocker) bool {
					return x.Code == tt.shown && x.Resource == "pod/ns/a" && x.Rule == tt.rule && (x.Code != codeUndeleted || x.Since != nil && x.Since.Equal(begun))
				}) {
					t.Errorf("shown %+v", shown)
				}
				_, d := b.observe(b.e)
				if p := d.Pods[0]; p.Forced != (tt.code == "") || p.Forced && !strings.Contains(p.Detail, "what held it: PDB ns/b") || !p.Forced && p.Outcome != outcomeLeft {
					t.Errorf("told %+v", p)
				}
			})
		})
	}
}
