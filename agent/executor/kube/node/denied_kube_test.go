//go:build kubetest

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// TestEvictionsDeniedWithAnyCode: a webhook denies evictions, with the status that it
// likes. The drain says so, and counts no pod as gone.
func TestEvictionsDeniedWithAnyCode(t *testing.T) {
	t.Parallel()
	for _, code := range []int32{401, 404, 409, 500, 503} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			r := kuberig.Shared(t)
			n, ns := r.Node("denied"), r.Namespace()
			r.Deployment(ns, "web", 1, kuberig.OnNode(n.Name))
			name := answeringHook(t, r, admissionv1.ValidatingWebhook{SideEffects: ptr.To(admissionv1.SideEffectClassNone)}, ofEvictions, fmt.Sprintf("request.namespace == %q", ns),
				func(context.Context, *admissionreview.AdmissionRequest) *admissionreview.AdmissionResponse {
					return &admissionreview.AdmissionResponse{Result: &metav1.Status{Code: code, Message: "not on a Monday"}}
				})
			a := newAgent(t, r, nil)
			evict := eviction(ns, r.Pods(ns, "web")[0].Name, r.Pods(ns, "web")[0].UID, -1)
			evict.DeleteOptions.DryRun = []string{metav1.DryRunAll}
			r.Await("it is in force", func(ctx context.Context) (bool, error) {
				err := r.Client(kuberig.Admin).PolicyV1().Evictions(ns).Evict(ctx, evict)
				return err != nil && strings.Contains(err.Error(), name), nil
			})
			j := newJob(r, "node.drain", n, `{}`).within(30 * time.Second)
			step, o := a.run(t.Context(), j)
			if step != "evict" || o.ErrorCode != "eviction_refused" || !strings.Contains(o.Detail, "not on a Monday") {
				t.Errorf("it ended at %s with %+v", step, o)
			}
			if _, d := a.observe(j); d.Counts.Gone != 0 || d.Counts.Planned != 1 {
				t.Errorf("counts %+v", d.Counts)
			}
		})
	}
}
