//go:build kubetest

package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// ofNodes are updates of nodes.
var ofNodes = admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Update},
	Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}}}

// freeze refuses to change one node by an admission policy.
func freeze(t *testing.T, r *kuberig.Rig, n *corev1.Node) (name string) {
	t.Helper()
	admin := r.Client(kuberig.Admin).AdmissionregistrationV1()
	name = r.Name("freeze")
	_, err := admin.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: ptr.To(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: ofNodes}}},
			Validations:      []admissionv1.Validation{{Expression: fmt.Sprintf("object.metadata.name != %q", n.Name), Message: "not on a Monday"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = admin.ValidatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = admin.ValidatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return "policy/" + name
}

// deaden puts a webhook before the changes of one node that nobody answers for.
func deaden(t *testing.T, r *kuberig.Rig, n *corev1.Node) (name string) {
	t.Helper()
	return "webhook/" + hook(t, r, n, "https://127.0.0.1:1/")
}

// hang puts a webhook before the changes of one node that takes connections and never
// answers.
func hang(t *testing.T, r *kuberig.Rig, n *corev1.Node) (name string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // what comes in waits in its backlog
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return hook(t, r, n, "https://"+l.Addr().String()+"/")
}

func hook(t *testing.T, r *kuberig.Rig, n *corev1.Node, url string) (name string) {
	t.Helper()
	admin := r.Client(kuberig.Admin).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	name = r.Name("hook") + ".example.com"
	_, err := admin.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: name, ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(url)}, Rules: []admissionv1.RuleWithOperations{ofNodes},
		FailurePolicy: ptr.To(admissionv1.Fail), SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		MatchConditions: []admissionv1.MatchCondition{{Name: "one", Expression: fmt.Sprintf("request.name == %q", n.Name)}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return name
}

// TestNodePatchRefused: what refuses a node's patch is named by the dry run, and by the
// operation with the same code: nothing was touched.
func TestNodePatchRefused(t *testing.T) {
	t.Parallel()
	for name, hurt := range map[string]func(*testing.T, *kuberig.Rig, *corev1.Node) string{"policy": freeze, "webhook": deaden} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, open, ns := r.Node("refused"), r.Node("admitted"), r.Namespace()
			r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
			a := newAgent(t, r, nil)
			rule := hurt(t, r, n)
			refuses := func(list []protocol.Blocker) bool {
				return len(list) == 1 && list[0].Code == codeRefused && list[0].Rule == rule
			}
			r.Await("it is in force", func(context.Context) (bool, error) {
				return refuses(preview(t, a, "node.cordon", n, `{}`)), nil
			})
			if list := preview(t, a, "node.drain", n, `{}`); !refuses(list) {
				t.Errorf("the dry run of a drain shows %+v", list)
			}
			if list := preview(t, a, "node.cordon", open, `{}`); len(list) != 0 {
				t.Errorf("of another node it shows %+v", list)
			}
			for _, typ := range []string{"node.cordon", "node.drain"} {
				j := newJob(r, typ, n, `{}`)
				if typ == "node.drain" {
					if o := a.execute(t.Context(), j, "preflight"); o.Class != operation.OutcomeDone {
						t.Errorf("the preflight, which touches nothing: %+v", o)
					}
				}
				if o := a.execute(t.Context(), j, "cordon"); o.ErrorCode != codeRefused || !strings.Contains(o.ActionText, strings.Replace(rule, "/", " ", 1)) || o.ActionCode != operation.ActRestoreDependency || (o.Class == operation.OutcomeWaiting) != (name == "webhook") {
					t.Errorf("%s: %+v", typ, o)
				}
			}
			if now := r.NodeNow(n.Name); now.Spec.Unschedulable || now.Annotations[cluster.AnnotationMark] != "" {
				t.Errorf("the node was touched: %v", now.Annotations)
			}
		})
	}
}

// fix has an admission policy set whether one node is schedulable, whatever it is changed to.
func fix(t *testing.T, r *kuberig.Rig, n *corev1.Node, unschedulable bool) {
	t.Helper()
	admin := r.Client(kuberig.Admin).AdmissionregistrationV1()
	name := r.Name("fix")
	_, err := admin.MutatingAdmissionPolicies().Create(t.Context(), &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicySpec{FailurePolicy: ptr.To(admissionv1.Fail), ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: ofNodes}}},
			MatchConditions:  []admissionv1.MatchCondition{{Name: "one", Expression: fmt.Sprintf("object.metadata.name == %q", n.Name)}},
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{
				Expression: fmt.Sprintf(`[JSONPatch{op: "add", path: "/spec/unschedulable", value: %t}]`, unschedulable)}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = admin.MutatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = admin.MutatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// TestNodePatchStripped: a policy that takes the change out of a node's patch has refused
