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

// TestEvictionsDeniedWithAnyCode: a webhook denies evictions, with the status that it
// likes. The drain says so, and counts no pod as gone.
func TestEvictionsDeniedWithAnyCode(t *testing.T) {
	t.Parallel()
	for _, code := range []int32{401, 404, 409, 500, 503} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("denied"), r.Namespace()
			r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				var asked admissionreview.AdmissionReview
				if err := json.NewDecoder(req.Body).Decode(&asked); err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
				asked.Response = &admissionreview.AdmissionResponse{UID: asked.Request.UID, Result: &metav1.Status{Code: code, Message: "not on a Monday"}}
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(asked)
			}))
			t.Cleanup(s.Close)
			hooks := r.Client(kuberig.Admin).AdmissionregistrationV1().ValidatingWebhookConfigurations()
			name := r.Name("deny") + ".example.com"
			if _, err := hooks.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{{
				Name: name, SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}, Rules: []admissionv1.RuleWithOperations{ofEvictions},
				ClientConfig:    admissionv1.WebhookClientConfig{URL: ptr.To(s.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})},
				MatchConditions: []admissionv1.MatchCondition{{Name: "here", Expression: fmt.Sprintf("request.namespace == %q", ns)}}}}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = hooks.Delete(context.Background(), name, metav1.DeleteOptions{}) })
			a := newAgent(t, r, nil)
			evict := eviction(ns, r.Pods(ns, "web")[0].Name, r.Pods(ns, "web")[0].UID, -1)
			evict.DeleteOptions.DryRun = []string{metav1.DryRunAll}
			r.Await("it is in force", func(ctx context.Context) (bool, error) {
				err := r.Client(kuberig.Admin).PolicyV1().Evictions(ns).Evict(ctx, evict)
				return err != nil && strings.Contains(err.Error(), name), nil
			})
			j := newJob(r, "node.drain", n, `{}`).within(30 * time.Second)
			step, o := a.run(t.Context(), j)
			if step != "evict" || o.ErrorCode != "eviction_refused" || !strings.Contains(o.Detail, "not on a Monday") {
				t.Errorf("it ended at %s with %+v", step, o)
			}
			if _, d := a.observe(j); d.Counts.Gone != 0 || d.Counts.Planned != 1 {
				t.Errorf("counts %+v", d.Counts)
			}
		})
	}
}
