//go:build kubetest

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

type ended struct {
	step string
	o    executor.Outcome
}

func (a *agent) start(j *job) <-chan ended {
	result := make(chan ended, 1)
	go func() {
		step, o := a.run(context.Background(), j)
		result <- ended{step, o}
	}()
	return result
}

// TestControlPlaneFaults hurts a control plane of its own while nodes are drained.
func TestControlPlaneFaults(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{Audit: true, NodeGrace: 4 * time.Second})
	user := r.User("agent")
	grant(r, user)

	t.Run("API server restarts", func(t *testing.T) {
		r := r.For(t)
		n, ns := r.Node("restart"), r.Namespace()
		r.Deployment(ns, "web", 6, kuberig.OnNode(n.Name), kuberig.Grace(60), kuberig.Shutdown(6*time.Second))
		r.Deployment(ns, "held", 1, kuberig.OnNode(n.Name))
		r.PDB(ns, "held", "held", kuberig.MinAvailable("1"))
		r.AwaitPDB(ns, "held", "counts 1", func(b *budgetObject) bool { return b.Status.CurrentHealthy == 1 })
		r.MarkAudit()
		a := agentOf(t, r.Kubeconfig(user), nil)
		j := newJob(r, "node.drain", n, `{}`).within(60 * time.Second)
		result := a.start(j)
		j.await(t, "the evictions are accepted", func() bool { return accepted(j) == 6 && j.blocked("pdb") })
		r.Kill(kuberig.APIServer)
		j.await(t, "the outage is told", func() bool { return j.blocked("api_unavailable") })
		r.Restart(kuberig.APIServer)
		if err := r.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if e := <-result; e.step != "" {
			t.Fatalf("the drain ended at %s with %+v", e.step, e.o)
		}
		once(t, r, user, 7)
	})

	t.Run("API server hangs", func(t *testing.T) {
		r := r.For(t)
		n, ns := r.Node("hangs"), r.Namespace()
		r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name), kuberig.Grace(60), kuberig.Shutdown(8*time.Second))
		a := agentOf(t, r.Kubeconfig(user), nil)
		j := newJob(r, "node.drain", n, `{"grace_period_seconds":3}`).within(60 * time.Second)
		result := a.start(j)
		j.await(t, "the pod is stopping", func() bool { return j.blocked("terminating") })
		short := newJob(r, "node.drain", r.Node("hangs-short"), `{}`)
		r.Deployment(ns, "other", 1, kuberig.OnNode(short.NodeName), kuberig.Grace(300), kuberig.IgnoreSigterm())
		over := a.start(short.within(20 * time.Second))
		short.await(t, "the other pod is stopping", func() bool { return short.blocked("terminating") })
		r.Stop(kuberig.APIServer)
		begin := time.Now()
		j.await(t, "that it hangs is told", func() bool { return j.blocked("api_unavailable") })
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("it hung for %s until that was told", took)
		}
		if e := <-over; e.o.ErrorCode != "api_unavailable" || !strings.Contains(e.o.Detail, "does not answer: ") || !strings.Contains(e.o.Detail, ", since 2") {
			t.Errorf("at its deadline a drain ended at %s with %+v", e.step, e.o)
		}
		j.mu.Lock()
		if j.blocked("stopping") {
			t.Errorf("the kubelet is blamed: %+v", j.blockers[len(j.blockers)-1])
		}
		j.mu.Unlock()
		r.Cont(kuberig.APIServer)
		if e := <-result; e.step != "" {
			t.Fatalf("the drain ended at %s with %+v", e.step, e.o)
		}
	})

	t.Run("controller manager halts", func(t *testing.T) {
		r := r.For(t)
		n, other, ns := r.Node("halted"), r.Node("spare"), r.Namespace()
		r.Deployment(ns, "web", 3, kuberig.PreferNode(n.Name, other.Name))
		r.PDB(ns, "web", "web", kuberig.MaxUnavailable("1"))
		r.AwaitPDB(ns, "web", "counts 3", func(b *budgetObject) bool { return b.Status.CurrentHealthy == 3 })
		r.Stop(kuberig.ControllerManager)
		orphan(r, ns, n.Name) // nobody collects it
		a := agentOf(t, r.Kubeconfig(user), nil)
		if step, o := a.run(t.Context(), newJob(r, "node.drain", n, `{}`)); step != "preflight" || o.ErrorCode != "orphaned_daemonset_pod" {
			t.Errorf("with an orphan the drain ended at %s with %+v", step, o)
		}
		j := newJob(r, "node.drain", n, `{"force":true}`).within(60 * time.Second)
		result := a.start(j)
		// One eviction goes through; nothing counts its replacement.
		j.await(t, "the budget holds the others", func() bool { return accepted(j) == 2 && j.blocked("pdb") })
		// A budget whose change nobody has judged yet is answered with 429 and a
		// Retry-After of 10 s.
		patch := []byte(`{"spec":{"maxUnavailable":2}}`)
		if _, err := r.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		j.await(t, "the change that nobody judged is told", func() bool {
			return slices.ContainsFunc(j.progress, func(s string) bool { return strings.Contains(s, "has not judged it yet") })
		})
		begin := time.Now()
		r.Cont(kuberig.ControllerManager)
		if e := <-result; e.step != "" {
			t.Fatalf("the drain ended at %s with %+v", e.step, e.o)
		}
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("it took %s to go on", took)
		}
		t.Logf("%q", j.commands)
	})

	t.Run("nobody counts the pods of a Job", func(t *testing.T) {
		r := r.For(t)
		n, ns := r.Node("uncounted"), r.Namespace()
		r.Job(ns, "train", 1, kuberig.OnNode(n.Name), kuberig.RunTime(time.Hour))
		r.AwaitPods(ns, "train", "runs", func(p []corev1.Pod) bool { return len(p) == 1 && p[0].Status.Phase == corev1.PodRunning })
		r.Stop(kuberig.ControllerManager)
		defer r.Cont(kuberig.ControllerManager)
		a := agentOf(t, r.Kubeconfig(user), nil)
		j := newJob(r, "node.drain", n, `{"on_deadline":"force","force_window_seconds":4}`).within(10 * time.Second)
		step, o := a.run(t.Context(), j)
		if step != "wait" || o.ErrorCode != "finalizer" || !strings.Contains(o.Detail, "Job controller") || !strings.Contains(o.Detail, "batch.kubernetes.io/job-tracking") || !strings.Contains(o.ActionText, "controller manager") {
			t.Errorf("the drain ended at %s with %+v", step, o)
		}
		if _, d := a.observe(j); d.Counts.Stopping != 1 || d.Counts.Forced != 0 || !strings.Contains(d.Pods[0].Detail, "Job controller") {
			t.Errorf("%+v", d)
		}
		t.Logf("%+v", j.blockers[len(j.blockers)-1])
	})

	t.Run("kubelet dies", func(t *testing.T) {
		r := r.For(t)
		n, ns := r.Node("dead"), r.Namespace()
		r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
		r.KillKubelet(n.Name)
		r.AwaitNode(n.Name, "is unreachable", func(n *corev1.Node) bool { code, _ := ailing(n); return code == "node_unreachable" })
		a := agentOf(t, r.Kubeconfig(user), nil)
		if got := codes(preview(t, a, "node.drain", n, `{}`)); !slices.Contains(got, "node_unreachable") {
			t.Errorf("the dry run shows %q", got)
		}
		j := newJob(r, "node.drain", n, `{}`).within(4 * time.Second)
		if step, o := a.run(t.Context(), j); step != "wait" || o.ErrorCode != "node_unreachable" || o.Class != operation.OutcomeWaiting {
			t.Fatalf("the drain ended at %s with %+v", step, o)
		}
		if _, d := a.observe(j); d.Counts.Stopping != 1 || !strings.Contains(d.Pods[0].Detail, "unreachable") {
			t.Errorf("counts %+v", d)
		}
		j = newJob(r, "node.drain", n, `{"on_deadline":"force","force_window_seconds":3}`).within(5 * time.Second)
		if step, o := a.run(t.Context(), j); step != "" {
			t.Fatalf("with force the drain ended at %s with %+v", step, o)
		}
		if _, d := a.observe(j); d.Counts.Forced != 1 || d.Counts.Gone != 1 {
			t.Errorf("counts %+v, notes %q", d, j.notes)
		}
	})
}

