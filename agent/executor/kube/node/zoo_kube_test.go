//go:build kubetest

package node

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// place makes what a test drains on a node.
type place func(r *kuberig.Rig, ns, node string)

func preview(t *testing.T, a *agent, typ string, n *corev1.Node, payload string) []protocol.Blocker {
	t.Helper()
	b, err := a.types[typ].Preview(t.Context(), protocol.PreviewRequest{ID: "prv_1", Type: typ, TargetName: "node:" + n.Name, TargetUID: string(n.UID), Payload: json.RawMessage(payload)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func codes(list []protocol.Blocker) (codes []string) {
	for _, b := range list {
		codes = append(codes, b.Code)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// TestZoo drains one node for each kind of pod that field reports name.
func TestZoo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		make    place
		payload string
		within  time.Duration
		// preview is what the dry run shows, by code.
		preview []string
		// step and code are where and how the drain ends; "" is success.
		step, class, code string
		detail            string // part of the outcome's detail
		evictions         int    // commands that were accepted
	}{
		{name: "pdb wants all", within: 8 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node))
			r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
		}, preview: []string{"pdb"}, step: "evict", class: operation.OutcomeWaiting, code: "pdb_blocked", detail: "it needs every one of its 1 pods"},
		{name: "pdb wants all and force", within: 10 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node))
			r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
		}, payload: `{"on_deadline":"force","force_window_seconds":4}`, preview: []string{"pdb"}, evictions: 1},
		{name: "two pdbs", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 2, kuberig.OnNode(node))
			r.PDB(ns, "one", "web", kuberig.MaxUnavailable("1"))
			r.PDB(ns, "two", "web", kuberig.MaxUnavailable("1"))
		}, preview: []string{"two_pdbs"}, step: "preflight", class: operation.OutcomePermanent, code: "two_pdbs", detail: "two disruption budgets"},
		{name: "max unavailable 1", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 4, kuberig.PreferNode(node, r.Node("other").Name))
			r.PDB(ns, "web", "web", kuberig.MaxUnavailable("1"))
		}, evictions: 4},
		{name: "unready behind its pdb", within: 8 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.Unready())
			r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
		}, preview: []string{"pdb"}, step: "evict", class: operation.OutcomeWaiting, code: "pdb_blocked", detail: "the pod is not ready"},
		{name: "unready and always allowed", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.Unready())
			r.PDB(ns, "web", "web", kuberig.MinAvailable("1"), kuberig.AlwaysAllow())
		}, evictions: 1},
		{name: "never started", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.NeverReady())
			r.Await("the pod is bound", func(context.Context) (bool, error) { return len(r.PodsOn(node)) == 1, nil })
			r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
		}, evictions: 1},
		{name: "unmanaged", make: func(r *kuberig.Rig, ns, node string) { r.Pod(ns, "bare", kuberig.OnNode(node)) },
			preview: []string{"unmanaged_pod"}, step: "preflight", class: operation.OutcomePermanent, code: "unmanaged_pod", detail: "has no controller"},
		{name: "unmanaged and force", make: func(r *kuberig.Rig, ns, node string) { r.Pod(ns, "bare", kuberig.OnNode(node)) },
			payload: `{"force":true}`, evictions: 1},
		{name: "local data", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.EmptyDir())
		}, preview: []string{"local_data"}, step: "preflight", class: operation.OutcomePermanent, code: "local_data", detail: "emptyDir"},
		{name: "local data allowed", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.EmptyDir())
		}, payload: `{"delete_emptydir_data":true}`, evictions: 1},
		{name: "finished", make: func(r *kuberig.Rig, ns, node string) {
			r.Job(ns, "done", 2, kuberig.OnNode(node))
			r.Await("the job is over", func(context.Context) (bool, error) {
				over := 0
				for _, p := range r.PodsOn(node) {
					if p.Status.Phase == corev1.PodSucceeded {
						over++
					}
				}
				return over == 2, nil
			})
		}, evictions: 2},
		{name: "mirror", make: func(r *kuberig.Rig, ns, node string) { r.Pod(ns, "static", kuberig.OnNode(node), kuberig.Mirror()) }},
		{name: "daemonset", make: func(r *kuberig.Rig, ns, _ string) { r.DaemonSet(ns, "exporter", kuberig.EmptyDir()) }},
		{name: "empty", make: func(*kuberig.Rig, string, string) {}},
		{name: "finalizer", within: 8 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Pod(ns, "held", kuberig.OnNode(node), kuberig.Finalizer("example.com/hold"))
		}, payload: `{"force":true}`, preview: []string{"finalizer"}, step: "wait", class: operation.OutcomeWaiting, code: "finalizer", detail: "example.com/hold", evictions: 1},
		{name: "stopped and held by a finalizer", within: 8 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Pod(ns, "held", kuberig.OnNode(node), kuberig.Finalizer("example.com/hold"))
			if err := r.Client(kuberig.Admin).CoreV1().Pods(ns).Delete(context.Background(), "held", metav1.DeleteOptions{}); err != nil {
				panic(err)
			}
			r.Await("its kubelet stopped it", func(context.Context) (bool, error) {
				on := r.PodsOn(node)
				return len(on) == 1 && isFinished(&on[0]) && on[0].DeletionTimestamp != nil, nil
			})
		}, preview: []string{"finalizer"}, step: "wait", class: operation.OutcomeWaiting, code: "finalizer", detail: "example.com/hold"},
		{name: "finalizer and force", within: 10 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Pod(ns, "held", kuberig.OnNode(node), kuberig.Finalizer("example.com/hold"))
		}, payload: `{"force":true,"on_deadline":"force","force_window_seconds":4}`, preview: []string{"finalizer"}, step: "wait", class: operation.OutcomeWaiting, code: "finalizer", detail: "0 of 1 pods gone, waiting for", evictions: 1},
		{name: "slow stop", within: 8 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.Grace(300), kuberig.IgnoreSigterm())
		}, step: "wait", class: operation.OutcomeWaiting, code: "slow_stop", detail: "grace period of 5m0s", evictions: 1},
		{name: "slow stop, grace replaced", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.Grace(300), kuberig.IgnoreSigterm())
		}, payload: `{"grace_period_seconds":1}`, evictions: 1},
		{name: "slow stop and force", within: 20 * time.Second, make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.Grace(300), kuberig.IgnoreSigterm())
		}, payload: `{"on_deadline":"force","force_window_seconds":12}`, evictions: 2},
		{name: "statefulset", make: func(r *kuberig.Rig, ns, node string) { r.StatefulSet(ns, "db", 2, kuberig.OnNode(node)) }, evictions: 2},
		{name: "selected", make: func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 2, kuberig.OnNode(node))
			r.Deployment(ns, "api", 1, kuberig.OnNode(node), kuberig.EmptyDir())
		}, payload: `{"pod_selector":"app in (web)"}`, evictions: 2},
		{name: "bad selector", make: func(*kuberig.Rig, string, string) {}, payload: `{"pod_selector":"!!"}`, preview: []string{"invalid_payload"},
			step: "preflight", class: operation.OutcomePermanent, code: "invalid_payload", detail: "pod_selector"},
		{name: "device that nobody can tell", make: func(*kuberig.Rig, string, string) {}, payload: `{"device":"GPU-1"}`, preview: []string{"device_pods_unknown"},
			step: "preflight", class: operation.OutcomePermanent, code: "device_pods_unknown", detail: "GPU-1"},
	}
	for _, tc := range tests {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("zoo"), r.Namespace()
			tc.make(r, ns, n.Name)
			a := newAgent(t, r, nil)
			payload := tc.payload
			if payload == "" {
				payload = `{}`
			}
			if got := codes(preview(t, a, "node.drain", n, payload)); !slices.Equal(got, tc.preview) {
				t.Errorf("the dry run shows %q, not %q", got, tc.preview)
			}
			if now := r.NodeNow(n.Name); now.Spec.Unschedulable || now.Annotations[cluster.AnnotationMark]+now.Annotations[cluster.AnnotationCordon]+now.Annotations[annotationDrain] != "" {
				t.Errorf("the dry run touched the node: %v", now.Annotations)
			}
			j := newJob(r, "node.drain", n, payload)
			if tc.within > 0 {
				j.within(tc.within)
			}
			step, o := a.run(t.Context(), j)
			if step != tc.step || o.ErrorCode != tc.code || tc.step != "" && (o.Class != tc.class || !strings.Contains(o.Detail, tc.detail)) {
				t.Fatalf("the drain ended at %q with %+v; progress %q", step, o, j.progress)
			}
			accepted := 0
			for _, c := range j.commands {
				if strings.HasSuffix(c, " ok") && !strings.HasPrefix(c, "cordon") {
					accepted++
				}
			}
			if accepted != tc.evictions {
				t.Errorf("%d calls were accepted, not %d: %q", accepted, tc.evictions, j.commands)
			}
			if refused := step == "preflight"; refused == r.NodeNow(n.Name).Spec.Unschedulable {
				t.Errorf("refused %t and cordoned %t", refused, !refused)
			}
			end, d := a.observe(j)
			if tc.step == "" && (len(end.Residual) > 0 || d.Counts.Gone != d.Counts.Planned) || tc.step == "wait" && len(end.Residual) != 2 {
				t.Errorf("observed %+v", end)
			}
			t.Logf("%s: %s %s; %q %q", o.Detail, end.Message, end.Verified, j.commands, j.notes)
		})
	}
}
