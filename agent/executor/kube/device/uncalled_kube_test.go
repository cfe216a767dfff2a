//go:build kubetest

package device

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

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestResetBehindDeadWebhook: nobody listens where the API server asks about a reset's
// Jobs. The webhook is named, and the look goes on once it is gone.
func TestResetBehindDeadWebhook(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	name := b.r.Name("dead") + ".example.com"
	lift := b.hook(name, "127.0.0.1:1", 0)
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
	lift()
	b.r.Await("it is gone", func(context.Context) (bool, error) {
		o, _ := b.run("preflight", "op_dead", 1, generation, `{}`)
		return o.Class == operation.OutcomeDone, nil
	})
}

// hook puts a webhook before the Jobs of the bench, which the API server waits for so many
// seconds (0: 10), until lift is called.
func (b *bench) hook(name, at string, seconds int32) (lift func()) {
	b.t.Helper()
	admin := b.r.Client(kuberig.Admin).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	h := admissionv1.ValidatingWebhook{
		Name: name, ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://" + at + "/")}, FailurePolicy: ptr.To(admissionv1.Fail),
		SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs"}}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "here", Expression: fmt.Sprintf("request.namespace == %q", b.ns)}}}
	if seconds > 0 {
		h.TimeoutSeconds = &seconds
	}
	if _, err := admin.Create(b.t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{h}}, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	lift = func() { _ = admin.Delete(context.Background(), name, metav1.DeleteOptions{}) }
	b.t.Cleanup(lift)
	return lift
}

// TestResetBehindWebhookThatHangs: the API server asks a webhook about a reset's Jobs that
// never answers, for longer than a call is given. It is named all the same by the step that
// meets it, which waits; the reset is not begun, and goes on once the webhook is gone.
func TestResetBehindWebhookThatHangs(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{kubelet: true})
	l, err := net.Listen("tcp", "127.0.0.1:0") // what comes in waits in its backlog
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	name := b.r.Name("hang") + ".example.com"
	lift := b.hook(name, l.Addr().String(), 12)
	const op = "op_hang"
	for i, step := range []string{"preflight", "reset", "verify"} {
		generation := int64(10 * i)
		b.r.Await("it is in force", func(context.Context) (bool, error) {
			begun := time.Now()
			generation++
			o, tell := b.run(step, op, 1, generation, `{}`)
			if o.Class == operation.OutcomeDone && step != "reset" {
				return false, nil
			}
			last := tell.blockers[len(tell.blockers)-1]
			if o.Class != operation.OutcomeWaiting || o.ErrorCode != "admission_refused" || !strings.Contains(o.ActionText, name) || len(last) != 1 || last[0].Rule != "webhook/"+name {
				return false, fmt.Errorf("%s after %s: %+v, shown %+v", step, time.Since(begun), o, last)
			}
			return true, nil
		})
	}
	if n := b.resets(); n != 0 {
		t.Errorf("%d resets", n)
	}
	// A probe is shorter than that. What it asks for goes on, and the next one names it.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	task, _ := b.task("reset", op, 1, 100, `{}`, nil)
	if f := b.typ.Steps["reset"].Probe(ctx, task); f.Phase != operation.StepUnknown || f.ErrorCode != "admission_refused" || !strings.Contains(f.Detail, "a webhook may hang") {
		t.Errorf("the first probe finds %+v", f)
	}
	cancel()
	if f := b.typ.Steps["reset"].Probe(t.Context(), task); f.Phase != operation.StepUnknown || f.ErrorCode != "admission_refused" || !strings.Contains(f.Detail, name) {
		t.Errorf("the next probe finds %+v", f)
	}
	lift()
	b.r.Await("it is gone", func(context.Context) (bool, error) {
		o, _ := b.run("reset", op, 1, 100, `{}`)
		return o.Class == operation.OutcomeDone, nil
	})
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets in the end", n)
	}
}
