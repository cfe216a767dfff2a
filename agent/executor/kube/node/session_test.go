package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func lease(operation string) *protocol.Assignment {
	return &protocol.Assignment{Operation: operation, Run: 1, Generation: 1}
}

// A budget may hold a step for hours, and many drains may be under way: what they
// watch with is not taken from them.
func TestSessionStaysWhileItsStepLasts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	e := newDrainer(&cluster.Cluster{Now: func() time.Time { return now }}, Options{})
	s := e.session(lease("op_held"), true)
	s.pods = follow.New(follow.Source{}, takePod)
	now = now.Add(2 * sessionFor)
	for i := range maxSessions + 10 {
		e.session(lease(fmt.Sprintf("op_%d", i)), true).spent("preflight", now, 0)
	}
	if e.session(lease("op_held"), false) != s || s.pods == nil {
		t.Error("the session of a step that is under way was closed")
	}
	if n := len(e.sessions); n > maxSessions || n != len(e.order) {
		t.Errorf("%d sessions are kept, %d in order", n, len(e.order))
	}
	s.spent("evict", now, 0)
	now = now.Add(2 * sessionFor)
	e.session(lease("op_new"), true)
	if len(e.sessions) != 1 {
		t.Errorf("%d sessions are kept that nobody asks for", len(e.sessions)-1)
	}
}

// A watch that lingers is closed in time, and not when the next step has taken it.
func TestLingeringWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &session{pods: follow.New(follow.Source{}, takePod)}
		s.rest()
		s.mu.Lock()
		s.idle = nil // as open does while the timer fires
		s.mu.Unlock()
		time.Sleep(2 * watchLingers)
		synctest.Wait()
		if s.pods == nil {
			t.Fatal("the next step's watch was closed")
		}
		s.rest()
		time.Sleep(2 * watchLingers)
		synctest.Wait()
		if s.pods != nil {
			t.Fatal("the watch lingers on")
		}
	})
}

// A pod that the drain was not about when it was planned may come to be so.
func TestConfirmFindsARelabelledPod(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "pod", Labels: map[string]string{"app": "x"}}, Spec: corev1.PodSpec{NodeName: "n"}}
	client := fake.NewClientset(n, pod)
	var lists atomic.Int32
	client.PrependReactor("list", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
		lists.Add(1)
		return false, nil, nil
	})
	e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
	a := lease("op_1")
	a.NodeName, a.Payload = "n", []byte(`{"pod_selector":"app=x"}`)
	s := e.session(a, true)
	s.node, s.nodeAt, s.plan, s.record = n, time.Now(), map[types.UID]*planned{}, &record{}
	s.came["pod"] = "d/p"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := e.confirm(ctx, &executor.Task{Assignment: a, Progress: func(int, int, string, string) {}, Remaining: func() time.Duration { return time.Minute }}, s)
	s.close()
	if o.Class != operation.OutcomePermanent || o.ErrorCode != "unmanaged_pod" || lists.Load() > 5 {
		t.Errorf("%+v after %d lists", o, lists.Load())
	}
}

// Pods of several namespaces are held by budgets of several: none of them is looked
// at late.
func TestBudgetsOfSeveralNamespacesAreLookedAt(t *testing.T) {
	t.Parallel()
	f := follow.New(follow.Source{}, takeBudget)
	s := &session{node: &corev1.Node{}, plan: map[types.UID]*planned{}}
	l := &look{force: map[*planned]int{}, next: heartbeat}
	var budgets []runtime.Object
	for _, ns := range []string{"a", "b"} {
		budgets = append(budgets, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none", UID: types.UID(ns)},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}})
		l.waiting = append(l.waiting, &planned{name: ns + "/p", pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}})
	}
	f.Seed(budgets, "1")
	d := &drive{drainer: newDrainer(&cluster.Cluster{Now: time.Now}, Options{}), s: s, budgets: f,
		t: &executor.Task{Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Hour }}}
	if stop := d.lookRules(l); stop != nil || len(l.holds) != 2 || l.next > lookOthers {
		t.Errorf("stop %v, %d holds, the next look in %s", stop, len(l.holds), l.next)
	}
}
