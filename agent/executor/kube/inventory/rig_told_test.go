//go:build kubetest

package inventory

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	nodeop "github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// carry carries a step of an operation out, as the agent's loop does.
func carry(t *testing.T, typ cluster.Type, step, op, node, payload string) {
	t.Helper()
	task := &executor.Task{
		Assignment: &protocol.Assignment{Operation: op, Run: 1, Generation: 1, Type: typ.Name, TargetName: "node:" + node, NodeName: node,
			Payload: json.RawMessage(payload), Actor: operation.Actor{ID: "tester of " + op}, Reason: "a test"},
		Step: protocol.Step{PlanStep: operation.PlanStep{Name: step}}, Attempt: 1, Cancelled: make(chan struct{}),
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel, nil
		},
		Begin:    func(string, string) (string, func(string, string)) { return "cmd", func(string, string) {} },
		Progress: func(int, int, string, string) {}, Note: func(string, string) {}, Blocked: func([]protocol.Blocker) {},
		Remaining: func() time.Duration { return time.Minute },
	}
	if o := typ.Steps[step].Execute(t.Context(), task); o.Class != operation.OutcomeDone {
		t.Fatalf("%s of %s: %+v", step, op, o)
	}
}

// TestRigUncordon: who lifts a cordon is told where it is an operation, and the one
// who placed it is never taken for that.
func TestRigUncordon(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	c := connect(t, r, kuberig.Admin, r.Namespace())
	f := followWith(t, Options{Cluster: c})
	name := r.Node("inv").Name
	cordon, uncordon := nodeop.Cordon(c, nodeop.Options{}), nodeop.Uncordon(c, nodeop.Options{})
	hand := func(text string) { patch(t, r.Client(kuberig.Admin), name, text) }
	type whose struct{ Owner, Operation, By string }
	times := 0
	lifted := func(want, was whose) {
		t.Helper()
		times++
		var got struct {
			whose
			Was whose
		}
		e := f.event("node.uncordoned", name, times)
		if err := json.Unmarshal(e.Detail, &got); err != nil {
			t.Fatal(err)
		}
		if got.whose != want || got.Was != was {
			t.Errorf("told %s, want %+v, was %+v", e.Detail, want, was)
		}
	}
	of := func(op string) whose { return whose{"opsplane", op, "tester of " + op} }
	outside := whose{Owner: "external"}

	carry(t, cordon, "cordon", "op_a", name, `{}`)
	carry(t, uncordon, "uncordon", "op_b", name, `{}`)
	lifted(of("op_b"), of("op_a"))
	carry(t, cordon, "cordon", "op_c", name, `{}`)
	hand(`{"spec":{"unschedulable":null}}`)
	lifted(outside, of("op_c"))
	hand(`{"spec":{"unschedulable":true}}`)
	carry(t, uncordon, "uncordon", "op_d", name, `{"take_over":true}`)
	lifted(of("op_d"), whose{Owner: "external", By: "kubectl-cordon"})
	hand(`{"spec":{"unschedulable":true}}`)
	hand(`{"spec":{"unschedulable":null}}`) // op_d's word is still on the node
	lifted(outside, whose{Owner: "external", By: "kubectl-cordon"})
}

// TestRigGPUsThatNoPodGets: as a kubelet says it of a device plugin that calls two of
// eight ill, and when all are well.
func TestRigGPUsThatNoPodGets(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	f := follow(t, r, kuberig.Admin, r.Namespace())
	name := r.Node("inv").Name
	give := func(n string) {
		t.Helper()
		_, err := r.Client(kuberig.Admin).CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType,
			[]byte(`{"status":{"allocatable":{"nvidia.com/gpu":"`+n+`"}}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
	}
	give("6")
	if e := f.event("node.gpus_unallocatable", name, 1); !strings.Contains(string(e.Detail), `"missing":2`) {
		t.Errorf("told %s", e.Detail)
	}
	f.node(name, "its condition", func(n protocol.Node) bool {
		return len(n.Conditions) == 2 && n.Conditions[1].Type == conditionGPUs && n.Conditions[1].Status == "False"
	})
	inv, err := f.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	healths := map[string]int{}
	for _, d := range inv.Devices {
		if d.NodeName == name {
			healths[d.Health]++
		}
	}
	if diff := cmp.Diff(map[string]int{report.HealthUnknown: 8}, healths); diff != "" {
		t.Error(diff)
	}
	again := follow(t, r, kuberig.Admin, r.Namespace()) // an agent that comes later
	if e := again.event("node.gpus_unallocatable", name, 1); !strings.Contains(string(e.Detail), `"standing":true`) {
		t.Errorf("told by the next %s", e.Detail)
	}
	give("8")
	f.event("node.gpus_allocatable", name, 1)
	again.event("node.gpus_allocatable", name, 1)
	f.event("node.gpus_unallocatable", name, 1) // the first one tells nothing twice
	f.node(name, "well again", func(n protocol.Node) bool { return len(n.Conditions) == 1 })
}

// TestRigScratch: what a drain would not be refused for is no blocker of the node's.
func TestRigScratch(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	f := follow(t, r, kuberig.Admin, r.Namespace())
	name, ns := r.Node("inv").Name, r.Namespace()
	r.Deployment(ns, "scratch", 1, kuberig.OnNode(name), kuberig.EmptyDir(), kuberig.Annotation(nodeop.AnnotationScratch, "scratch"))
	r.Deployment(ns, "data", 1, kuberig.OnNode(name), kuberig.EmptyDir())
	n := f.node(name, "blockers", func(n protocol.Node) bool {
		// A node that was just made may not be ready yet.
		return n.Pods == 2 && len(n.Blockers) > 0 && !slices.ContainsFunc(n.Blockers, func(b protocol.Blocker) bool { return b.Code == "node_not_ready" })
	})
	if len(n.Blockers) != 1 || n.Blockers[0].Code != "local_data" || !strings.HasPrefix(n.Blockers[0].Resource, "pod/"+ns+"/data-") {
		t.Errorf("blockers %+v", n.Blockers)
	}
}
