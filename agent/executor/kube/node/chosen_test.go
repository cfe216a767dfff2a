package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// chosenBench is an agent whose evictions a test answers. Its watch of pods tells what
// the test says and nothing else.
type chosenBench struct {
	e      *drainer
	client *fake.Clientset
	watch  *watch.FakeWatcher
	told   []protocol.Blocker // all that were shown
	task   *executor.Task

	mu   sync.Mutex
	sent []string // evictions, by name
}

func chosenSetup(t *testing.T, answer func(n int, ev *policyv1.Eviction) error, pods ...*corev1.Pod) *chosenBench {
	t.Helper()
	b := &chosenBench{client: fake.NewClientset(theNode(false)), watch: watch.NewFakeWithChanSize(16, false)}
	for _, p := range pods {
		p.Spec.NodeName = "n"
		if err := b.client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	b.client.PrependWatchReactor("pods", func(ktesting.Action) (bool, watch.Interface, error) { return true, b.watch, nil })
	b.e = newDrainer(openFake(t, b.client), Options{})
	b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
		b.mu.Lock()
		b.sent = append(b.sent, ev.Name)
		n := len(b.sent)
		b.mu.Unlock()
		return answer(n, ev)
	}
	a := lease("op_1")
	b.task = stuckTask(a, &b.told)
	b.task.Blocked = func(now []protocol.Blocker) { b.told = append(b.told, now...) }
	b.task.Remaining = func() time.Duration { return 10 * time.Minute }
	return b
}

// openFake is a cluster whose effects reach the fake.
func openFake(t *testing.T, client *fake.Clientset) *cluster.Cluster {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(cluster.Options{Kubeconfig: file, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c.Client, c.Pulse = client, nil
	return c
}

func (b *chosenBench) stops(t *testing.T, p *corev1.Pod) *corev1.Pod {
	now := metav1.Now()
	p = p.DeepCopy()
	p.DeletionTimestamp, p.ResourceVersion = &now, "stopping"
	if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
		t.Error(err)
	}
	return p
}

// TestEvictOnce: an eviction whose answer was lost is not asked for again once it
// was taken, and a pod that somebody stops already is left to stop.
func TestEvictOnce(t *testing.T) {
	t.Parallel()
	lost := apierrors.NewTimeoutError("the answer was lost", 1)
	balancer := apierrors.NewGenericServerResponse(503, "POST", schema.GroupResource{}, "a", "no upstream", 0, true)
	twoBudgets := status(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
	webhook := apierrors.NewInternalError(errors.New(`failed calling webhook "no.example.com": EOF`))
	for name, c := range map[string]struct {
		answer  []error // to the first evictions; then they are taken
		landed  bool    // although the last of them is an error: the watch is late to show it
		other   bool    // stops it after the last of them
		stops   bool    // already
		want    int     // evictions
		taken   []string
		blocker string
	}{
		"taken":                       {want: 1, taken: []string{"ns/a"}},
		"lost and taken":              {answer: []error{status(429, "busy"), lost}, landed: true, want: 2, taken: []string{"ns/a"}, blocker: "throttled"},
		"lost and not taken":          {answer: []error{lost}, want: 2, taken: []string{"ns/a"}},
		"failed and taken":            {answer: []error{status(429, "busy"), status(500, "etcdserver: request timed out")}, landed: true, want: 2, taken: []string{"ns/a"}, blocker: "api_error"},
		"503 of a balancer and taken": {answer: []error{status(429, "busy"), balancer}, landed: true, want: 2, taken: []string{"ns/a"}, blocker: "api_unavailable"},
		"failed and not taken":        {answer: []error{status(500, "etcdserver: request timed out"), balancer}, want: 3, taken: []string{"ns/a"}, blocker: "api_error"},
		"another stops it after two budgets refused": {answer: []error{twoBudgets}, other: true, want: 1, blocker: "two_pdbs"},
		"another stops it after a webhook failed":    {answer: []error{webhook}, other: true, want: 1},
		"another stops it after it was read":         {answer: []error{lost, status(429, "busy")}, other: true, want: 2, blocker: "throttled"},
		"busy, then taken":                           {answer: []error{status(429, "busy"), status(429, "busy")}, want: 3, taken: []string{"ns/a"}, blocker: "throttled"},
		"another has its name":                       {answer: []error{status(409, "the UID in the precondition")}, want: 1},
		"stopped by somebody before":                 {stops: true, want: 0, blocker: "terminating"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := aPod("a")
				if c.stops {
					ago(0)(p)
				}
				var b *chosenBench
				b = chosenSetup(t, func(n int, _ *policyv1.Eviction) error {
					var err error
					if n <= len(c.answer) {
						err = c.answer[n-1]
					}
					if err == nil || c.landed && n == len(c.answer) {
						b.stops(t, p)
					} else if c.other && n == len(c.answer) {
						time.AfterFunc(100*time.Millisecond, func() { b.watch.Modify(b.stops(t, p)) })
					} else if name == "another has its name" {
						if err := b.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), p.Namespace, p.Name); err != nil {
							t.Error(err)
						}
					}
					return err
				}, p)
				v := (&Drains{b.e}).Chosen()
				end := make(chan executor.Outcome, 1)
				go func() { end <- v.Evict(t.Context(), b.task, theNode(false), []*corev1.Pod{p}) }()
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if len(b.sent) != c.want {
					t.Errorf("%d evictions, want %d", len(b.sent), c.want)
				}
				if name != "another has its name" { // which was read, not watched
					b.watch.Delete(p)
				}
				if o := <-end; o.Class != operation.OutcomeDone {
					t.Errorf("it ended with %+v", o)
				}
				if diff := cmp.Diff(c.taken, v.Taken()); diff != "" {
					t.Errorf("taken (-want +got):\n%s", diff)
				}
				if c.blocker != "" && !hasCode(b.told, c.blocker) {
					t.Errorf("%s was not shown: %+v", c.blocker, b.told)
				}
				time.Sleep(2 * linger)
			})
		})
	}
}

