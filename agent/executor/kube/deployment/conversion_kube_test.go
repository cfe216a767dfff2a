//go:build kubetest

package deployment

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestRollOfWhatNobodyConverts: the conversion webhook of a CRD is not there. The roll says
// so and waits for it; one of an object that is stored in a version that is known here goes
// on in that one, and so does one of any other kind under the same name.
func TestRollOfWhatNobodyConverts(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{})
	define(t, r, "leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", false, "v1alpha1", "v1")
	define(t, r, "nvidia.com", "DynamoGraphDeployment", "dynamographdeployments", false, "v1alpha1", "v1beta1")
	s := setup(t, r, "admin", cluster.Options{})
	s.hands()
	for _, name := range []string{"leaderworkersets.leaderworkerset.x-k8s.io", "dynamographdeployments.nvidia.com"} {
		patch := `{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/convert"}}}}}`
		if _, err := s.dynamic.Resource(crds).Patch(s.ctx(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	sets := schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1alpha1", Resource: "leaderworkersets"}
	set := s.create(sets, `
apiVersion: leaderworkerset.x-k8s.io/v1alpha1
kind: LeaderWorkerSet
metadata: {name: llama}
spec: {replicas: 1, leaderWorkerTemplate: {size: 1, workerTemplate: {spec: {containers: [{name: w, image: "w:1"}]}}}}
`, `{replicas: 1, readyReplicas: 1, updatedReplicas: 1, observedGeneration: 1}`)
	graph := s.create(dynamoGraphs.resources[1], `
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: llama}
spec: {services: {Frontend: {replicas: 1}}}
`, `{state: successful, observedGeneration: 1, services: {Frontend: {replicas: 1, updatedReplicas: 1, readyReplicas: 1}}}`)
	dead := func(ctx context.Context) (bool, error) { // the API server takes a moment to know of it
		_, err := s.dynamic.Resource(leaderWorkerSets.resources[0]).Namespace(s.ns).Get(ctx, "llama", metav1.GetOptions{})
		return cluster.UnconvertedBy(err) != "", nil
	}
	r.Await("nobody converts", dead)
	l := s.lease(Roll(s.c), "LeaderWorkerSet", "llama", string(set.GetUID()), "never")
	for _, step := range []string{"preflight", "restart", "wait", "confirm", "undo"} {
		o := l.run(s.ctx(), step)
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != "conversion_failed" || !strings.Contains(o.Detail, "cannot convert leaderworkerset.x-k8s.io/v1") || o.ActionCode != operation.ActRestoreDependency {
			t.Errorf("%s: %+v", step, o)
		}
		s.await(l, func(b protocol.Blocker) bool {
			return b.Code == "conversion_failed" && b.Rule == "conversion_webhook" && b.Resource == "deployment/"+s.ns+"/llama"
		})
	}
	if list, err := l.typ.Preview(s.ctx(), protocol.PreviewRequest{ID: "pre_1", Type: l.Type, TargetName: l.TargetName, TargetUID: l.TargetUID, Payload: l.Payload}); err != nil || len(list) != 1 || list[0].Code != "conversion_failed" {
		t.Errorf("the dry run: %+v, %v", list, err)
	}
	if f := l.probe(s.ctx(), "restart"); f.Phase != operation.StepUnknown || !strings.Contains(f.Detail, "cannot convert") {
		t.Errorf("the probe finds %+v", f)
	}
	s.must(s.lease(Roll(s.c), "DynamoGraphDeployment", "llama", string(graph.GetUID()), "never"), "preflight", "restart")
	patch := fmt.Sprintf(`{"spec":{"conversion":{"strategy":%q,"webhook":null}}}`, "None")
	if _, err := s.dynamic.Resource(crds).Patch(s.ctx(), "leaderworkersets.leaderworkerset.x-k8s.io", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Await("it is converted", func(ctx context.Context) (bool, error) {
		return l.run(ctx, "preflight").Class == operation.OutcomeDone, nil
	})
}
