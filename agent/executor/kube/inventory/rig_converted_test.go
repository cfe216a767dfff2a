//go:build kubetest

package inventory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	nodeop "github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

// converted is a CRD whose objects are stored in v1alpha1 and converted by a webhook at which
// nobody listens.
const converted = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[2]s.%[1]s"},
 "spec":{"group":"%[1]s","scope":"Namespaced","names":{"plural":"%[2]s","singular":"%[3]s","kind":"%[4]s"},
 "conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/convert"}}},
 "versions":[{"name":"v1alpha1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
  {"name":"%[5]s","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// Objects that nobody converts are named and hold nothing else up; what is stored in another
// version that is known here is read in that one. Once they are converted they are there.
func TestRigWithoutConversion(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{Nodes: 1, Without: []string{kuberig.Scheduler}})
	admin, err := dynamic.NewForConfig(r.Config(kuberig.Admin))
	if err != nil {
		t.Fatal(err)
	}
	ns := r.Namespace()
	crds := admin.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	put := func(group, plural, kind, version, spec string) {
		t.Helper()
		if _, err := crds.Create(t.Context(), parse(t, fmt.Sprintf(converted, group, plural, strings.ToLower(kind), kind, version)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		stored := admin.Resource(schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: plural}).Namespace(ns)
		r.Await("an object", func(ctx context.Context) (bool, error) {
			_, err := stored.Create(ctx, parse(t, fmt.Sprintf(`{"apiVersion":"%s/v1alpha1","kind":"%s","metadata":{"name":"llm"},"spec":%s}`, group, kind, spec)), metav1.CreateOptions{})
			return err == nil, nil
		})
	}
	put("leaderworkerset.x-k8s.io", "leaderworkersets", "LeaderWorkerSet", "v1", `{"replicas":2,"leaderWorkerTemplate":{"size":1}}`)
	put("nvidia.com", "dynamographdeployments", "DynamoGraphDeployment", "v1beta1", `{"services":{"Frontend":{"replicas":1}}}`)
	f, err := Open(Options{Cluster: connect(t, r, kuberig.Admin, ns), Cordon: nodeop.CordonOf, LookEvery: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	select {
	case <-f.Synced():
	case <-time.After(time.Minute):
		t.Fatalf("the first lists were not read: %v", f.Healthy())
	}
	has := func(kind string) bool {
		return slices.ContainsFunc(f.model.snapshot().Deployments, func(d protocol.Deployment) bool { return d.Name == ns+"/llm" && d.Kind == kind })
	}
	if len(f.model.snapshot().Nodes) != 1 || !has(kindDynamoGraph) || has(kindLeaderWorkerSet) || !slices.Equal(f.model.snapshot().Unread, []string{kindLeaderWorkerSet}) {
		t.Errorf("the inventory: %+v", f.model.snapshot())
	}
	if err := f.Healthy(); err == nil || !strings.Contains(err.Error(), "list leaderworkersets.leaderworkerset.x-k8s.io, failing since") ||
		!strings.Contains(err.Error(), "conversion webhook for leaderworkerset.x-k8s.io/v1") || strings.Contains(err.Error(), "nvidia.com") {
		t.Errorf("it says %v", err)
	}
	if _, err := crds.Patch(t.Context(), "leaderworkersets.leaderworkerset.x-k8s.io", types.MergePatchType, []byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Await("all is well", func(context.Context) (bool, error) {
		return has(kindLeaderWorkerSet) && f.Healthy() == nil && f.model.snapshot().Unread == nil, nil
	})
}
