package node

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// A pod that somebody else deleted while its budget refused its eviction was not
// evicted; who knows nothing of it says so.
func TestDeletedByOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
			if len(ev.DeleteOptions.DryRun) > 0 {
				return nil
			}
			if err := b.client.CoreV1().Pods(ev.Namespace).Delete(context.Background(), ev.Name, metav1.DeleteOptions{}); err != nil {
				return err // the fake's watch may not have begun: then the next eviction finds that it is gone
			}
			return status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
		}
		for _, step := range []string{"preflight", "cordon", "evict", "wait", "confirm"} {
			if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
				t.Fatalf("%s: %+v", step, o)
			}
		}
		end, d := b.observe(b.e)
		if len(d.Pods) != 1 || d.Pods[0].Outcome != outcomeGone || d.Pods[0].Evicted != nil || d.Pods[0].Detail != "deleted by somebody else" || d.Counts.Others != 1 ||
			!strings.HasSuffix(end.Message, "1 of 1 planned pods gone, 1 deleted by somebody else") {
			t.Errorf("the agent tells %q, %s", end.Message, end.Details)
		}
		if _, d := b.observe(b.agent()); len(d.Pods) != 1 || d.Counts.Others != 0 || !strings.Contains(d.Pods[0].Detail, "is not known") {
			t.Errorf("another tells %+v", d)
		}
	})
}

// Of pods that are still stopping it is told which the drain evicted.
func TestStoppingByWhom(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		p      planned
		says   string
		others int
	}{
		"evicted":       {planned{taken: true}, "evicted and still there", 0},
		"lost answer":   {planned{unsure: true}, "evicted and still there", 0},
		"others":        {planned{}, "stopping and still there", 1},
		"earlier lease": {planned{earlier: true}, "stopping and still there", 0},
	} {
		pod := aPod("a", ago(time.Second))
		p := tt.p
		p.uid, p.name, p.pod, p.evicted = pod.UID, "ns/a", pod, time.Now()
		d, end := &details{}, executor.Ending{}
		d.add(&p, pod, &reading{node: theNode(true), at: time.Now()}, false)
		(&drainer{}).tellPods(stuckTask(lease("op_1"), new([]protocol.Blocker)).Assignment, &end, d)
		if len(end.Residual) != 1 || !strings.HasPrefix(end.Residual[0].Detail, tt.says+": pod ns/a") || d.Counts.Others != tt.others || (d.Pods[0].Evicted != nil) != strings.HasPrefix(tt.says, "evicted") {
			t.Errorf("%s: left %+v, %+v", name, end.Residual, d)
		}
	}
}

// A node that was made anew under its name has the pods of the one before: nothing
// collects them.
func TestPodsOfANodeThatWasReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		b := outcomeSetup(t, aPod("a"))
		for _, step := range []string{"preflight", "cordon"} {
			if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
				t.Fatalf("%s: %+v", step, o)
			}
		}
		b.e.send = func(context.Context, *policyv1.Eviction) error {
			other := theNode(false)
			other.UID = "another"
			if err := b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), other, ""); err != nil {
				t.Error(err)
			}
			return status(429, "busy")
		}
		if o := b.run(b.e, "evict"); o.ErrorCode != "node_replaced" || !strings.Contains(o.ActionText, "drain that one") || strings.Contains(o.ActionText, "collects them once") {
			t.Errorf("it ended with %+v", o)
		}
		if _, d := b.observe(b.e); len(d.Pods) != 1 || d.Pods[0].Outcome != outcomeLeft || !strings.Contains(d.Pods[0].Detail, "bound to the node that has") {
			t.Errorf("told %+v", d.Pods)
		}
	})
}

// A drain whose pods are put on the node by name looks again before it says that they are
// gone: whether their controller was quicker than it makes no difference.
func TestNextPodAfterTheLastOne(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*corev1.Pod)
		takes   time.Duration
		planned int
	}{
		"by name":          {named, time.Second + apiPause + returnsWithin, 2},
		"by the scheduler": {func(*corev1.Pod) {}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				b := outcomeSetup(t, aPod("p0-0", tt.change))
				succeed, _ := b.succeeds(tt.change, -1)
				b.e.send = func(_ context.Context, ev *policyv1.Eviction) error {
					if len(ev.DeleteOptions.DryRun) == 0 {
						succeed(ev.Name)
					}
					return nil
				}
				for _, step := range []string{"preflight", "cordon", "evict", "wait"} {
					if o := b.run(b.e, step); o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
				}
				if tt.takes > 0 {
					time.AfterFunc(time.Second, func() {
						next := aPod("p0-1", tt.change)
						next.Spec.NodeName = "n"
						if err := b.client.Tracker().Add(next); err != nil {
							t.Error(err)
						}
					})
				}
				begun := time.Now()
				if o := b.run(b.e, "confirm"); o.Class != operation.OutcomeDone || time.Since(begun) < tt.takes || time.Since(begun) > 4*tt.takes {
					t.Errorf("after %s: %+v", time.Since(begun), o)
				}
				end, d := b.observe(b.e)
				told := strings.Contains(strings.Join(end.NotVerified, "\n"), "that no pods of ReplicaSet ns/web come back")
				if d.Counts.Planned != tt.planned || d.Counts.Gone != tt.planned || told != (tt.takes > 0) {
					t.Errorf("%+v, not verified %q", d.Counts, end.NotVerified)
				}
			})
		})
	}
}