// it, says the dry run and the operation. What came with the change is not left behind.
func TestNodePatchStripped(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"node.cordon", "node.drain", "node.uncordon"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n := r.Node("stripped", kuberig.GPUs(8))
			a := newAgent(t, r, nil)
			if typ == "node.uncordon" {
				a.mustRun(newJob(r, "node.cordon", n, `{}`))
			}
			before := CordonOf(r.NodeNow(n.Name))
			fix(t, r, n, typ == "node.uncordon")
			r.Await("it is in force", func(context.Context) (bool, error) {
				list := preview(t, a, typ, n, `{}`)
				return len(list) == 1 && stripped(list[0].Code, list[0].Rule, list[0].Detail), nil
			})
			j := newJob(r, typ, n, `{}`)
			step, o := a.run(t.Context(), j)
			if o.Class != operation.OutcomePermanent || !stripped(o.ErrorCode, "admission", o.Detail) {
				t.Errorf("at %s with %+v", step, o)
			}
			now := r.NodeNow(n.Name)
			if c := CordonOf(now); (c == nil) != (before == nil) || c != nil && *c != *before {
				t.Errorf("the cordon was %+v, is %+v", before, c)
			}
			if now.Annotations[cluster.AnnotationUncordon] != "" || now.Annotations[annotationDrain] != "" || before == nil && now.Annotations[cluster.AnnotationCordon] != "" {
				t.Errorf("left on the node: %v", now.Annotations)
			}
			if end, d := a.observe(j); typ == "node.drain" && (d.Planned != nil || d.GPUHours == nil || *d.GPUHours != 0 || len(end.Residual) != 0) {
				t.Errorf("told %q, %s", end.Message, end.Details)
			}
		})
	}
}

// TestStrippedTakeOver: a person's cordon whose lift a policy takes out is no operation's,
// though the API server does not know any more who had closed the node, and an operation's
// words of an earlier cordon are there.
func TestStrippedTakeOver(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n := r.Node("taken-over")
	a := newAgent(t, r, nil)
	a.mustRun(newJob(r, "node.cordon", n, `{}`))
	byHand(t, r, n.Name, uncordonPatch)
	byHand(t, r, n.Name, cordonPatch)
	fix(t, r, n, true)
	r.Await("it is in force", func(context.Context) (bool, error) {
		list := preview(t, a, "node.uncordon", n, `{"take_over":true}`)
		return len(list) == 1 && stripped(list[0].Code, list[0].Rule, list[0].Detail), nil
	})
	if step, o := a.run(t.Context(), newJob(r, "node.uncordon", n, `{"take_over":true}`)); !stripped(o.ErrorCode, "admission", o.Detail) || !strings.Contains(o.Detail, "still that of external kubectl-cordon since ") {
		t.Errorf("at %s with %+v", step, o)
	}
	if c := CordonOf(r.NodeNow(n.Name)); c == nil || c.Owner != "external" {
		t.Errorf("the cordon is %+v", c)
	}
	if step, o := a.run(t.Context(), newJob(r, "node.uncordon", n, `{}`)); o.ErrorCode != "cordon_not_owned" {
		t.Errorf("then: at %s with %+v", step, o)
	}
}

