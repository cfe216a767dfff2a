//go:build kubetest

package kubeflow

import (
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// spread keeps the pods of one app on nodes of their own.
func spread(meta *metav1.ObjectMeta, spec *corev1.PodSpec) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: meta.Labels}, TopologyKey: corev1.LabelHostname,
	}}}
}

// TestStoppedAgentComesBackTooLate: an agent that was stopped past its lease in the
// middle of a drain evicts nothing when it goes on, though the pods are still there:
// another has taken over, and carries it out.
func TestStoppedAgentComesBackTooLate(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 2, kuberig.OnNode(node.Name))
	rig.PDB(ns, "keep", "web", kuberig.MinAvailable("2"))
	early, later := rig.User("early", "system:masters"), rig.User("later", "system:masters")
	toPlane, real := passageTo(t, s.url, http.DefaultTransport), s.url
	s.url, s.user = toPlane.url, early
	first := s.agent("")
	s.url, s.user = real, later
	var woken, told atomic.Bool
	toPlane.on(reports, func(r *http.Request, _ int, at place) bool {
		if at == before && ends(r) && woken.Load() {
			told.Store(true)
		}
		return false
	})
	s.thing("nodes", node.Name)
	asked := s.want("node.drain", "node:"+node.Name, nil, 2*time.Minute)
	s.until(asked.ID, "blocked", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })
	first.signal(syscall.SIGSTOP)
	s.agent("")
	s.until(asked.ID, "taken over", time.Minute, func(o op) bool { return o.Generation > 1 && o.Phase == operation.Running })
	woken.Store(true)
	at := time.Now()
	first.signal(syscall.SIGCONT)
	s.await("the first agent's word on its lease", time.Minute, told.Load)
	if err := rig.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "keep", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	o := s.ended(asked.ID, 3*time.Minute)
	if o.Phase != operation.Succeeded {
		t.Fatalf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
	for _, e := range rig.Audit(early) {
		if e.Subresource == "eviction" && e.Received.After(at) {
			t.Errorf("the agent that came back asked to evict %s at %s, it went on at %s", e.Name, e.Received, at)
		}
	}
	evicted := 0
	for _, e := range rig.Audit(later) {
		if e.Subresource == "eviction" && e.Code == http.StatusCreated && !dry(e) {
			evicted++
		}
	}
	if evicted != 2 {
		t.Errorf("%d evictions of the second agent were accepted, want 2", evicted)
	}
}

// TestPlaneAway: while the plane is away a drain is finished or stopped safely,
// and told when it is back.
func TestPlaneAway(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 3, kuberig.OnNode(node.Name), kuberig.Shutdown(2*time.Second))
	s.agent("")
	s.thing("nodes", node.Name)
	asked := s.want("node.drain", "node:"+node.Name, nil, 2*time.Minute)
	s.until(asked.ID, "evicting", time.Minute, func(o op) bool { return o.Phase == operation.Running && o.Progress != nil })
	s.plane.kill()
	time.Sleep(lease + callDeadline) // the fault itself: longer than the lease
	s.startPlane()
	o := s.ended(asked.ID, 3*time.Minute)
	if o.Phase != operation.Succeeded {
		t.Fatalf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
}

// TestAPIServerRestarts in the middle of a drain: the drain goes on.
func TestAPIServerRestarts(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 2, Audit: true})
	s := newSite(t, rig, patient...)
	ns := rig.Namespace()
	rig.Deployment(ns, "web", 4, kuberig.OnNode("node-0"), kuberig.Shutdown(3*time.Second))
	s.agent("")
	s.thing("nodes", "node-0")
	asked := s.want("node.drain", "node:node-0", nil, 2*time.Minute)
	s.until(asked.ID, "evicting", time.Minute, func(o op) bool {
		return o.Progress != nil && o.Progress.Step == "evict" || o.Progress != nil && o.Progress.Step == "wait"
	})
	rig.Restart(kuberig.APIServer)
	o := s.ended(asked.ID, 3*time.Minute)
	if o.Phase != operation.Succeeded {
		t.Fatalf("the drain: %s", o)
	}
	onceEach(t, rig, ns, "")
}

// TestAgentDrainsItsOwnNode: the agent's own pod goes last, and another agent has
// the lease by then.
func TestAgentDrainsItsOwnNode(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig, patient...)
	node, other := rig.Node("gpu"), rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "agents", 2, kuberig.Spec(spread), kuberig.Shutdown(time.Second))
	rig.Deployment(ns, "web", 2, kuberig.PreferNode(node.Name, other.Name))
	var own string
	for _, p := range rig.Pods(ns, "agents") {
		if p.Spec.NodeName == node.Name {
			own = p.Name
			s.agent("", "--node-name", node.Name, "--pod-name", p.Name, "--pod-uid", string(p.UID), "--namespace", ns)
		}
	}
	if own == "" {
		t.Fatal("no agent's pod is on the node")
	}
	s.thing("nodes", node.Name)
	asked := s.want("node.drain", "node:"+node.Name, nil, 2*time.Minute)
	s.until(asked.ID, "running", time.Minute, func(o op) bool { return o.Generation >= 1 })
	s.agent("", "--node-name", other.Name, "--namespace", ns)
	o := s.ended(asked.ID, 3*time.Minute)
	if o.Phase != operation.Succeeded || len(o.Assignments) < 2 || o.Assignments[0].Ended != "handed_back" {
		t.Fatalf("the drain: %s", o)
	}
	if o.Assignments[0].Agent == o.Assignments[len(o.Assignments)-1].Agent {
		t.Errorf("no other agent took it up: %s", o)
	}
	var last string
	for _, e := range rig.Audit() {
		if e.Subresource == "eviction" && e.Namespace == ns && e.Code == 201 && !dry(e) {
			last = e.Name
		}
	}
	if last != own {
		t.Errorf("the last to be evicted was %s, not the agent's own pod %s", last, own)
	}
}
