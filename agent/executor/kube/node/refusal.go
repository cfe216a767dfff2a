package node

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// refusal is why the API server did not take an eviction, or a deletion.
type refusal struct {
	stage int    // of the call that it refused, as planned has it
	code  string // of a blocker
	rule  string
	why   string
	act   string
	// budget is the version of the disruption budget that refused, by its key: the
	// eviction is asked for again as soon as that changes.
	budget, version string
	// away is the webhook that would have to be asked and cannot be called.
	away *cluster.Uncalled
	// since is when it began, where that is known.
	since *time.Time
}

// hold is the refusal as what keeps a pod.
func (r *refusal) hold() hold {
	return hold{code: r.code, rule: r.rule, why: r.why, act: r.act, since: r.since}
}

// refusingBudget finds a budget's name in the API server's message, which alone tells it:
// "The disruption budget web needs 2 healthy pods and has 2 currently"
var refusingBudget = regexp.MustCompile(`disruption budget (\S+)`)

// refusalOf reads why the API server refused an eviction of the pod. budgets are
// those of its namespace as they are known.
func refusalOf(err error, p *corev1.Pod, budgets []*budget) *refusal {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return &refusal{code: "api_error", why: err.Error()}
	}
	st := status.Status()
	found, hook := selecting(budgets, p), cluster.UncalledBy(err)
	if cause, ok := causeOf(st, policyv1.DisruptionBudgetCause); ok {
		r := &refusal{code: "pdb", rule: "pdb/" + p.Namespace, why: cause}
		if m := refusingBudget.FindStringSubmatch(cause); m != nil {
			r.rule += "/" + m[1]
		}
		if len(found) == 1 {
			b := found[0]
			r.rule, r.act, r.budget, r.version = "pdb/"+b.key(), b.act(), b.key(), b.version
			r.why = fmt.Sprintf("PDB %s: %s", b.key(), cause)
		}
		return r
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return &refusal{code: "namespace_terminating", rule: "namespace/" + p.Namespace,
			why: fmt.Sprintf("namespace %s is being deleted, and the pod with it: no eviction is taken there", p.Namespace)}
	case st.Code == http.StatusInternalServerError && (len(found) > 1 || strings.Contains(st.Message, "more than one PodDisruptionBudget")):
		return &refusal{code: "two_pdbs", rule: twoPDBsRule(p, found), why: twoPDBs(p, found)}
	case hook != nil:
		return &refusal{code: "eviction_refused", rule: "webhook/" + hook.Webhook, why: st.Message,
			act: fmt.Sprintf("bring back what answers for admission webhook %s, or take the webhook away, then drain again", hook.Webhook)}
	case st.Code == http.StatusTooManyRequests:
		return &refusal{code: "throttled", rule: "api_server", why: "the API server is busy: " + st.Message}
	case st.Code < http.StatusInternalServerError:
		return denial(err, st)
	}
	return &refusal{code: "api_error", rule: "api_server", why: st.Message}
}

// conflicting is of a call that the API server answered with a conflict although the pod
// is the one that was planned.
func conflicting(pod string, r result) *refusal {
	return &refusal{stage: r.stage, code: "api_error", rule: "api_server", why: fmt.Sprintf("pod %s: the API server answers with a conflict, though the pod is the planned one: %v", pod, r.reply.Err)}
}

func denial(err error, st metav1.Status) *refusal {
	r := &refusal{code: "eviction_refused", rule: "admission", why: st.Message}
	if kind, name := cluster.DeniedBy(err); kind != "" {
		r.rule = kind + "/" + name
	}
	return r
}

func causeOf(st metav1.Status, typ metav1.CauseType) (string, bool) {
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

// How soon an eviction that was refused is asked for again: at once when its
// budget changes, else at this pace.
const (
	paceLeast = 250 * time.Millisecond
	paceMost  = 8 * time.Second
	// denialLeast is the pace with admission and namespaces that end: nothing tells
	// when they change their mind.
	denialLeast = time.Second
	denialMost  = 30 * time.Second
)

// pace is the wait after the nth refusal in a row (from 1), without jitter.
func pace(code string, n int, after time.Duration) time.Duration {
	least, most := paceLeast, paceMost
	if code == "eviction_refused" || code == "namespace_terminating" || code == codeNoEffect {
		least, most = denialLeast, denialMost
	}
	d := most
	if n < 16 {
		d = min(least<<max(n-1, 0), most)
	}
	return max(d, min(after, mostAfter))
}
