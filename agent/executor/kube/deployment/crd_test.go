//go:build kubetest

package deployment

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define makes a CRD whose objects are kept as they come (or pruned to spec), and
// waits until it is served.
func define(t *testing.T, r *kuberig.Rig, group, kind, plural string, pruned bool, versions ...string) {
	t.Helper()
	c, err := cluster.Open(cluster.Options{Kubeconfig: r.Kubeconfig("admin")})
	if err != nil {
		t.Fatal(err)
	}
	keep := "x-kubernetes-preserve-unknown-fields: true"
	if pruned { // an operator of before spec.restart
		keep = "properties: {spec: {type: object, properties: {services: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}"
	}
	text := fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.%s}
spec:
  group: %s
  scope: Namespaced
  names: {kind: %s, plural: %s, singular: %s}
  versions:
`, plural, group, group, kind, plural, strings.ToLower(kind))
	for i, v := range versions {
		text += fmt.Sprintf("  - {name: %s, served: true, storage: %v, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, %s}}}\n", v, i == 0, keep)
	}
	if _, err := c.Dynamic.Resource(crds).Create(t.Context(), fromYAML(t, text), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	gvr := schema.GroupVersionResource{Group: group, Version: versions[0], Resource: plural}
	w, err := c.Dynamic.Resource(crds).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + plural + "." + group})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		for _, cond := range conditionsOf(unstructuredOf(t, e.Object)) {
			if cond.Type == "Established" && cond.Status == metav1.ConditionTrue {
				// Established is said a little before the path is served.
				for {
					if _, err := c.Dynamic.Resource(gvr).List(t.Context(), metav1.ListOptions{}); err == nil {
						return
					}
				}
			}
		}
	}
}

func fromYAML(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// create makes a custom object with the status that its operator would write.
func (s *site) create(gvr schema.GroupVersionResource, text, status string) *unstructured.Unstructured {
	s.t.Helper()
	u, err := s.dynamic.Resource(gvr).Namespace(s.ns).Create(s.ctx(), fromYAML(s.t, text), metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.status(gvr, u.GetName(), status)
	return u
}

func (s *site) status(gvr schema.GroupVersionResource, name, status string) {
	s.t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(status))
	if err == nil {
		_, err = s.dynamic.Resource(gvr).Namespace(s.ns).Patch(s.ctx(), name, types.MergePatchType, fmt.Appendf(nil, `{"status":%s}`, raw), metav1.PatchOptions{}, "status")
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// groupPod makes a pod as the LeaderWorkerSet's controllers do from the template.
func (s *site) groupPod(set *unstructured.Unstructured, name string) {
	s.t.Helper()
	annotations, _, _ := unstructured.NestedStringMap(set.Object, "spec", "leaderWorkerTemplate", "workerTemplate", "metadata", "annotations")
	tpl := s.template(set.GetName())
	tpl.Labels[labelLeaderWorkerSet] = set.GetName()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: tpl.Labels, Annotations: annotations}, Spec: tpl.Spec}
	if _, err := s.admin.CoreV1().Pods(s.ns).Create(s.ctx(), p, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func TestRollOfALeaderWorkerSet(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{})
	define(t, r, "leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", false, "v1")
	s := setup(t, r, "admin", cluster.Options{})
	s.hands()
	gvr := leaderWorkerSets.resources[0]
	u := s.create(gvr, `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: big}
