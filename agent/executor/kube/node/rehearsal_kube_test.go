//go:build kubetest

package node

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionreview "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestRehearsalIsADryRunToWebhooks: a webhook that does something about evictions is
// told by request.dryRun which of them are none. Dry run and preflight evict nothing,
// and take nothing from a budget.
func TestRehearsalIsADryRunToWebhooks(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, other, ns := r.Node("rehearsed"), r.Node("other"), r.Namespace()
	r.Deployment(ns, "web", 2, kuberig.PreferNode(n.Name, other.Name))
	r.PDB(ns, "web", "web", kuberig.MinAvailable("1"))
	before := r.AwaitPDB(ns, "web", "allows one", func(b *budgetObject) bool { return b.Status.DisruptionsAllowed == 1 })
	a := newAgent(t, r, nil)
	var mu sync.Mutex
	asked := map[bool]int{}
	seen := func() map[bool]int {
		mu.Lock()
		defer mu.Unlock()
		now := asked
		asked = map[bool]int{}
		return now
	}
	askedHook(t, r, ofEvictions, fmt.Sprintf("request.namespace == %q", ns), 10, func(_ context.Context, q *admissionreview.AdmissionRequest) {
		mu.Lock()
		defer mu.Unlock()
		asked[q.DryRun != nil && *q.DryRun]++
	})
	r.Await("it is in force", func(context.Context) (bool, error) {
		if list := preview(t, a, "node.drain", n, `{}`); len(list) != 0 {
			return false, fmt.Errorf("the dry run shows %+v", list)
		}
		mu.Lock()
		defer mu.Unlock()
		return len(asked) > 0, nil
	})
	if now := seen(); now[false] > 0 {
		t.Errorf("dry runs were %d real evictions to the webhook", now[false])
	}
	j := newJob(r, "node.drain", n, `{}`).within(time.Minute)
	if o := a.execute(t.Context(), j, "preflight"); o.Class != operation.OutcomeDone {
		t.Fatalf("%+v", o)
	}
	if now := seen(); now[false] > 0 || now[true] == 0 {
		t.Errorf("the preflight asked the webhook %v", now)
	}
	after, err := r.Client(kuberig.Admin).PolicyV1().PodDisruptionBudgets(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before.Status, after.Status); diff != "" {
		t.Errorf("the budget's status was touched (-before +after):\n%s", diff)
	}
	for _, p := range r.PodsOn(n.Name) {
		if p.DeletionTimestamp != nil {
			t.Errorf("pod %s was evicted", p.Name)
		}
	}
	j.step("preflight").Phase = operation.StepSucceeded
	a.mustRun(j)
	if now := seen(); now[false] < 2 {
		t.Errorf("the drain asked the webhook %v", now)
	}
}
