//go:build kubetest

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// byHand changes a node as a person does with other tools.
func byHand(t *testing.T, r *kuberig.Rig, node, patch string) {
	t.Helper()
	if _, err := r.Client(kuberig.Admin).CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-cordon"}); err != nil {
		t.Fatal(err)
	}
}

const (
	cordonPatch   = `{"spec":{"unschedulable":true}}`
	uncordonPatch = `{"spec":{"unschedulable":null}}`
)

// remake deletes the node and makes another of its name.
func remake(t *testing.T, r *kuberig.Rig, name string) {
	t.Helper()
	admin := r.Client(kuberig.Admin).CoreV1().Nodes()
	old := r.NodeNow(name)
	if err := admin.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: old.Labels}}
	if _, err := admin.Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestHandsOnDuringDrain: what people do to the node while it is drained.
func TestHandsOnDuringDrain(t *testing.T) {
	t.Parallel()
	does := map[string]struct {
		do   func(t *testing.T, r *kuberig.Rig, node string)
		code string
	}{
		"uncordoned": {func(t *testing.T, r *kuberig.Rig, node string) { byHand(t, r, node, uncordonPatch) }, "uncordoned_externally"},
		"deleted": {func(t *testing.T, r *kuberig.Rig, node string) {
			if err := r.Client(kuberig.Admin).CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, "node_gone"},
		"remade": {remake, "node_replaced"},
	}
	places := map[string]struct {
		make    place
		blocked string
	}{
		"evict": {func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node))
			r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
		}, "pdb"},
		"wait": {func(r *kuberig.Rig, ns, node string) {
			r.Deployment(ns, "web", 1, kuberig.OnNode(node), kuberig.Grace(60), kuberig.IgnoreSigterm())
		}, "terminating"},
	}
	for what, does := range does {
		for step, at := range places {
			t.Run(what+"_in_"+step, func(t *testing.T) {
				t.Parallel()
				r := kuberig.Shared(t)
				n, ns := r.Node("hands"), r.Namespace()
				at.make(r, ns, n.Name)
				on := r.PodsOn(n.Name)
				a := newAgent(t, r, nil)
				j := newJob(r, "node.drain", n, `{"on_cancel":"restore"}`)
				type ended struct {
					step string
					o    executor.Outcome
				}
				result := make(chan ended, 1)
				go func() {
					s, o := a.run(context.Background(), j)
					result <- ended{s, o}
				}()
				j.await(t, "the drain is held up", func() bool { return j.blocked(at.blocked) && len(j.progress) > 0 })
				does.do(t, r, n.Name)
				e := <-result
				if e.o.ErrorCode != does.code || e.o.Class != operation.OutcomePermanent || e.step != step {
					t.Fatalf("the drain ended at %s with %+v", e.step, e.o)
				}
				before := len(j.commands)
				if o := a.execute(t.Context(), j, "restore"); o.Class != operation.OutcomeDone {
					t.Fatalf("restore: %+v", o)
				}
				if len(j.commands) != before {
					t.Fatalf("restore acted on a node that is not its own: %q", j.commands[before:])
				}
				end, _ := a.observe(j)
				t.Logf("%s: %s, verified %q, residual %+v", e.o.Detail, end.Message, end.Verified, end.Residual)
				said := ""
				for _, r := range end.Residual {
					said += r.Detail
				}
				if what != "uncordoned" && (!strings.Contains(said, on[0].Name) || strings.Contains(e.o.ActionText, "name a target")) {
					t.Errorf("pods that are still there: %q, what to do: %q", said, e.o.ActionText)
				}
				for _, v := range end.Verified {
					if v == "node is cordoned" {
						t.Errorf("verified %q", end.Verified)
					}
				}
			})
		}
	}
}

