//go:build kubetest

package deployment

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// hang puts a webhook before the changes of the site's deployments that takes
// connections and never answers; the API server goes on without it after 10 s, which
// is longer than a call is given.
func (s *site) hang() {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // what comes in waits in its backlog
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = l.Close() })
	s.hook(s.rig.Name("hang")+".example.com", l.Addr().String(), admissionv1.Ignore)
}

// hook puts a webhook before the changes of the site's deployments, until lift is called.
func (s *site) hook(name, at string, policy admissionv1.FailurePolicyType) (lift func()) {
	s.t.Helper()
	admin := s.rig.Client(kuberig.Admin).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := admin.Create(s.ctx(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: name, ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://" + at + "/")}, FailurePolicy: &policy,
		SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "here", Expression: fmt.Sprintf("request.namespace == %q", s.ns)}}}}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	lift = func() { _ = admin.Delete(context.Background(), name, metav1.DeleteOptions{}) }
	s.t.Cleanup(lift)
	return lift
}

// TestRollBehindDeadWebhook: nobody listens where the API server asks about the restart.
// The webhook is named, the steps wait for it, and come through once it is gone.
func TestRollBehindDeadWebhook(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.deployment("web", 1, nil)
	name := s.rig.Name("dead") + ".example.com"
	lift := s.hook(name, "127.0.0.1:1", admissionv1.Fail)
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
	s.rig.Await("it is in force", func(ctx context.Context) (bool, error) {
		list, err := l.typ.Preview(ctx, protocol.PreviewRequest{ID: "pre_1", Type: l.Type, TargetName: l.TargetName, TargetUID: l.TargetUID, Payload: l.Payload})
		return len(list) == 1 && list[0].Code == "admission_refused" && list[0].Rule == "webhook/"+name, err
	})
	for _, step := range []string{"preflight", "restart"} {
		if o := l.run(s.ctx(), step); o.Class != operation.OutcomeWaiting || o.ErrorCode != "admission_refused" || !strings.Contains(o.ActionText, name) {
			t.Errorf("%s: %+v", step, o)
		}
	}
	lift()
	s.rig.Await("it is gone", func(ctx context.Context) (bool, error) {
		return l.run(ctx, "preflight").Class == operation.OutcomeDone, nil
	})
	s.must(l, "restart")
}

// TestRollBehindSlowWebhook: the API server asks a webhook that hangs about the restart.
// The roll waits for as long as the API server does.
func TestRollBehindSlowWebhook(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.deployment("web", 1, nil)
	s.hang()
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
	s.rig.Await("it is in force", func(ctx context.Context) (bool, error) {
		list, err := l.typ.Preview(ctx, protocol.PreviewRequest{ID: "pre_1", Type: l.Type, TargetName: l.TargetName, TargetUID: l.TargetUID, Payload: l.Payload})
		return len(list) == 1 && list[0].Code == "api_error" && strings.Contains(list[0].Detail, "a webhook may hang"), err
	})
	for _, step := range []string{"preflight", "restart"} {
		begun := time.Now()
		if o := l.run(s.ctx(), step); o.Class != operation.OutcomeDone || time.Since(begun) < 9*time.Second {
			t.Fatalf("%s after %s: %+v", step, time.Since(begun), o)
		}
	}
}
