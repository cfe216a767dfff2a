//go:build kubetest

package kube

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// A cordon from its step to what the plane is told: what the operation observed
// at its end is newer than what the inventory told before, and the inventory
// goes on from there. All of it with the rights of Rights and no other.
func TestRigCordon(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	user := r.User("agent")
	for _, x := range Rights(Options{}) {
		in := ""
		if x.Namespace == cluster.OwnNamespace {
			in = ns
		}
		r.Grant(user, in, kuberig.Rule(x.Group, x.Resource, []string{x.Verb}))
	}
	o := r.Node("kube")
	e, err := Open(Options{Cluster: cluster.Options{Kubeconfig: r.Kubeconfig(user), Namespace: ns, Version: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	told := make(chan protocol.Node, 100)
	events := make(chan protocol.Event, 100)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		_ = e.Watch(ctx, func(d executor.Delta) {
			for _, n := range d.Objects.Nodes {
				if n.UID == string(o.UID) {
					told <- n
				}
			}
			for _, x := range d.Events {
				if x.Subject.UID == string(o.UID) {
					events <- x
				}
			}
		})
	}()
	s, err := e.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.Nodes, func(n protocol.Node) bool { return n.UID == string(o.UID) })
	if i < 0 {
		t.Fatal("the snapshot lacks the node")
	}
	newest := s.Nodes[i].Revision

	a := &protocol.Assignment{Operation: "op_1", Type: "node.cordon", TargetUID: string(o.UID), TargetName: "node:" + o.Name, NodeName: o.Name, Payload: []byte(`{}`), Generation: 1,
		Actor: operation.Actor{ID: "tester", Kind: "token"}}
	run := &executor.Task{Assignment: a, Step: protocol.Step{PlanStep: operation.PlanStep{Name: "cordon"}}, Attempt: 1,
		Fence:    func(ctx context.Context) (context.Context, context.CancelFunc, error) { return ctx, func() {}, nil },
		Progress: func(int, int, string, string) {}, Begin: func(string, string) (string, func(string, string)) { return "cmd_1", func(string, string) {} },
		Note: func(string, string) {}, Blocked: func([]protocol.Blocker) {}, Remaining: func() time.Duration { return time.Minute }}
	if out := e.Execute(ctx, run); out.Class != operation.OutcomeDone {
		t.Fatalf("cordon: %+v", out)
	}
	end := e.Observe(ctx, a)
	if end.Observed == nil || len(end.Observed.Nodes) != 1 {
		t.Fatalf("observed %+v", end)
	}
	seen := end.Observed.Nodes[0]
	if seen.Revision <= newest || seen.Schedulable || seen.Cordon == nil || seen.Cordon.Operation != "op_1" || seen.GPUs != 8 || len(seen.Labels) == 0 {
		t.Errorf("observed %+v after revision %d", seen, newest)
	}
	select {
	case x := <-events:
		if x.Type != "node.cordoned" {
			t.Errorf("told %+v", x)
		}
	case <-ctx.Done():
		t.Fatalf("the cordon was not told; healthy: %v", e.Healthy())
	}
	patch := []byte(`{"spec":{"unschedulable":null}}`)
	if _, err := r.Client(kuberig.Admin).CoreV1().Nodes().Patch(ctx, o.Name, apitypes.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case n := <-told:
			if n.Schedulable && n.Revision > seen.Revision {
				return
			}
			if n.Schedulable {
				t.Fatalf("what came after is told at revision %d, the operation observed %d", n.Revision, seen.Revision)
			}
		case <-ctx.Done():
			t.Fatalf("the uncordon was not told; healthy: %v", e.Healthy())
		}
	}
}
