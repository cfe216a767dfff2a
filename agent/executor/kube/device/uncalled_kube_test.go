//go:build kubetest

package device

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestResetBehindDeadWebhook: nobody listens where the API server asks about a reset's
// Jobs. The webhook is named, and the look goes on once it is gone.
func TestResetBehindDeadWebhook(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	admin := b.r.Client(kuberig.Admin).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	name := b.r.Name("dead") + ".example.com"
	_, err := admin.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: name, ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")}, FailurePolicy: ptr.To(admissionv1.Fail),
		SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs"}}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "here", Expression: fmt.Sprintf("request.namespace == %q", b.ns)}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	generation := int64(0)
	b.r.Await("it is in force", func(context.Context) (bool, error) {
		generation++ // what one before it made has its name
		o, tell := b.run("preflight", "op_dead", 1, generation, `{}`)
		if o.Class == operation.OutcomeDone {
			return false, nil
		}
		last := tell.blockers[len(tell.blockers)-1]
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != "admission_refused" || !strings.Contains(o.ActionText, name) || len(last) != 1 || last[0].Rule != "webhook/"+name {
			return false, fmt.Errorf("%+v, shown %+v", o, last)
		}
		return true, nil
	})
	if err := admin.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.r.Await("it is gone", func(context.Context) (bool, error) {
		o, _ := b.run("preflight", "op_dead", 1, generation, `{}`)
		return o.Class == operation.OutcomeDone, nil
	})
}
