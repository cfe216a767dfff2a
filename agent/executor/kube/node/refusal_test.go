package node

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func status(code int32, message string, causes ...metav1.StatusCause) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: message, Details: &metav1.StatusDetails{Causes: causes}}}
}

func TestRefusalOf(t *testing.T) {
	t.Parallel()
	one := []*budget{aBudget("b", 0, 1, 1, 1)}
	two := append(one[:1:1], aBudget("c", 0, 1, 1, 1))
	budgeted := metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget b needs 1 healthy pods and has 1 currently"}
	ending := metav1.StatusCause{Type: corev1.NamespaceTerminatingCause, Message: "namespace ns is being terminated"}
	tests := []struct {
		name       string
		err        error
		budgets    []*budget
		code, rule string
	}{
		{"budget", status(429, "Cannot evict pod", budgeted), one, "pdb", "pdb/ns/b"},
		{"budget that is not known yet", status(429, "Cannot evict pod", budgeted), nil, "pdb", "pdb/ns/b"},
		{"budget of other words", status(429, "Cannot evict pod", metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "it is not observed yet"}), nil, "pdb", "pdb/ns"},
		{"budget in confusion", status(403, "forbidden", budgeted), one, "pdb", "pdb/ns/b"},
		{"two budgets", status(500, "This pod has more than one PodDisruptionBudget"), two, "two_pdbs", "pdb/ns/b"},
		{"two budgets that are not known yet", status(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."), one[:0], "two_pdbs", "pdb/ns"},
		{"two budgets of which one is known", status(500, "This pod has more than one PodDisruptionBudget"), one, "two_pdbs", "pdb/ns/b"},
		{"an error", status(500, "etcd is sad"), one, "api_error", "api_server"},
		{"busy", status(429, "too many requests"), nil, "throttled", "api_server"},
		{"namespace ends", status(403, "forbidden: unable to create new content", ending), one, "namespace_terminating", "namespace/ns"},
		{"webhook", status(403, `admission webhook "guard.example.com" denied the request: no`), one, "eviction_refused", "webhook/guard.example.com"},
		{"webhook that says later", status(400, `admission webhook "guard.example.com" denied the request: later`), one, "eviction_refused", "webhook/guard.example.com"},
		{"webhook that cannot be asked", status(500, `Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: Post "https://10.0.0.1:1/": connection refused`), one,
			"eviction_refused", "webhook/guard.example.com"},
		{"policy", apierrors.NewInvalid(schema.GroupKind{}, "x", nil), one, "eviction_refused", "admission"},
		{"named policy", status(422, `ValidatingAdmissionPolicy 'no-mondays' with binding 'b' denied request: no`), one, "eviction_refused", "policy/no-mondays"},
		{"no answer", errors.New("EOF"), one, "api_error", ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if r := refusalOf(tc.err, aPod("a"), tc.budgets); r.code != tc.code || r.rule != tc.rule || r.why == "" {
				t.Errorf("%+v", r)
			}
		})
	}
	if r := refusalOf(status(500, `failed calling webhook "guard.example.com": no`), aPod("a"), nil); !strings.Contains(r.act, "guard.example.com") {
		t.Errorf("what to do about a webhook that cannot be asked: %q", r.act)
	}
	if r := refusalOf(status(http.StatusTooManyRequests, "x", budgeted), aPod("a"), one); r.budget != "ns/b" || r.version != "1" {
		t.Errorf("wakes on %q at %q", r.budget, r.version)
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	tests := []struct {
		code  string
		n     int
		after time.Duration
		want  time.Duration
	}{
		{"pdb", 1, 0, 250 * time.Millisecond}, {"pdb", 2, 0, 500 * time.Millisecond}, {"pdb", 6, 0, 8 * time.Second}, {"pdb", 1_000, 0, 8 * time.Second},
		{"pdb", 1, 3 * time.Second, 3 * time.Second}, {"pdb", 1, time.Hour, mostAfter}, {"throttled", 6, time.Second, 8 * time.Second},
		{"eviction_refused", 1, 0, time.Second}, {"eviction_refused", 99, 0, 30 * time.Second}, {"namespace_terminating", 2, 0, 2 * time.Second},
	}
	for _, tc := range tests {
		if got := pace(tc.code, tc.n, tc.after); got != tc.want {
			t.Errorf("%s, refusal %d, Retry-After %s: %s, not %s", tc.code, tc.n, tc.after, got, tc.want)
		}
	}
}
