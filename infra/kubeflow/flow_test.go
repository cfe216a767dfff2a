//go:build kubetest

package kubeflow

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestDrainAsAPersonSeesIt: the fleet is there; a drain is asked for
// over HTTP, seen through, and found on the node, in its events and in the API
// server's audit log under the operation's id; then the node is given back.
func TestDrainAsAPersonSeesIt(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig, patient...)
	node, other := rig.Node("gpu"), rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "serve", 3, kuberig.PreferNode(node.Name, other.Name))
	on := len(rig.PodsOn(node.Name))
	began := time.Now()
	s.agent("")
	s.thing("nodes", node.Name)
	s.thing("deployments", ns+"/serve")
	s.thing("devices", list[thing](s, "/v1/devices?limit=1")[0].Name)
	t.Logf("the fleet was there after %s", time.Since(began).Round(100*time.Millisecond))

	o := s.ended(s.want("node.drain", "node:"+node.Name, nil, 2*time.Minute).ID, 3*time.Minute)
	if o.Phase != operation.Succeeded || len(o.Result.Verified) == 0 {
		t.Fatalf("the drain: %s", o)
	}
	if left := rig.PodsOn(node.Name); len(left) > 0 {
		t.Errorf("%d of %d pods are left", len(left), on)
	}
	now := rig.NodeNow(node.Name)
	if !now.Spec.Unschedulable || !strings.Contains(now.Annotations["opsplane.io/cordon"], o.ID) {
		t.Errorf("the node: unschedulable %v, annotations %v", now.Spec.Unschedulable, now.Annotations)
	}
	events, err := rig.Client(kuberig.Admin).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + node.Name})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, e := range events.Items {
		if strings.Contains(e.Message, o.ID) {
			named++
		}
	}
	if named == 0 {
		t.Error("no event on the node names the operation")
	}
	evicted := 0
	for _, e := range rig.Audit() {
		if e.Subresource == "eviction" && e.Code < 300 && strings.Contains(e.UserAgent, o.ID) && !dry(e) {
			evicted++
			if e.PreconditionUID() == "" {
				t.Errorf("an eviction of %s/%s names no UID", e.Namespace, e.Name)
			}
		}
	}
	if evicted != on {
		t.Errorf("%d evictions under the operation's id, want %d", evicted, on)
	}
	if n := s.thing("nodes", node.Name); n.Schedulable {
		t.Error("the inventory shows the node schedulable")
	}

	o = s.ended(s.want("node.uncordon", "node:"+node.Name, nil, 2*time.Minute).ID, 3*time.Minute)
	if o.Phase != operation.Succeeded || rig.NodeNow(node.Name).Spec.Unschedulable {
		t.Fatalf("the uncordon: %s", o)
	}
}

// TestDryRunTellsWhatADrainWouldMeet, and a drain that is stuck tells the same:
// which pod, which rule, since when, and what comes at the deadline.
func TestDryRunTellsWhatADrainWouldMeet(t *testing.T) {
	t.Parallel()
	rig := kuberig.Shared(t)
	s := newSite(t, rig, patient...)
	node := rig.Node("gpu")
	ns := rig.Namespace()
	rig.Deployment(ns, "one", 1, kuberig.OnNode(node.Name))
	rig.PDB(ns, "keep", "one", kuberig.MinAvailable("1"))
	s.agent("")
	s.thing("nodes", node.Name)

	status, body := s.call(http.MethodPost, "/v1/operations", map[string]any{"type": "node.drain", "target": "node:" + node.Name, "cluster": "rig", "reason": "test", "dry_run": true})
	for _, want := range []string{`"blockers_status":"live"`, `"pdb"`, ns + "/keep"} {
		if status != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), ": ", ":"), want) {
			t.Errorf("the dry run lacks %s: %d %s", want, status, body)
		}
	}
	if rig.NodeNow(node.Name).Spec.Unschedulable {
		t.Error("the dry run cordoned the node")
	}

	asked := s.want("node.drain", "node:"+node.Name, map[string]any{"on_cancel": "restore"}, 12*time.Second)
	o := s.until(asked.ID, "blocked", time.Minute, func(o op) bool { return o.Progress != nil && len(o.Progress.Blockers) > 0 })
	b := o.Progress.Blockers[0]
	if b.Code != "pdb" || !strings.Contains(b.Rule, ns+"/keep") || !strings.Contains(b.Resource, ns+"/one-") || b.Since == nil {
		t.Errorf("what holds it up: %+v", b)
	}
	o = s.ended(asked.ID, 30*time.Second)
	if o.Phase != operation.TimedOut || !strings.Contains(o.Result.Cause.Detail, "keep") {
		t.Errorf("at its deadline: %s", o)
	}
}
