package device

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// answered is a Status of the API server.
func answered(code int32, message string, causes ...metav1.StatusCause) error {
	reason := map[int32]metav1.StatusReason{429: metav1.StatusReasonTooManyRequests, 403: metav1.StatusReasonForbidden, 500: metav1.StatusReasonInternalError}[code]
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: "Failure", Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{Causes: causes}}}
}

// TestRefusal: why an eviction was not taken, by what the API server says.
func TestRefusal(t *testing.T) {
	t.Parallel()
	budget := metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods and has 2 currently"}
	for name, c := range map[string]struct {
		err              error
		code, rule, says string
	}{
		"a budget":              {answered(429, "Cannot evict pod", budget), "pdb", "pdb/serve/web", "needs 2 healthy pods"},
		"a server that is busy": {answered(429, "the server has received too many requests"), "throttled", "api_server", "busy"},
		"a webhook's 429":       {answered(429, `admission webhook "later.example.com" denied the request: not now`), "eviction_refused", "webhook/later.example.com", "not now"},
		"a webhook":             {answered(403, `admission webhook "no.example.com" denied the request: never`), "eviction_refused", "webhook/no.example.com", "never"},
		"a policy":              {answered(422, `pods "a" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'x' denied request: no`), "eviction_refused", "policy/keep", "denied"},
		"an ending namespace":   {answered(403, "forbidden", metav1.StatusCause{Type: corev1.NamespaceTerminatingCause}), "namespace_terminating", "namespace/serve", "being deleted"},
		"two budgets":           {answered(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."), "two_pdbs", "pdb/serve", "two disruption budgets"},
		"a server that fails":   {answered(500, "etcdserver: request timed out"), "api_unavailable", "", "etcdserver"},
		"no answer":             {errors.New("connection reset by peer"), "api_unavailable", "", "reset by peer"},
	} {
		b := refusal(worker("a"), cluster.Reply{Err: c.err})
		if b.Code != c.code || b.Rule != c.rule || !strings.Contains(b.Detail, c.says) || b.Resource != "pod/serve/a" {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// TestEvictOnce: an eviction whose answer was lost is not asked for again once it
// was taken, and a pod that somebody stops already is left to stop.
func TestEvictOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer  []error // to the first evictions; then they are taken
		landed  bool    // although the last of them is an error
		stops   bool    // already
		want    int     // evictions
		drained []string
		blocker string
	}{
		"taken":                      {want: 1, drained: []string{"serve/a"}},
		"lost and taken":             {answer: []error{answered(429, "busy"), errors.New("connection reset by peer")}, landed: true, want: 2, drained: []string{"serve/a"}, blocker: "api_unavailable"},
		"lost and not taken":         {answer: []error{errors.New("connection reset by peer")}, want: 2, drained: []string{"serve/a"}, blocker: "api_unavailable"},
		"failed and taken":           {answer: []error{answered(429, "busy"), answered(500, "etcdserver: request timed out")}, landed: true, want: 2, drained: []string{"serve/a"}, blocker: "api_unavailable"},
		"busy, then taken":           {answer: []error{answered(429, "busy"), answered(429, "busy")}, want: 3, drained: []string{"serve/a"}, blocker: "throttled"},
		"stopped by somebody before": {stops: true, want: 0, blocker: "terminating"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := worker("a")
				now := metav1.Now()
				if c.stops {
					p.DeletionTimestamp = &now
				}
				e, client, pods := fakes(t, p)
				n := 0
				client.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
					if a.GetSubresource() != "eviction" {
						return false, nil, nil
					}
					n++
					var err error
					if n <= len(c.answer) {
						err = c.answer[n-1]
					}
					if err == nil || c.landed && n == len(c.answer) {
						stopped := p.DeepCopy()
						stopped.DeletionTimestamp = &now
						if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), stopped, p.Namespace); err != nil {
							t.Error(err)
						}
					}
					return true, nil, err
				})
				task := stepTask("op_a", 1, 1)
				shown := (&blockers{}).of(task)
				end := make(chan *executor.Outcome, 1)
				go func() { end <- e.evictAll(t.Context(), task, target{fakeUUID, fakeNode}, []*corev1.Pod{p}, 1) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				if n != c.want {
					t.Errorf("%d evictions, want %d", n, c.want)
				}
				pods.Delete(p)
				if stop := <-end; stop != nil {
					t.Errorf("it ended with %+v", stop)
				}
				var drained []string
				e.note(task.Assignment, func(o *outcome) { drained = o.drained })
				if diff := cmp.Diff(c.drained, drained); diff != "" {
					t.Errorf("evicted (-want +got):\n%s", diff)
				}
				if c.blocker != "" && !shown.has(c.blocker) {
					t.Errorf("%s was not shown: %+v", c.blocker, shown.all)
				}
			})
		})
	}
}

// TestResolve: pods that ended are no holders, and one that stops is waited for,
// whatever it is.
func TestResolve(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	ended, bare, stopping := worker("ended"), worker("bare"), worker("stopping")
	ended.Status.Phase, ended.OwnerReferences = corev1.PodFailed, nil
	bare.OwnerReferences = nil
	stopping.OwnerReferences, stopping.DeletionTimestamp = nil, &now
	e, _, _ := fakes(t, ended, bare, stopping)
	for name, c := range map[string]struct {
		pod              *corev1.Pod
		never            string
		pods, lost, uids int
	}{
		"ended": {ended, "", 0, 1, 0}, "bare": {bare, "unmanaged_pod", 0, 0, 1}, "stopping": {stopping, "", 1, 0, 1},
	} {
		h, err := e.resolve(t.Context(), target{fakeUUID, fakeNode}, &report.Answer{Device: &report.Device{UUID: fakeUUID,
			Holders: []report.Holder{{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{UID: string(c.pod.UID)}}}}})
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := h.never(); code != c.never || len(h.pods) != c.pods || h.lost != c.lost || len(h.uids) != c.uids {
			t.Errorf("%s: %s, %d pods, %d lost, %d uids", name, code, len(h.pods), h.lost, len(h.uids))
		}
	}
}