func TestCordonOwnership(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	a := newAgent(t, r, nil)
	owner := func(n *corev1.Node) string {
		c := CordonOf(r.NodeNow(n.Name))
		if c == nil {
			return ""
		}
		return c.Owner + " " + c.By
	}

	t.Run("ours", func(t *testing.T) {
		n := r.Node("ours")
		a.mustRun(newJob(r, "node.cordon", n, `{}`))
		if got := owner(n); got != "opsplane tester" {
			t.Fatalf("owner %q", got)
		}
		a.mustRun(newJob(r, "node.uncordon", n, `{}`))
		if now := r.NodeNow(n.Name); now.Spec.Unschedulable || now.Annotations[cluster.AnnotationCordon] != "" {
			t.Fatalf("after the uncordon %+v", now)
		}
	})
	t.Run("a person's", func(t *testing.T) {
		n := r.Node("theirs", kuberig.Cordoned())
		j := newJob(r, "node.cordon", n, `{}`)
		a.mustRun(j)
		if len(j.notes) != 1 || !strings.HasPrefix(j.notes[0], "cordon_kept: ") || !strings.HasPrefix(owner(n), "external ") {
			t.Fatalf("notes %q, owner %q", j.notes, owner(n))
		}
		if got := codes(preview(t, a, "node.uncordon", n, `{}`)); len(got) != 1 || got[0] != "cordon_not_owned" {
			t.Fatalf("preview %q", got)
		}
		if step, o := a.run(t.Context(), newJob(r, "node.uncordon", n, `{}`)); step != "uncordon" || o.ErrorCode != "cordon_not_owned" || o.Class != operation.OutcomePermanent {
			t.Fatalf("at %s with %+v", step, o)
		}
		j = newJob(r, "node.uncordon", n, `{"take_over":true}`)
		a.mustRun(j)
		if len(j.notes) != 1 || !strings.HasPrefix(j.notes[0], "cordon_taken_over: the cordon that was lifted: owner external, by ") {
			t.Fatalf("notes %q", j.notes)
		}
	})
	t.Run("a person's in place of ours", func(t *testing.T) {
		// kubectl leaves our annotation behind; the cordon is the person's all the same.
		n := r.Node("both")
		a.mustRun(newJob(r, "node.cordon", n, `{}`))
		byHand(t, r, n.Name, uncordonPatch)
		byHand(t, r, n.Name, cordonPatch)
		if got := owner(n); got != "external kubectl-cordon" {
			t.Fatalf("owner %q", got)
		}
		if step, o := a.run(t.Context(), newJob(r, "node.uncordon", n, `{}`)); step != "uncordon" || o.ErrorCode != "cordon_not_owned" {
			t.Fatalf("at %s with %+v", step, o)
		}
	})
	t.Run("a person's beside ours", func(t *testing.T) {
		n := r.Node("shared")
		j := newJob(r, "node.drain", n, `{"on_cancel":"restore"}`)
		a.mustRun(j)
		applied := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"spec":{"unschedulable":true}}`, n.Name)
		if _, err := r.Client(kuberig.Admin).CoreV1().Nodes().Patch(t.Context(), n.Name, types.ApplyPatchType, []byte(applied), metav1.PatchOptions{FieldManager: "alice"}); err != nil {
			t.Fatal(err)
		}
		if got := owner(n); got != "external alice" {
			t.Fatalf("owner %q of %+v", got, r.NodeNow(n.Name).ManagedFields)
		}
		if o := a.execute(t.Context(), j, "restore"); o.Class != operation.OutcomeDone || !o.Nothing || !strings.Contains(o.Detail, "external alice") {
			t.Fatalf("restore: %+v", o)
		}
		if list := preview(t, a, "node.uncordon", n, `{}`); len(list) != 1 || list[0].Code != "cordon_not_owned" || !strings.Contains(list[0].Detail, "external alice") {
			t.Fatalf("preview %+v", list)
		}
		if step, o := a.run(t.Context(), newJob(r, "node.uncordon", n, `{}`)); step != "uncordon" || o.ErrorCode != "cordon_not_owned" || !r.NodeNow(n.Name).Spec.Unschedulable {
			t.Fatalf("at %s with %+v", step, o)
		}
		a.mustRun(newJob(r, "node.uncordon", n, `{"take_over":true}`))
		a.mustRun(newJob(r, "node.cordon", n, `{}`))
		if got := owner(n); got != "opsplane tester" { // alice's went with the lift
			t.Fatalf("owner %q of %+v", got, r.NodeNow(n.Name).ManagedFields)
		}
	})
	t.Run("another operation's", func(t *testing.T) {
		n := r.Node("other")
		a.mustRun(newJob(r, "node.cordon", n, `{}`))
		j := newJob(r, "node.drain", n, `{"on_cancel":"restore"}`)
		a.mustRun(j)
		if o := a.execute(t.Context(), j, "restore"); o.Class != operation.OutcomeDone || !r.NodeNow(n.Name).Spec.Unschedulable {
			t.Fatalf("restore lifted another operation's cordon: %+v", o)
		}
		a.mustRun(newJob(r, "node.uncordon", n, `{}`)) // any of Opsplane's
	})
	t.Run("lifted before the end", func(t *testing.T) {
		n := r.Node("lifted")
		j := newJob(r, "node.cordon", n, `{}`)
		if o := a.execute(t.Context(), j, "cordon"); o.Class != operation.OutcomeDone {
			t.Fatal(o)
		}
		byHand(t, r, n.Name, uncordonPatch)
		if o := a.execute(t.Context(), j, "confirm"); o.ErrorCode != "uncordoned_externally" || o.Class != operation.OutcomePermanent {
			t.Fatalf("confirm: %+v", o)
		}
		if o := a.execute(t.Context(), j.generation(2), "cordon"); o.ErrorCode != "uncordoned_externally" {
			t.Fatalf("a successor's cordon: %+v", o)
		}
		j = newJob(r, "node.cordon", n, `{}`)
		j.Run = 2
		a.mustRun(j)
	})
	t.Run("gone and another", func(t *testing.T) {
		n := r.Node("gone")
		remake(t, r, n.Name)
		for _, typ := range []string{"node.cordon", "node.uncordon", "node.drain"} {
			if step, o := a.run(t.Context(), newJob(r, typ, n, `{}`)); step == "" || o.ErrorCode != "node_replaced" || o.Class != operation.OutcomePermanent {
				t.Errorf("%s: at %s with %+v", typ, step, o)
			}
			if got := codes(preview(t, a, typ, n, `{}`)); len(got) != 1 || got[0] != "node_replaced" {
				t.Errorf("preview of %s: %q", typ, got)
			}
		}
		n.Name += "-not-there"
		if step, o := a.run(t.Context(), newJob(r, "node.cordon", n, `{}`)); step == "" || o.ErrorCode != "node_gone" {
			t.Errorf("at %s with %+v", step, o)
		}
	})
}

func TestCancelAndRestore(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	a := newAgent(t, r, nil)
	for _, cordoned := range []bool{false, true} {
		t.Run(fmt.Sprintf("cordoned=%t", cordoned), func(t *testing.T) {
			n, ns := r.Node("cancel"), r.Namespace()
			r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
			r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
			if cordoned {
				byHand(t, r, n.Name, cordonPatch)
			}
			j := newJob(r, "node.drain", n, `{"on_cancel":"restore"}`)
			result := make(chan executor.Outcome, 1)
			go func() {
				_, o := a.run(context.Background(), j)
				result <- o
			}()
			j.await(t, "the drain is held up", func() bool { return j.blocked("pdb") && len(j.progress) > 0 })
			begin := time.Now()
			close(j.cancelled)
			if o := <-result; o.Class != operation.OutcomeWaiting || o.ErrorCode != "cancelled" || time.Since(begin) > 10*time.Second {
				t.Fatalf("cancelled after %s: %+v", time.Since(begin), o)
			}
			if o := a.execute(t.Context(), j, "restore"); o.Class != operation.OutcomeDone {
				t.Fatalf("restore: %+v", o)
			}
			if f := a.probe(t.Context(), j, "restore"); f.Phase != operation.StepSucceeded {
				t.Fatalf("restore probed: %+v", f)
			}
			if got := r.NodeNow(n.Name).Spec.Unschedulable; got != cordoned {
				t.Errorf("the node is left unschedulable %t", got)
			}
		})
	}
}
