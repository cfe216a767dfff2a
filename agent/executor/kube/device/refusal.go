package device

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Names that the API server puts in the message of a denial; nothing else of it
// tells who denied.
var (
	deniedByWebhook = regexp.MustCompile(`admission webhook "([^"]+)"`)
	deniedByPolicy  = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)'`)
)

// refusal is what stands in the way of an eviction that was not taken. A 429 is a
// budget's only where it names one as its cause: a busy API server and admission
// answer with it, too.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/#how-api-initiated-eviction-works
func refusal(p *corev1.Pod, r cluster.Reply) protocol.Blocker {
	b := protocol.Blocker{Code: "api_unavailable", Resource: "pod/" + key(p), Detail: r.Err.Error()}
	var answered apierrors.APIStatus
	if !errors.As(r.Err, &answered) {
		return b // the answer was lost
	}
	st := answered.Status()
	switch words, budget := cause(st, policyv1.DisruptionBudgetCause); {
	case budget:
		b.Code, b.Rule, b.Detail = "pdb", budgetOf(p.Namespace, words), st.Message+": "+words
	case apierrors.HasStatusCause(r.Err, corev1.NamespaceTerminatingCause):
		b.Code, b.Rule = "namespace_terminating", "namespace/"+p.Namespace
		b.Detail = fmt.Sprintf("namespace %s is being deleted, and the pod with it: no eviction is taken there", p.Namespace)
	case st.Code == http.StatusInternalServerError && strings.Contains(st.Message, "more than one PodDisruptionBudget"):
		b.Code, b.Rule = "two_pdbs", "pdb/"+p.Namespace
		b.Detail = fmt.Sprintf("pod %s is selected by two disruption budgets: the cluster evicts no such pod", key(p))
	case st.Code == http.StatusTooManyRequests && !strings.Contains(st.Message, "denied"):
		b.Code, b.Rule, b.Detail = "throttled", "api_server", "the API server is busy: "+st.Message
	case st.Code < http.StatusInternalServerError:
		b.Code, b.Rule = "eviction_refused", "admission"
		if m := deniedByWebhook.FindStringSubmatch(st.Message); m != nil {
			b.Rule = "webhook/" + m[1]
		} else if m := deniedByPolicy.FindStringSubmatch(st.Message); m != nil {
			b.Rule = "policy/" + m[1]
		}
	}
	return b
}

func cause(st metav1.Status, typ metav1.CauseType) (string, bool) {
	if st.Details == nil {
		return "", false
	}
	for _, c := range st.Details.Causes {
		if c.Type == typ {
			return c.Message, true
		}
	}
	return "", false
}

// budgetOf finds the budget in the API server's words on it: "The disruption
// budget web needs 2 healthy pods and has 2 currently".
func budgetOf(namespace, cause string) string {
	words := strings.Fields(cause)
	if i := slices.Index(words, "budget"); i >= 0 && i+1 < len(words) {
		return "pdb/" + namespace + "/" + words[i+1]
	}
	return "pdb/" + namespace
}
