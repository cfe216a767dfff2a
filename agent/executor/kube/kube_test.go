package kube

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component"
	"github.com/opsplane/opsplane/agent/executor/kube/device"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// away is an executor on an API server that does not answer.
func away(t *testing.T, o Options) *Executor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
	 "clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"x"}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Cluster.Kubeconfig = path
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func task(typ, step string) *executor.Task {
	return &executor.Task{Assignment: &protocol.Assignment{Operation: "op_1", Type: typ}, Step: protocol.Step{PlanStep: operation.PlanStep{Name: step}}}
}

// Every type of the plane has its steps here, by the plan's own names.
func TestEveryStepIsKnown(t *testing.T) {
	t.Parallel()
	e := away(t, Options{})
	target := operation.Target{Kind: operation.KindNode, ID: "nod_1", Name: "n", UID: "u", Component: "cmp_1"}
	for _, typ := range []string{"node.cordon", "node.uncordon", "node.drain", "device.reset", "deployment.roll", "component.upgrade"} {
		d, found := operation.Lookup(typ)
		if !found {
			t.Fatalf("the plane has no type %s", typ)
		}
		for _, payload := range []string{`{}`, `{"drain":true,"on_cancel":"restore","undo":"on_failure","await_volume_detach":true}`} {
			_, plan := d.Plan(target, []byte(payload))
			for _, s := range plan {
				if x := e.types[typ].Steps[s.Name]; x.Probe == nil || x.Execute == nil {
					t.Errorf("step %s of %s is not known here", s.Name, typ)
				}
			}
		}
	}
}

func TestWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	e := away(t, Options{})
	for _, x := range []*executor.Task{task("node.reboot", "reboot"), task("node.drain", "reboot")} {
		if f := e.Probe(t.Context(), x); f.Phase != operation.StepUnknown || f.ErrorCode != "unknown_step" || !strings.Contains(f.Detail, "reboot") {
			t.Errorf("probe %+v", f)
		}
		if o := e.Execute(t.Context(), x); o.Class != operation.OutcomePermanent || o.ErrorCode != "unknown_step" {
			t.Errorf("execute %+v", o)
		}
	}
	if _, err := e.Preview(t.Context(), protocol.PreviewRequest{Type: "node.reboot"}); err == nil || !strings.Contains(err.Error(), "not known here") {
		t.Errorf("preview: %v", err)
	}
	if end := e.Observe(t.Context(), &protocol.Assignment{Type: "node.reboot"}); end.Observed != nil || len(end.Verified) != 0 {
		t.Errorf("observe %+v", end)
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	names := func(e *Executor) []string {
		var out []string
		for _, c := range e.Capabilities() {
			out = append(out, c.Name)
		}
		return out
	}
	off := names(away(t, Options{}))
	for _, want := range []string{"node.cordon", "node.drain", "deployment.roll", "component.upgrade"} { // the last to be refused by name
		if !slices.Contains(off, want) {
			t.Errorf("%s is not offered: %v", want, off)
		}
	}
	if slices.Contains(off, "device.reset") {
		t.Error("device.reset is offered, and nobody turned it on")
	}
	if !slices.IsSorted(off) || len(slices.Compact(slices.Clone(off))) != len(off) {
		t.Errorf("capabilities %v", off)
	}
	on := names(away(t, Options{Device: device.Config{Enabled: true, Image: "host:1"},
		Component: component.Config{Image: "helm:1", ServiceAccount: "upgrader", Components: map[string]component.Component{"agent": {Release: "a", Namespace: "a", Chart: "/a"}}}}))
	if diff := cmp.Diff([]string{"device.reset"}, slices.DeleteFunc(on, func(s string) bool { return slices.Contains(off, s) })); diff != "" {
		t.Error(diff)
	}
}

// A server that does not answer is told, and nothing hangs on it.
func TestServerAway(t *testing.T) {
	t.Parallel()
	e := away(t, Options{})
	if err := e.Healthy(); err == nil {
		t.Error("healthy without a server")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Snapshot(ctx); err == nil {
		t.Error("a snapshot of nothing")
	}
	if err := e.Watch(ctx, func(executor.Delta) {}); err == nil {
		t.Error("the Watch did not end")
	}
	x := task("node.drain", "cordon")
	x.Assignment.NodeName = "n"
	if f := e.Probe(t.Context(), x); f.Phase != operation.StepUnknown {
		t.Errorf("a probe that could read nothing found %+v", f)
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	has := func(rights []cluster.Right, verb, resource, namespace string) bool {
		return slices.ContainsFunc(rights, func(r cluster.Right) bool {
			return r.Verb == verb && r.Resource == resource && r.Namespace == namespace
		})
	}
	off := Rights(Options{})
	on := Rights(Options{Device: device.Config{Enabled: true}, Component: component.Config{Components: map[string]component.Component{"agent": {}}}})
	if has(off, "create", "jobs", cluster.OwnNamespace) || !has(on, "create", "jobs", cluster.OwnNamespace) {
		t.Error("Jobs are to be granted where a type that makes them is turned on, and only there")
	}
	if !has(off, "create", "pods/eviction", "") || has(on, "list", "pods", cluster.OwnNamespace) {
		t.Error("evictions are needed everywhere, and what is granted everywhere is not granted once more")
	}
	for _, rights := range [][]cluster.Right{off, on} {
		seen := map[string]bool{}
		for _, r := range rights {
			key := strings.Join([]string{r.Namespace, r.Group, r.Resource, r.Verb}, " ")
			if seen[key] || r.Why == "" || r.Verb == "*" || r.Resource == "secrets" || r.Namespace != "" && r.Namespace != cluster.OwnNamespace {
				t.Errorf("right %+v", r)
			}
			seen[key] = true
		}
	}
}
