//go:build kubetest

package kubeflow

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestStopHandsBack: an agent that is told to stop, as Kubernetes does before it
// kills, hands what it holds back at once, so another goes on without waiting for
// a lease to run out.
func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig, patient...)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "one", 1, kuberig.OnNode(node.Name))
	rig.PDB(ns, "keep", "one", kuberig.MinAvailable("1"))
	first := s.agent("")
	s.thing("nodes", node.Name)
	asked := s.want("node.drain", "node:"+node.Name, nil, 4*time.Minute)
	s.until(asked.ID, "held up", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })

	at := time.Now()
	first.term()
	if took := time.Since(at); took > 40*time.Second {
		t.Errorf("the stop took %s", took)
	}
	o := s.until(asked.ID, "handed back", time.Minute, func(o op) bool { return o.Phase == operation.Dispatched })
	if n := len(o.Assignments); n != 1 || o.Assignments[0].Ended != "handed_back" {
		t.Errorf("assignments %+v", o.Assignments)
	}
	if err := rig.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "keep", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.agent("")
	if o = s.ended(asked.ID, 30*time.Second); o.Phase != operation.Succeeded || o.Generation != 2 {
		t.Errorf("by the next agent: %s", o)
	}
}
