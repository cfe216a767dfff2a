//go:build kubetest

package kubeflow

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// deniesResets has a policy deny the pods of Jobs that reset, until it is lifted.
func (h *gpuHost) deniesResets() (lift func()) {
	h.t.Helper()
	admin := h.s.rig.Client(kuberig.Admin)
	name, fail := h.s.rig.Name("no-resets"), admissionv1.Fail
	policies, bindings := admin.AdmissionregistrationV1().ValidatingAdmissionPolicies(), admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(h.t.Context(), &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": h.ns}},
				ObjectSelector:    &metav1.LabelSelector{MatchLabels: map[string]string{"opsplane.io/verb": "reset"}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "not on a Monday"}}}}, metav1.CreateOptions{})
	if err == nil {
		_, err = bindings.Create(h.t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{})
	}
	if err != nil {
		h.t.Fatal(err)
	}
	lift = func() {
		_ = bindings.Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = policies.Delete(context.Background(), name, metav1.DeleteOptions{})
	}
	h.t.Cleanup(lift)
	h.s.rig.Await("the policy is in force", func(ctx context.Context) (bool, error) {
		_, err := admin.CoreV1().Pods(h.ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "try", Labels: map[string]string{"opsplane.io/verb": "reset"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "not on a Monday"), nil
	})
	return lift
}

// TestAResetWaitsForTheOneBefore: an agent dies once the Job of its reset is made, whose
// pods a policy denies, and a person settles that reset as failed. Those that are asked
// for next wait for the Job, say so, and are nobody's to resolve; one that is cancelled
// ends at once. Once the policy is lifted, one reset comes after the other, and nothing
// is left unsettled.
func TestAResetWaitsForTheOneBefore(t *testing.T) {
	t.Parallel()
	rig := kuberig.Start(t, kuberig.Options{Nodes: 1, Audit: true})
	s := newSite(t, rig)
	h := newGPUHost(t, s)
	config := filepath.Join(s.dir, "reset.yaml")
	text := "deviceReset: {image: 'opsplane-host:test', recorded: /var/lib/recorded, resetTimeout: 20s, lookTimeout: 4m}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--namespace", h.ns, "--kube-config-file", config}
	lift := h.deniesResets()
	first := s.agent("", flags...)
	device := s.thing("devices", resetUUID)
	ask := func() op { return s.want("device.reset", "device:"+resetUUID, nil, 10*time.Minute) }

	before := ask()
	s.await("the Job of its reset is made", time.Minute, func() bool { return len(jobs(t, rig, h.ns, "reset")) == 1 })
	first.kill()
	s.agent("", flags...)
	s.until(before.ID, "a person's to resolve", lease+callDeadline+time.Minute, func(o op) bool {
		return o.Generation > 1 && phaseOf(o, "reset") == operation.StepUnknown && o.Assignments[len(o.Assignments)-1].Ended == "ambiguous"
	})
	s.await("it is resolved", time.Minute, func() bool { // not while an agent probes
		status, _ := s.call(http.MethodPost, "/v1/operations/"+before.ID+"/resolve", map[string]any{"step": "reset", "outcome": "failed", "evidence": "no pod came", "reason": "test"})
		return status == http.StatusOK || status == http.StatusAccepted
	})
	if o := s.ended(before.ID, time.Minute); o.Phase != operation.Failed || len(o.Result.Residual) != 1 {
		t.Errorf("the one before: %s", o)
	}

	waits := func(o op) bool {
		return o.Progress != nil && len(o.Progress.Blockers) > 0 && o.Progress.Blockers[0].Rule == "operation/"+before.ID
	}
	second := ask()
	o := s.until(second.ID, "waiting for the Job", time.Minute, func(o op) bool { // a machine that stalls may cost a lease
		return waits(o) && o.Phase == operation.Running && phaseOf(o, "reset") == operation.StepPending
	})
	if b := o.Progress.Blockers[0]; b.Code != "in_progress" || !strings.HasPrefix(b.Resource, "job/"+h.ns+"/") {
		t.Errorf("the second: %s", o)
	}
	if status, b := s.call(http.MethodPost, "/v1/operations/"+second.ID+"/resolve", map[string]any{"step": "reset", "outcome": "not_done", "evidence": "it never began", "reason": "test"}); status < 400 {
		t.Errorf("it can be resolved: %d %s", status, b)
	}
	if status, b := s.call(http.MethodDelete, "/v1/operations/"+second.ID, nil); status != http.StatusAccepted {
		t.Fatalf("it cannot be cancelled: %d %s", status, b)
	}
	if o = s.ended(second.ID, time.Minute); o.Phase != operation.Cancelled || len(o.Result.Residual) > 0 {
		t.Errorf("the second: %s", o)
	}

	third := ask()
	s.until(third.ID, "waiting for the Job", time.Minute, waits)
	if made := jobs(t, rig, h.ns, "reset"); len(made) != 1 || h.resets(t) != 0 {
		t.Errorf("Jobs of resets %v, %d resets while one waits", made, h.resets(t))
	}
	lift()
	if o = s.ended(third.ID, 6*time.Minute); o.Phase != operation.Succeeded || len(o.Result.Residual) > 0 {
		t.Errorf("the third: %s", o)
	}
	if n := h.resets(t); n < 1 || n > 2 { // the first Job's, if its time was not over, and the third's
		t.Errorf("%d resets", n)
	}
	status, body := s.call(http.MethodGet, "/v1/devices/"+device.ID, nil)
	if d := decode[struct {
		UnsettledBy []string `json:"unsettled_by"`
	}](s, status, body); len(d.UnsettledBy) > 0 {
		t.Errorf("unsettled by %v", d.UnsettledBy)
	}
}
