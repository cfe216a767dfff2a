//go:build kubetest

package kubeflow

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestCutOffFromThePlane: an agent that can reach its cluster and not the plane
// stops before its lease is over, so that another takes over what it was at, and
// changes nothing after that.
func TestCutOffFromThePlane(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 2, kuberig.OnNode(node.Name))
	rig.PDB(ns, "keep", "web", kuberig.MinAvailable("2"))
	lost, other := rig.User("lost", "system:masters"), rig.User("other", "system:masters")

	toPlane, real := passageTo(t, s.url, http.DefaultTransport), s.url
	s.url, s.user = toPlane.url, lost
	s.agent("")
	s.url, s.user = real, other
	s.thing("nodes", node.Name)
	asked := s.want("node.drain", "node:"+node.Name, nil, 2*time.Minute)
	s.until(asked.ID, "blocked", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })

	toPlane.on(func(*http.Request) bool { return true }, func(*http.Request, int, place) bool { return true })
	cut := time.Now()
	s.agent("")
	s.until(asked.ID, "taken over", time.Minute, func(o op) bool { return o.Generation > 1 && o.Phase == operation.Running })
	if err := rig.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "keep", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if o := s.ended(asked.ID, 3*time.Minute); o.Phase != operation.Succeeded {
		t.Fatalf("the drain: %s", o)
	}
	for _, e := range rig.Audit(lost) {
		if e.Received.After(cut.Add(lease+callDeadline)) && e.Verb != "get" && e.Verb != "list" && e.Verb != "watch" {
			t.Errorf("the agent that was cut off asked to %s %s/%s %s after its lease", e.Verb, e.Resource, e.Subresource, e.Name)
		}
	}
	done := 0
	for _, e := range rig.Audit(other) {
		if e.Subresource == "eviction" && e.Namespace == ns && e.Code == http.StatusCreated && !dry(e) {
			done++
		}
	}
	if done != 2 {
		t.Errorf("the other agent evicted %d pods, want 2", done)
	}
	onceEach(t, rig, ns, "")
}

// TestAPIServerAway: a drain outlasts an API server that is away for longer than a
// lease, says so meanwhile, and ends as it should.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 2, Audit: true})
	s := newSite(t, rig)
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 2, kuberig.OnNode("node-0"))
	rig.PDB(ns, "keep", "web", kuberig.MinAvailable("2"))
	s.agent("")
	s.thing("nodes", "node-0")
	asked := s.want("node.drain", "node:node-0", nil, 2*time.Minute)
	s.until(asked.ID, "blocked", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })
	rig.Kill(kuberig.APIServer)
	gone := time.Now()
	for time.Since(gone) < 3*lease { // the fault itself
		if o := s.look(asked.ID); o.Phase.Terminal() {
			t.Fatalf("it ended %s after the API server went: %s", time.Since(gone), o)
		}
		time.Sleep(100 * time.Millisecond)
	}
	rig.Restart(kuberig.APIServer)
	if err := rig.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "keep", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if o := s.ended(asked.ID, 3*time.Minute); o.Phase != operation.Succeeded {
		t.Fatalf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
}

// TestControllerManagerHalted: budgets stand still while nobody counts them, and
// the drain says so, waits, and goes on when the controller manager does.
func TestControllerManagerHalted(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 2, Audit: true})
	s := newSite(t, rig, patient...)
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 3, kuberig.PreferNode("node-0", "node-1"))
	rig.PDB(ns, "one", "web", kuberig.MaxUnavailable("1"))
	s.agent("")
	s.thing("nodes", "node-0")
	rig.Stop(kuberig.ControllerManager)
	asked := s.want("node.drain", "node:node-0", nil, 2*time.Minute)
	o := s.until(asked.ID, "blocked by the budget", time.Minute, func(o op) bool {
		return o.Progress != nil && len(o.Progress.Blockers) > 0 && o.Progress.Blockers[0].Code == "pdb"
	})
	if o.Progress.Done+o.Progress.Total == 0 {
		t.Errorf("progress %+v", o.Progress)
	}
	rig.Cont(kuberig.ControllerManager)
	if o := s.ended(asked.ID, 3*time.Minute); o.Phase != operation.Succeeded {
		t.Fatalf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
}
