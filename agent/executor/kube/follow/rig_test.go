//go:build kubetest

package follow_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// TestFeedOnAServer follows ConfigMaps by label through a way that breaks: what
// happened while it was cut off is known afterwards, from where it was and without
// another list; what a missing right keeps from it is told as such.
func TestFeedOnAServer(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns, user := r.Namespace(), r.User("reader")
	r.Grant(user, ns, kuberig.Rule("", "configmaps", []string{"list", "watch"}))
	p := r.Proxy(user)
	client := p.Client()
	maps := r.Client(kuberig.Admin).CoreV1().ConfigMaps(ns)
	put := func(name, kind string) {
		t.Helper()
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kind": kind}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "wanted")
	put("x", "unwanted")
	read := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 8*time.Second)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := follow.NewGroup(ctx, nil)
	f := follow.Join(ctx, g, follow.Of("configmaps", read, client.CoreV1().ConfigMaps(ns), metav1.ListOptions{LabelSelector: "kind=wanted"}),
		func(o runtime.Object) string { return o.(*corev1.ConfigMap).Name })
	until := func(what string, ok func(names []string, away *cluster.Unanswered) bool) {
		t.Helper()
		late := time.After(30 * time.Second)
		for {
			names, _ := f.In("")
			slices.Sort(names)
			away, _ := g.Trouble()
			if g.Ready() && ok(names, away) {
				return
			}
			select {
			case <-g.Changed():
			case <-late:
				t.Fatalf("%s: not within 30 s: %v, %v", what, names, away)
			}
		}
	}
	has := func(want ...string) func(names []string, away *cluster.Unanswered) bool {
		return func(names []string, away *cluster.Unanswered) bool { return slices.Equal(names, want) && away == nil }
	}
	until("the list", has("a"))
	put("b", "wanted")
	until("a change", has("a", "b"))

	r.MarkAudit()
	away := p.Inject(kuberig.Fault{Status: http.StatusServiceUnavailable})
	p.CutWatches()
	until("the cut", func(_ []string, away *cluster.Unanswered) bool { return away != nil })
	put("c", "wanted")
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	away.Remove()
	until("what happened meanwhile", has("b", "c"))
	for _, e := range r.Audit(user) {
		if e.Verb == "list" {
			t.Errorf("it listed again: %s", e.URI)
		}
	}

	none := follow.Join(ctx, follow.NewGroup(ctx, nil), follow.Of("secrets", read, client.CoreV1().Secrets(ns), metav1.ListOptions{}), func(o runtime.Object) runtime.Object { return o })
	if err := none.Ready(ctx); !apierrors.IsForbidden(err) {
		t.Errorf("without the right: %v", err)
	}
}
