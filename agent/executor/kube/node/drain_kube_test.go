//go:build kubetest

package node

import (
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// TestDrain drains a full node: pods gone by UID, DaemonSet left alone.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("full", kuberig.GPUs(8)), r.Namespace()
	r.Deployment(ns, "web", 8, kuberig.OnNode(n.Name))
	r.DaemonSet(ns, "exporter")
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{}`)
	begin := time.Now()
	a.mustRun(j)
	t.Logf("drained in %s: %q", time.Since(begin), j.commands)
	end, d := a.observe(j)
	if !slices.Contains(end.Verified, "8 planned pods gone by UID") || !slices.Contains(end.Verified, "node is cordoned") || len(end.Residual) > 0 {
		t.Errorf("observed %+v", end)
	}
	t.Logf("%s", end.Details)
	if d.Counts.Planned != 8 || d.Counts.Gone != 8 || d.Counts.Stayed != 1 || d.GPUs == nil || *d.GPUs != 8 || d.GPUHours == nil || *d.GPUHours <= 0 {
		t.Errorf("counts %+v", d)
	}
	for _, p := range d.Pods {
		if p.Outcome != "gone" || p.Evicted == nil || p.Gone == nil {
			t.Errorf("pod %+v", p)
		}
	}
}

// TestDrainBehindBudget evicts one pod at a time and asks for hardly any eviction in
// vain: the budget's status says when the next may go.
func TestDrainBehindBudget(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, other, ns := r.Node("guarded"), r.Node("spare"), r.Namespace()
	r.Deployment(ns, "web", 8, kuberig.PreferNode(n.Name, other.Name))
	r.PDB(ns, "web", "web", kuberig.MaxUnavailable("1"))
	r.AwaitPDB(ns, "web", "counts 8", func(b *budgetObject) bool { return b.Status.CurrentHealthy == 8 && b.Status.DisruptionsAllowed == 1 })
	onNode := len(r.PodsOn(n.Name))
	user := r.User("agent")
	grant(r, user)
	a := agentOf(t, r.Kubeconfig(user), nil)
	r.MarkAudit()
	begin := time.Now()
	a.mustRun(newJob(r, "node.drain", n, `{}`).within(2 * time.Minute)) // one pod after the other
	took := time.Since(begin)
	inVain, requests := 0, 0
	for _, e := range r.Audit(user) {
		requests++
		if e.Subresource == "eviction" && e.Code == 429 {
			inVain++
		}
	}
	t.Logf("%d pods in %s with %d requests, %d of them refused", onNode, took, requests, inVain)
	if inVain > onNode/2 {
		t.Errorf("%d evictions of %d pods were asked for in vain", inVain, onNode)
	}
	once(t, r, user, onNode)
}