func hasCode(list []protocol.Blocker, code string) bool {
	for _, b := range list {
		if b.Code == code {
			return true
		}
	}
	return false
}

// TestOwnPodOfChosen: the agent's own pod is asked to go when the others are gone, and
// another agent is asked to do that first. A lone one does it when the operation comes
// back.
func TestOwnPodOfChosen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		own, other := aPod("agent"), aPod("b")
		pods := map[string]*corev1.Pod{"agent": own, "b": other}
		var b *chosenBench
		b = chosenSetup(t, func(_ int, ev *policyv1.Eviction) error {
			b.stops(t, pods[ev.Name])
			time.AfterFunc(time.Second, func() {
				_ = b.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", ev.Name)
				b.watch.Delete(pods[ev.Name])
			})
			return nil
		}, own, other)
		b.e.c.PodUID = string(own.UID)
		drains := &Drains{b.e}
		o := drains.Chosen().Evict(t.Context(), b.task, theNode(false), []*corev1.Pod{own, other})
		if o.Class != executor.ClassHandBack || o.ErrorCode != "own_node" {
			t.Fatalf("it ended with %+v", o)
		}
		if diff := cmp.Diff([]string{"b"}, b.sent); diff != "" {
			t.Errorf("evicted before the lease was handed back (-want +got):\n%s", diff)
		}
		b.watch = watch.NewFakeWithChanSize(16, false)
		if o = drains.Chosen().Evict(t.Context(), b.task, theNode(false), []*corev1.Pod{own}); o.Class != operation.OutcomeDone {
			t.Errorf("when it came back: %+v", o)
		}
		if diff := cmp.Diff([]string{"b", "agent"}, b.sent); diff != "" {
			t.Errorf("evicted (-want +got):\n%s", diff)
		}
		time.Sleep(2 * linger)
	})
}

// TestChosenGoesByTheRules: what stands in the way for good ends it, as it does a
// drain; pods that ended count as gone, and pods that come are nobody's business.
func TestChosenGoesByTheRules(t *testing.T) {
	t.Parallel()
	budget := func(name string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
			Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 2}}
	}
	for name, c := range map[string]struct {
		budgets     []*policyv1.PodDisruptionBudget
		happens     func(b *chosenBench, p *corev1.Pod)
		class, code string
	}{
		"two budgets":       {budgets: []*policyv1.PodDisruptionBudget{budget("b", 1), budget("c", 1)}, class: operation.OutcomePermanent, code: "two_pdbs"},
		"a budget":          {budgets: []*policyv1.PodDisruptionBudget{budget("b", 0)}, class: operation.OutcomeWaiting, code: "pdb_blocked"},
		"it ends by itself": {budgets: []*policyv1.PodDisruptionBudget{budget("b", 0)}, happens: func(b *chosenBench, p *corev1.Pod) { b.watch.Modify(ending(p)) }, class: operation.OutcomeDone},
		"another comes": {budgets: []*policyv1.PodDisruptionBudget{budget("b", 0)}, happens: func(b *chosenBench, p *corev1.Pod) {
			b.watch.Add(aPod("late"))
			b.watch.Delete(p)
		}, class: operation.OutcomeDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := aPod("a")
				b := chosenSetup(t, func(int, *policyv1.Eviction) error { t.Error("an eviction"); return nil }, p)
				for _, x := range c.budgets {
					if err := b.client.Tracker().Add(x); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if c.happens != nil {
					time.AfterFunc(time.Second, func() { c.happens(b, p) })
				}
				v := (&Drains{b.e}).Chosen()
				if o := v.Evict(ctx, b.task, theNode(false), []*corev1.Pod{p}); o.Class != c.class || o.ErrorCode != c.code {
					t.Errorf("it ended with %+v", o)
				}
				if len(v.Taken()) != 0 {
					t.Errorf("taken %v", v.Taken())
				}
				time.Sleep(2 * linger)
			})
		})
	}
}

func ending(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.Status.Phase, p.ResourceVersion = corev1.PodSucceeded, "ended"
	return p
}
