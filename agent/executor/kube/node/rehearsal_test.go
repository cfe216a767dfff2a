package node

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// rehearsals makes the fake answer dry runs of patches, which it would carry out, with
// what answer says; nil: it takes them.
func rehearsals(client *fake.Clientset, answer func() error) {
	client.PrependReactor("patch", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
		if !dryRuns(a) {
			return false, nil, nil
		}
		if answer != nil {
			if err := answer(); err != nil {
				return true, nil, err
			}
		}
		o, err := client.Tracker().Get(a.GetResource(), "", a.(ktesting.PatchAction).GetName())
		if err != nil {
			return true, nil, err
		}
		n, err := patched(o.(*corev1.Node), a.(ktesting.PatchAction).GetPatch())
		return true, n, err
	})
}

func dryRuns(a ktesting.Action) bool {
	p, is := a.(ktesting.PatchActionImpl)
	return is && slices.Equal(p.PatchOptions.DryRun, []string{metav1.DryRunAll})
}

// Admission goes by the query of a dry run, and what carries the eviction out by its
// options as well: both say it, and neither does of an eviction.
func TestEvictionSaysThatItIsADryRun(t *testing.T) {
	t.Parallel()
	var query, body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		query, body = r.URL.Query().Get("dryRun"), string(b)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
	if r, err := e.dryRun(t.Context(), thePayload(t, `{}`), aPod("a"), nil); r != nil || err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	if query != metav1.DryRunAll || !strings.Contains(body, `"dryRun":["All"]`) {
		t.Errorf("rehearsed with dryRun=%q: %s", query, body)
	}
	if err := e.post(t.Context(), eviction("ns", "a", "uid-a", -1)); err != nil || query != "" || strings.Contains(body, "dryRun") {
		t.Errorf("evicted with dryRun=%q: %s, %v", query, body, err)
	}
}
