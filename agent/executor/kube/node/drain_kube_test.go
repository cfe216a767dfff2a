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
	if d.Counts.Planned != 8 || d.Counts.Gone != 8 || d.Counts.Stayed != 1 || d.GPUs != 8 || d.GPUHours <= 0 {
		t.Errorf("counts %+v", d)
	}
	for _, p := range d.Pods {
		if p.Outcome != "gone" || p.Evicted == nil || p.Gone == nil {
			t.Errorf("pod %+v", p)
		}
	}
}