// accepted counts the evictions that were taken. It is called with j.mu held.
func accepted(j *job) (n int) {
	for _, c := range j.commands {
		if strings.HasPrefix(c, "evict ") && strings.HasSuffix(c, " ok") {
			n++
		}
	}
	return n
}

// orphan is a DaemonSet's pod whose DaemonSet is gone.
func orphan(r *kuberig.Rig, ns, node string) {
	r.Pod(ns, "orphan", kuberig.OnNode(node), kuberig.Spec(func(meta *metav1.ObjectMeta, _ *corev1.PodSpec) {
		yes := true
		meta.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "long-gone", UID: "00000000-0000-0000-0000-000000000001", Controller: &yes}}
	}))
}

// TestManyAtOnce: 20 nodes at once are no slower than the API server, and leave
// nothing running behind.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	const nodes, pods = 20, 4
	var jobs []*job
	var made []*corev1.Node
	for i := range nodes {
		n := r.Node(fmt.Sprintf("many-%d", i))
		made = append(made, n)
		r.Deployment(ns, fmt.Sprintf("web-%d", i), pods, kuberig.OnNode(n.Name), kuberig.NoWait())
	}
	for _, n := range made {
		r.Await("the pods run", func(context.Context) (bool, error) {
			ready := 0
			for _, p := range r.PodsOn(n.Name) {
				if isReady(&p) {
					ready++
				}
			}
			return ready == pods, nil
		})
	}
	user := r.User("agent")
	grant(r, user)
	a := agentOf(t, r.Kubeconfig(user), nil)
	r.MarkAudit()
	begin := time.Now()
	var results []<-chan ended
	for _, n := range made {
		j := newJob(r, "node.drain", n, `{}`).within(60 * time.Second)
		jobs = append(jobs, j)
		results = append(results, a.start(j))
	}
	for i, result := range results {
		if e := <-result; e.step != "" {
			t.Fatalf("%s ended at %s with %+v", jobs[i].TargetName, e.step, e.o)
		}
	}
	took := time.Since(begin)
	for _, s := range a.drain.sessions {
		if s.pods != nil || s.endPods != nil || s.nodes != nil || s.endNodes != nil {
			t.Error("a drain that is over goes on watching")
		}
	}
	if n := a.drain.drives.Load(); n != 0 || len(a.drain.slots) != 0 || a.drain.budgets.Users() != 0 {
		t.Errorf("%d drives, %d slots and %d users of the budgets are left", n, len(a.drain.slots), a.drain.budgets.Users())
	}
	kinds := map[string]int{}
	total, needed := 0, 0
	for _, e := range r.Audit(user) {
		if e.Resource != "nodes" || e.Verb != "list" && e.Verb != "watch" { // only a slow drain asks
			needed++
		}
		kinds[strings.TrimSuffix(e.Verb+" "+e.Resource+"/"+e.Subresource, "/")]++
		total++
	}
	t.Logf("%d nodes with %d pods each in %s: %.1f requests a drain: %v", nodes, pods, took, float64(total)/nodes, kinds)
	if took > time.Minute {
		t.Errorf("%d nodes took %s", nodes, took)
	}
	if most := nodes*(pods+9) + 10; needed > most {
		t.Errorf("%d requests, at most %d are needed", needed, most)
	}
}