// TestStrippedPatchOfADyingAgent: an agent that dies before it has taken back what came with
// a change that was taken out leaves it to the next lease, which tells what it meets. A
// person who opens the node is told as one.
func TestStrippedPatchOfADyingAgent(t *testing.T) {
	t.Parallel()
	dies := func(a *agent, j *job, name string) {
		patches := 0
		j.fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			if patches++; patches > 1 {
				return nil, func() {}, executor.ErrFenced
			}
			return ctx, func() {}, nil
		}
		if o := a.execute(t.Context(), j, name); !stripped(o.ErrorCode, "admission", o.Detail) || !strings.Contains(o.Detail, "its annotations may still be there") {
			t.Fatalf("%s: %+v", name, o)
		}
		j.step(name).Phase = operation.StepRunning
	}
	inForce := func(r *kuberig.Rig, a *agent, typ string, n *corev1.Node) {
		r.Await("it is in force", func(context.Context) (bool, error) {
			list := preview(t, a, typ, n, `{}`)
			return len(list) == 1 && stripped(list[0].Code, list[0].Rule, list[0].Detail), nil
		})
	}
	t.Run("cordon", func(t *testing.T) {
		t.Parallel()
		r := kuberig.Shared(t)
		n := r.Node("dying", kuberig.GPUs(8))
		a, heir := newAgent(t, r, nil), newAgent(t, r, nil)
		fix(t, r, n, false)
		inForce(r, a, "node.drain", n)
		j := newJob(r, "node.drain", n, `{"on_cancel":"restore"}`)
		if o := a.execute(t.Context(), j, "preflight"); o.Class != operation.OutcomeDone {
			t.Fatalf("%+v", o)
		}
		dies(a, j, "cordon")
		if now := r.NodeNow(n.Name); now.Annotations[cluster.AnnotationCordon] == "" || now.Spec.Unschedulable {
			t.Fatalf("the node has %v", now.Annotations)
		}
		j = j.generation(2)
		if f := heir.probe(t.Context(), j, "restore"); f.Phase != operation.StepSucceeded || !f.Nothing {
			t.Errorf("to restore it finds %+v", f)
		}
		if o := heir.execute(t.Context(), j, "cordon"); !stripped(o.ErrorCode, "admission", o.Detail) {
			t.Errorf("the next lease: %+v", o)
		}
		now := r.NodeNow(n.Name)
		if now.Annotations[cluster.AnnotationCordon] != "" || now.Annotations[annotationDrain] != "" {
			t.Errorf("left on the node: %v", now.Annotations)
		}
		if end, d := heir.observe(j); d.Planned != nil || d.GPUHours == nil || *d.GPUHours != 0 || len(end.Residual) != 0 {
			t.Errorf("told %q, %s", end.Message, end.Details)
		}
	})
	t.Run("uncordon", func(t *testing.T) {
		t.Parallel()
		r := kuberig.Shared(t)
		n := r.Node("dying")
		a, heir := newAgent(t, r, nil), newAgent(t, r, nil)
		a.mustRun(newJob(r, "node.cordon", n, `{}`))
		before := CordonOf(r.NodeNow(n.Name))
		fix(t, r, n, true)
		inForce(r, a, "node.uncordon", n)
		j := newJob(r, "node.uncordon", n, `{}`)
		dies(a, j, "uncordon")
		now := r.NodeNow(n.Name)
		if c := CordonOf(now); now.Annotations[cluster.AnnotationUncordon] == "" || c == nil || *c != *before {
			t.Errorf("the cordon was %+v, is %+v; %v", before, c, now.Annotations)
		}
		if o := heir.execute(t.Context(), j.generation(2), "uncordon"); !stripped(o.ErrorCode, "admission", o.Detail) {
			t.Errorf("the next lease: %+v", o)
		}
		now = r.NodeNow(n.Name)
		if c := CordonOf(now); now.Annotations[cluster.AnnotationUncordon] != "" || c == nil || *c != *before {
			t.Errorf("left on the node: %v", now.Annotations)
		}
	})
	t.Run("by a person", func(t *testing.T) {
		t.Parallel()
		r := kuberig.Shared(t)
		n := r.Node("opened")
		a, heir := newAgent(t, r, nil), newAgent(t, r, nil)
		j := newJob(r, "node.cordon", n, `{}`)
		if o := a.execute(t.Context(), j, "cordon"); o.Class != operation.OutcomeDone {
			t.Fatalf("%+v", o)
		}
		byHand(t, r, n.Name, uncordonPatch)
		if o := heir.execute(t.Context(), j.generation(2), "cordon"); o.ErrorCode != "uncordoned_externally" {
			t.Errorf("the next lease: %+v", o)
		}
	})
}

