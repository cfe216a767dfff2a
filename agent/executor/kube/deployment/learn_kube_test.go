//go:build kubetest

package deployment

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestRollThatAdmissionChangesUnrehearsed: a mutating webhook that is not asked in dry runs adds to
// the template with the restart. The roll goes on: for this agent by the answer, for the next
// by the object's generation.
func TestRollThatAdmissionChangesUnrehearsed(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.deployment("web", 1, nil)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionreview.AdmissionReview
		var d appsv1.Deployment
		if json.NewDecoder(req.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, &d) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		patch := `{"op":"add","path":"/metadata/annotations/seen","value":"yes"}`
		if d.Spec.Template.Annotations[annotationRestarted] != "" {
			patch += `,{"op":"add","path":"/spec/template/metadata/labels/mesh","value":"on"}`
		}
		review.Response = &admissionreview.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: ptr.To(admissionreview.PatchTypeJSONPatch), Patch: []byte("[" + patch + "]")}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	admin, name := s.rig.Client(kuberig.Admin).AdmissionregistrationV1().MutatingWebhookConfigurations(), s.rig.Name("effects")+".example.com"
	_, err := admin.Create(s.ctx(), &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.MutatingWebhook{{
		Name: name, ClientConfig: admissionv1.WebhookClientConfig{URL: &hook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
		FailurePolicy: ptr.To(admissionv1.Fail), SideEffects: ptr.To(admissionv1.SideEffectClassNoneOnDryRun), AdmissionReviewVersions: []string{"v1"},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "here", Expression: fmt.Sprintf("request.namespace == %q && !request.dryRun", s.ns)}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	s.rig.Await("it is in force", func(ctx context.Context) (bool, error) {
		now, err := s.admin.AppsV1().Deployments(s.ns).Patch(ctx, "web", types.MergePatchType, []byte(`{"metadata":{"annotations":{"seen":"no"}}}`), metav1.PatchOptions{})
		return err == nil && now.Annotations["seen"] == "yes", err
	})
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
	s.must(l, "preflight", "restart")
	now, err := s.admin.AppsV1().Deployments(s.ns).Get(s.ctx(), "web", metav1.GetOptions{})
	if err != nil || now.Spec.Template.Labels["mesh"] != "on" {
		t.Fatalf("the template is labelled %v, %v", now.Spec.Template.Labels, err)
	}
	for who, l := range map[string]*lease{"this agent": l, "the next": l.next(Roll(s.c), 1)} {
		if f := l.probe(s.ctx(), "wait"); f.Phase == operation.StepFailed {
			t.Errorf("%s finds %+v", who, f)
		}
	}
	if o := l.run(s.ctx(), "wait"); o.Class != operation.OutcomeDone || strings.Contains(o.Detail, "somebody else") {
		t.Errorf("wait: %+v", o)
	}
}
