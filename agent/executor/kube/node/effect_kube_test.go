//go:build kubetest

package node

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// TestEvictionsMadeDryRuns: a mutating webhook makes dry runs of evictions. The drain
// says so, and forces the pods out where it may.
func TestEvictionsMadeDryRuns(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{"stop": `{}`, "force": `{"on_deadline":"force","force_window_seconds":8}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("dry"), r.Namespace()
			r.Deployment(ns, "web", 2, kuberig.OnNode(n.Name))
			asked := dryingHook(t, r, ns)
			a := newAgent(t, r, nil)
			r.Await("it is in force", func(context.Context) (bool, error) {
				a.drain.admitted = memo[string, *refusal]{}
				_ = preview(t, a, "node.drain", n, `{}`)
				return asked.Load() > 0, nil
			})
			j := newJob(r, "node.drain", n, payload).within(25 * time.Second)
			step, o := a.run(t.Context(), j)
			_, d := a.observe(j)
			if !told(j, codeNoEffect) {
				t.Errorf("told %+v", j.blockers)
			}
			if name == "force" {
				if step != "" || d.Counts.Forced != 2 || d.Counts.Gone != 2 {
					t.Errorf("it ended at %s with %+v, counts %+v", step, o, d.Counts)
				}
				return
			}
			if step != "evict" || o.ErrorCode != codeNoEffect || d.Counts.Left != 2 {
				t.Errorf("it ended at %s with %+v, counts %+v", step, o, d.Counts)
			}
			for _, p := range d.Pods {
				if p.Evicted != nil || !strings.Contains(p.Detail, "was accepted and did nothing") {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}

// told tells whether there was a blocker of the code.
func told(j *job, code string) bool {
	for _, list := range j.blockers {
		if hasCode(list, code) {
			return true
		}
	}
	return false
}

// dryingHook has a webhook that makes dry runs of the namespace's evictions, and counts
// how often it was asked.
func dryingHook(t *testing.T, r *kuberig.Rig, ns string) *atomic.Int64 {
	t.Helper()
	asked := &atomic.Int64{}
	where := answering(t, func(_ context.Context, q *admissionreview.AdmissionRequest) *admissionreview.AdmissionResponse {
		asked.Add(1)
		return &admissionreview.AdmissionResponse{Allowed: true, PatchType: ptr.To(admissionreview.PatchTypeJSONPatch),
			Patch: []byte(`[{"op":"add","path":"/deleteOptions/dryRun","value":["All"]}]`)}
	})
	admin := r.Client(kuberig.Admin).AdmissionregistrationV1().MutatingWebhookConfigurations()
	name := r.Name("drying") + ".example.com"
	hook := admissionv1.MutatingWebhook{Name: name, AdmissionReviewVersions: []string{"v1"}, ClientConfig: where, Rules: []admissionv1.RuleWithOperations{ofEvictions},
		SideEffects: ptr.To(admissionv1.SideEffectClassNone), MatchConditions: []admissionv1.MatchCondition{{Name: "here", Expression: "request.namespace == '" + ns + "'"}}}
	if _, err := admin.Create(t.Context(), &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.MutatingWebhook{hook}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return asked
}
