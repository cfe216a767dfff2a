//go:build kubetest

package node

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// ofEvictions are evictions.
var ofEvictions = admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Create},
	Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}}}

// slowHook has a webhook that allows whatever it is asked, after so long, asked about
// what the rule names and the condition holds of.
func slowHook(t *testing.T, r *kuberig.Rig, rule admissionv1.RuleWithOperations, condition string, takes time.Duration, timeoutSeconds int32) {
	t.Helper()
	askedHook(t, r, rule, condition, timeoutSeconds, func(ctx context.Context, _ *admissionreview.AdmissionRequest) {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
		}
	})
}

// askedHook has a webhook that allows whatever it is asked, once asked has returned.
func askedHook(t *testing.T, r *kuberig.Rig, rule admissionv1.RuleWithOperations, condition string, timeoutSeconds int32,
	asked func(ctx context.Context, q *admissionreview.AdmissionRequest)) {
	t.Helper()
	answeringHook(t, r, admissionv1.ValidatingWebhook{FailurePolicy: ptr.To(admissionv1.Ignore), TimeoutSeconds: &timeoutSeconds, SideEffects: ptr.To(admissionv1.SideEffectClassNoneOnDryRun)},
		rule, condition, func(ctx context.Context, q *admissionreview.AdmissionRequest) *admissionreview.AdmissionResponse {
			asked(ctx, q)
			return &admissionreview.AdmissionResponse{Allowed: true}
		})
}

// answeringHook has a webhook that answers as answer says what the rule names and the
// condition holds of.
func answeringHook(t *testing.T, r *kuberig.Rig, like admissionv1.ValidatingWebhook, rule admissionv1.RuleWithOperations, condition string,
	answer func(ctx context.Context, q *admissionreview.AdmissionRequest) *admissionreview.AdmissionResponse) (name string) {
	t.Helper()
	admin := r.Client(kuberig.Admin).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	name = r.Name("asked") + ".example.com"
	like.Name, like.AdmissionReviewVersions, like.Rules = name, []string{"v1"}, []admissionv1.RuleWithOperations{rule}
	like.ClientConfig = answering(t, answer)
	like.MatchConditions = []admissionv1.MatchCondition{{Name: "here", Expression: condition}}
	_, err := admin.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{like}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return name
}

// answering is where a webhook answers as answer says.
func answering(t *testing.T, answer func(ctx context.Context, q *admissionreview.AdmissionRequest) *admissionreview.AdmissionResponse) admissionv1.WebhookClientConfig {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionreview.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = answer(req.Context(), review.Request)
		review.Response.UID = review.Request.UID
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return admissionv1.WebhookClientConfig{URL: ptr.To(s.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
}

// TestDrainBehindSlowWebhook: the API server asks a webhook about evictions that takes
// longer than calls are given. The drain comes to its end, and shows what it waited for.
func TestDrainBehindSlowWebhook(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes   time.Duration
		timeout int32 // seconds; then the API server goes on without it
	}{
		"one that hangs":  {time.Hour, 10},
		"one that allows": {12 * time.Second, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("slow"), r.Namespace()
			r.Deployment(ns, "web", 2, kuberig.OnNode(n.Name))
			user := r.User("agent")
			grant(r, user)
			a := agentOf(t, r.Kubeconfig(user), nil)
			slowHook(t, r, ofEvictions, fmt.Sprintf("request.namespace == %q", ns), tt.takes, tt.timeout)
			r.Await("it is in force", func(context.Context) (bool, error) {
				list := preview(t, a, "node.drain", n, `{}`)
				return len(list) > 0 && list[0].Code == "api_error", nil
			})
			r.MarkAudit()
			j := newJob(r, "node.drain", n, `{}`).within(90 * time.Second)
			a.mustRun(j)
			shown := 0
			for _, list := range j.blockers {
				for _, b := range list {
					if b.Code == codeUnanswered && b.Since != nil {
						shown++
					}
				}
			}
			if shown == 0 {
				t.Errorf("shown %+v", j.blockers)
			}
			if _, d := a.observe(j); d.Counts.Gone != 2 {
				t.Errorf("counts %+v", d.Counts)
			}
			once(t, r, user, 2)
		})
	}
}

// TestCordonBehindSlowWebhook: the API server asks a webhook about the node that takes
// longer than calls are given. The cordon comes through, and so does its end.
func TestCordonBehindSlowWebhook(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n := r.Node("slow")
	a := newAgent(t, r, nil)
	slowHook(t, r, ofNodes, fmt.Sprintf("request.name == %q", n.Name), 10*time.Second, 30)
	r.Await("it is in force", func(context.Context) (bool, error) {
		return len(preview(t, a, "node.cordon", n, `{}`)) == 1, nil
	})
	for _, typ := range []string{"node.cordon", "node.uncordon"} {
		j := newJob(r, typ, n, `{}`).within(2 * time.Minute)
		a.mustRun(j)
		if len(j.blockers) == 0 {
			t.Errorf("%s: shown %+v", typ, j.blockers)
		}
		if now := r.NodeNow(n.Name).Spec.Unschedulable; now != (typ == "node.cordon") {
			t.Errorf("after %s the node is unschedulable: %t", typ, now)
		}
	}
}

// TestForcedBehindSlowWebhook: the API server asks a webhook about deletions of pods that
// takes longer than calls are given. What is left is forced out all the same, once each.
func TestForcedBehindSlowWebhook(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("slow"), r.Namespace()
	r.Deployment(ns, "web", 2, kuberig.OnNode(n.Name))
	r.PDB(ns, "web", "web", kuberig.MinAvailable("2"))
	r.AwaitPDB(ns, "web", "counts 2", func(b *budgetObject) bool { return b.Status.CurrentHealthy == 2 })
	user := r.User("agent")
	grant(r, user)
	a := agentOf(t, r.Kubeconfig(user), nil)
	ofDeletions := admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Delete},
		Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}
	slowHook(t, r, ofDeletions, fmt.Sprintf("request.namespace == %q && request.userInfo.username == %q", ns, user), 12*time.Second, 30)
	pods := r.Client(user).CoreV1().Pods(ns)
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%d pods, %v", len(list.Items), err)
	}
	r.Await("it is in force", func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return pods.Delete(ctx, list.Items[0].Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}) != nil, nil
	})
	r.MarkAudit()
	j := newJob(r, "node.drain", n, `{"on_deadline":"force","force_window_seconds":30,"grace_period_seconds":1}`).within(35 * time.Second)
	a.mustRun(j)
	if _, d := a.observe(j); d.Counts.Forced != 2 || d.Counts.Gone != 2 {
		t.Errorf("counts %+v", d.Counts)
	}
	deleted := map[string]int{}
	for _, e := range r.Audit(user) {
		if e.Verb == "delete" && e.Resource == "pods" && !strings.Contains(e.URI+string(e.Request), "dryRun") {
			deleted[e.Name]++
		}
	}
	if len(deleted) != 2 || deleted[list.Items[0].Name] != 1 || deleted[list.Items[1].Name] != 1 {
		t.Errorf("deletions %v", deleted)
	}
}