// TestCordonRefusedLate: a policy that comes between preflight and cordon. The drain
// took nothing out of service.
func TestCordonRefusedLate(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("frozen", kuberig.GPUs(8)), r.Namespace()
	r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{}`)
	if o := a.execute(t.Context(), j, "preflight"); o.Class != operation.OutcomeDone {
		t.Fatalf("%+v", o)
	}
	freeze(t, r, n)
	r.Await("it is in force", func(context.Context) (bool, error) {
		return len(preview(t, a, "node.cordon", n, `{}`)) == 1, nil
	})
	if o := a.execute(t.Context(), j, "cordon"); o.ErrorCode != codeRefused || o.Class != operation.OutcomePermanent {
		t.Fatalf("%+v", o)
	}
	for who, a := range map[string]*agent{"the agent": a, "another": newAgent(t, r, nil)} {
		if end, d := a.observe(j); d.Planned != nil || d.GPUs == nil || *d.GPUs != 0 || d.GPUHours == nil || *d.GPUHours != 0 || len(end.Residual) != 0 || !strings.Contains(end.Message, "schedulable, no pod was evicted") {
			t.Errorf("%s tells %q, left %+v, %s", who, end.Message, end.Residual, end.Details)
		}
	}
}

// TestCordonBehindAWebhookThatHangs: what the cordon waits for is shown, and the drain
// counts from when the node was cordoned.
func TestCordonBehindAWebhookThatHangs(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("hung", kuberig.GPUs(8)), r.Namespace()
	r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
	a := newAgent(t, r, func(o *cluster.Options) { o.CallTimeout = time.Second })
	j := newJob(r, "node.drain", n, `{}`)
	if o := a.execute(t.Context(), j, "preflight"); o.Class != operation.OutcomeDone {
		t.Fatalf("%+v", o)
	}
	name := hang(t, r, n)
	r.Await("it is in force", func(context.Context) (bool, error) {
		return len(preview(t, a, "node.cordon", n, `{}`)) == 1, nil
	})
	result := a.start(j)
	j.await(t, "that it hangs is shown", func() bool { return j.blocked("api_error") })
	lifted := time.Now()
	if err := r.Client(kuberig.Admin).AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	j.await(t, "it is shown no longer", func() bool {
		shown := slices.IndexFunc(j.blockers, func(list []protocol.Blocker) bool { return hasCode(list, "api_error") })
		return slices.ContainsFunc(j.blockers[shown:], func(list []protocol.Blocker) bool { return len(list) == 0 })
	})
	if e := <-result; e.o.Class != operation.OutcomeDone {
		t.Fatalf("%+v", e)
	}
	c := CordonOf(r.NodeNow(n.Name))
	end, d := a.observe(j)
	if c == nil || d.Planned == nil || !d.Planned.Equal(c.Since) || c.Since.Before(lifted.Add(-2*time.Second)) {
		t.Errorf("lifted at %s, cordoned by %+v, told %s", lifted, c, end.Details)
	}
}

// TestNodeDeletedMidDrain: the node's GPUs were out of service from its cordon until it
// was gone, which another agent has from the journal.
func TestNodeDeletedMidDrain(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("doomed", kuberig.GPUs(8)), r.Namespace()
	r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
	r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
	r.AwaitPDB(ns, "web", "counts 1", func(b *budgetObject) bool { return b.Status.CurrentHealthy == 1 })
	a := newAgent(t, r, nil)
	j := newJob(r, "node.drain", n, `{}`)
	begun := time.Now()
	result := a.start(j)
	j.await(t, "the budget holds", func() bool { return j.blocked("pdb") && len(j.progress) > 0 })
	if err := r.Client(kuberig.Admin).CoreV1().Nodes().Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-result; e.o.ErrorCode != "node_gone" {
		t.Fatalf("%+v", e)
	}
	most := 8 * time.Since(begun).Hours()
	end, d := a.observe(j)
	if d.GPUs == nil || *d.GPUs != 8 || d.GPUHours == nil || *d.GPUHours <= 0 || *d.GPUHours > most || d.Planned == nil || d.Planned.Before(begun) {
		t.Errorf("%s, at most %f", end.Details, most)
	}
	end, heir := newAgent(t, r, nil).observe(j)
	if heir.GPUs == nil || *heir.GPUs != 8 || heir.GPUHours != nil || heir.Planned == nil || !heir.Planned.Equal(*d.Planned) {
		t.Errorf("another: %s", end.Details)
	}
}

// TestBareBehindMaxUnavailable: a budget that counts no pods says so, and what helps.
func TestBareBehindMaxUnavailable(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("bare"), r.Namespace()
	r.Pod(ns, "web", kuberig.OnNode(n.Name), kuberig.Spec(func(meta *metav1.ObjectMeta, _ *podSpec) { meta.Labels = map[string]string{"app": "web"} }))
	r.PDB(ns, "web", "web", kuberig.MaxUnavailable("1"))
	r.AwaitPDB(ns, "web", "has seen the pod", func(b *budgetObject) bool { return b.Status.CurrentHealthy == 1 })
	a := newAgent(t, r, nil)
	list := preview(t, a, "node.drain", n, `{"force":true}`)
	if len(list) != 1 || list[0].Code != "pdb" || !strings.Contains(list[0].Detail, "InsufficientPods, for it expects 0 pods") {
		t.Errorf("the dry run shows %+v", list)
	}
	j := newJob(r, "node.drain", n, `{"force":true}`).within(3 * time.Second)
	if step, o := a.run(t.Context(), j); step != "evict" || o.ErrorCode != "pdb_blocked" || !strings.Contains(o.ActionText, "set minAvailable of PDB "+ns+"/web to a number") {
		t.Errorf("at %s with %+v", step, o)
	}
}