spec: {replicas: 1, leaderWorkerTemplate: {size: 2, workerTemplate: {spec: {containers: [{name: w, image: "w:1"}]}}}}
`, `{replicas: 1, readyReplicas: 1, updatedReplicas: 1, observedGeneration: 1}`)
	s.groupPod(u, "big-0")
	l := s.lease(RollWithin(s.c, quick), "LeaderWorkerSet", "big", string(u.GetUID()), "on_failure")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	<-l.told
	now, err := s.dynamic.Resource(gvr).Namespace(s.ns).Get(s.ctx(), "big", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Its controller sees the new template, and makes the group anew.
	s.status(gvr, "big", `{observedGeneration: 2, updatedReplicas: 0, readyReplicas: 0, conditions: [{type: UpdateInProgress, status: "True"}]}`)
	if err := s.admin.CoreV1().Pods(s.ns).Delete(s.ctx(), "big-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.groupPod(now, "big-0-new")
	s.groupPod(now, "big-0-1")
	s.status(gvr, "big", `{updatedReplicas: 1, readyReplicas: 1, conditions: [{type: UpdateInProgress, status: "False"}, {type: Available, status: "True"}]}`)
	if o := <-waited; o.Class != operation.OutcomeDone {
		t.Fatalf("wait: %+v; progress %v", o, l.progress)
	}
	s.must(l, "confirm")
	end := executor.Ending{}
	l.typ.Observe(s.ctx(), l.Assignment, &end)
	if d := end.Observed.Deployments; len(d) != 1 || d[0].Kind != "LeaderWorkerSet" || d[0].Image != "w:1" || !has(end.Verified, "carries this restart") {
		t.Errorf("ending %+v", end)
	}
}

func TestRollOfADynamoGraphDeployment(t *testing.T) {
	t.Parallel()
	const graph = `
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: llama}
spec: {services: {Frontend: {replicas: 1}, Worker: {replicas: 2}}}
`
	const settled = `{state: successful, observedGeneration: %d, services: {Frontend: {replicas: 1, updatedReplicas: 1, readyReplicas: 1}, Worker: {replicas: 2, updatedReplicas: 2, readyReplicas: 2}}}`
	gvr := dynamoGraphs.resources[1]
	r := kuberig.Start(t, kuberig.Options{})
	define(t, r, "nvidia.com", "DynamoGraphDeployment", "dynamographdeployments", false, "v1alpha1")
	s := setup(t, r, "admin", cluster.Options{})
	u := s.create(gvr, graph, fmt.Sprintf(settled, 1))
	l := s.lease(Roll(s.c), "DynamoGraphDeployment", "llama", string(u.GetUID()), "never")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	<-l.told
	now, err := s.dynamic.Resource(gvr).Namespace(s.ns).Get(s.ctx(), "llama", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked, _, _ := unstructured.NestedString(now.Object, "spec", "restart", "id")
	if !strings.HasPrefix(asked, l.Operation) {
		t.Fatalf("spec.restart.id is %q", asked)
	}
	s.status(gvr, "llama", fmt.Sprintf(`{restart: {observedID: %s, phase: Restarting, inProgress: [Frontend]}, services: {Frontend: {readyReplicas: 0}}}`, asked))
	s.status(gvr, "llama", fmt.Sprintf(`{observedGeneration: 2, restart: {observedID: %s, phase: Completed}, services: {Frontend: {readyReplicas: 1}}}`, asked))
	if o := <-waited; o.Class != operation.OutcomeDone {
		t.Fatalf("wait: %+v; progress %v", o, l.progress)
	}
	s.must(l, "confirm")
	if f := l.next(Roll(s.c), 1).probe(s.ctx(), "restart"); f.Phase != operation.StepSucceeded {
		t.Errorf("the next lease finds %+v", f)
	}
	// What its operator cannot do is refused up front.
	if o := s.lease(Roll(s.c), "", "llama", string(u.GetUID()), "on_failure").run(s.ctx(), "preflight"); o.ErrorCode != "not_supported" || !strings.Contains(o.Detail, "DynamoGraphDeployment") {
		t.Errorf("preflight with undo: %+v", o)
	}
	s.status(gvr, "llama", `{rollingUpdate: {phase: InProgress}}`)
	if o := s.lease(Roll(s.c), "", "llama", string(u.GetUID()), "never").run(s.ctx(), "preflight"); o.ErrorCode != "rolling" {
		t.Errorf("preflight while it rolls: %+v", o)
	}
}

func TestRollOfAnOperatorWithoutRestart(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{Without: []string{kuberig.Kwok}})
	define(t, r, "nvidia.com", "DynamoGraphDeployment", "dynamographdeployments", true, "v1alpha1")
	c, err := cluster.Open(cluster.Options{Kubeconfig: r.Kubeconfig("admin")})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, rig: r, admin: c.Client, dynamic: c.Dynamic, ns: "default", c: c}
	gvr := dynamoGraphs.resources[1]
	u, err := c.Dynamic.Resource(gvr).Namespace(s.ns).Create(s.ctx(), fromYAML(t, "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata: {name: llama}\nspec: {services: {a: {}}}\n"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := s.lease(Roll(c), "", "llama", string(u.GetUID()), "never").run(s.ctx(), "preflight")
	if o.ErrorCode != "not_supported" || !strings.Contains(o.Detail, "has no spec.restart") {
		t.Errorf("preflight: %+v", o)
	}
}
