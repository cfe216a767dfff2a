package inventory

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// custom is a kind of deployment that a CRD brings. Its resource is watched while
// the API server serves one of the versions, the first of them.
type custom struct {
	kind     string
	versions []schema.GroupVersionResource
	strip    func(obj any) (*workload, bool)
}

var customs = []custom{
	{
		kind:     kindLeaderWorkerSet,
		versions: []schema.GroupVersionResource{{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}},
		strip:    stripLeaderWorkerSet,
	},
	{
		kind: kindDynamoGraph,
		versions: []schema.GroupVersionResource{
			{Group: "nvidia.com", Version: "v1beta1", Resource: "dynamographdeployments"},
			{Group: "nvidia.com", Version: "v1alpha1", Resource: "dynamographdeployments"},
		},
		strip: stripDynamoGraph,
	},
}

func whole(m map[string]any, path ...string) int {
	n, _, _ := unstructured.NestedInt64(m, path...)
	return int(n)
}

// conditions reads status.conditions: status and reason by type.
func conditions(o *unstructured.Unstructured) map[string]metav1.Condition {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	out := map[string]metav1.Condition{}
	for _, c := range list {
		m, _ := c.(map[string]any)
		typ, _ := m["type"].(string)
		status, _ := m["status"].(string)
		reason, _ := m["reason"].(string)
		at, _ := m["lastTransitionTime"].(string)
		out[typ] = metav1.Condition{Type: typ, Status: metav1.ConditionStatus(status), Reason: reason, Message: at}
	}
	return out
}

// stripLeaderWorkerSet counts groups as replicas.
// https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/
func stripLeaderWorkerSet(obj any) (*workload, bool) {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	w := &workload{head: headOf(o), kind: kindLeaderWorkerSet, desired: 1, ready: whole(o.Object, "status", "readyReplicas"),
		updated: whole(o.Object, "status", "updatedReplicas"), hidden: made(o), part: partOf(o)}
	if n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); found {
		w.desired = int(n)
	}
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "leaderWorkerTemplate", "workerTemplate", "spec", "containers")
	w.image = firstImage(containers)
	c := conditions(o)
	w.available = c["Available"].Status == metav1.ConditionTrue || w.ready >= w.desired
	update := c["UpdateInProgress"]
	w.moving = update.Status == metav1.ConditionTrue
	w.rollout = "1" // the first; every update begins with the condition turning true
	if w.moving {
		w.rollout = "update of " + update.Message
	} else if update.Status == metav1.ConditionFalse {
		w.rollout = "updated at " + update.Message
	}
	w.complete = w.desired > 0 && !w.moving && w.updated >= w.desired && w.ready >= w.desired
	return w, true
}

// stripDynamoGraph sums up the services (v1alpha1) or components (v1beta1).
// https://github.com/ai-dynamo/dynamo/blob/main/deploy/operator/api/v1beta1/dynamographdeployment_types.go
func stripDynamoGraph(obj any) (*workload, bool) {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	w := &workload{head: headOf(o), kind: kindDynamoGraph, hidden: made(o), part: partOf(o)}
	services, _, _ := unstructured.NestedMap(o.Object, "spec", "services")
	components, _, _ := unstructured.NestedSlice(o.Object, "spec", "components")
	for _, s := range services {
		components = append(components, s)
	}
	for _, s := range components {
		m, _ := s.(map[string]any)
		n, found, _ := unstructured.NestedInt64(m, "replicas")
		if !found {
			n = 1
		}
		w.desired += int(n)
	}
	for _, field := range []string{"services", "components"} {
		told, _, _ := unstructured.NestedMap(o.Object, "status", field)
		for _, s := range told {
			m, _ := s.(map[string]any)
			w.updated += whole(m, "updatedReplicas")
			w.ready += max(whole(m, "readyReplicas"), whole(m, "availableReplicas")) // a kind of component tells one of them
		}
	}
	state, _, _ := unstructured.NestedString(o.Object, "status", "state")
	c := conditions(o)["Ready"]
	w.available = state == "successful" && c.Status != metav1.ConditionFalse || c.Status == metav1.ConditionTrue
	if state == "failed" {
		w.stuck = "its operator says that it failed: " + cut(c.Reason, 128)
	}
	restart, _, _ := unstructured.NestedString(o.Object, "spec", "restart", "id")
	phase, _, _ := unstructured.NestedString(o.Object, "status", "restart", "phase")
	rolling, _, _ := unstructured.NestedString(o.Object, "status", "rollingUpdate", "phase")
	w.moving = rolling == "Pending" || rolling == "InProgress" || restart != "" && phase != "Completed" && phase != "Failed" && phase != "Superseded"
	w.rollout = templates(o)
	w.complete = w.desired > 0 && !w.moving && w.available && int64(whole(o.Object, "status", "observedGeneration")) >= o.GetGeneration()
	return w, true
}

// templates tells a graph's rollouts apart: a number of its spec without the
// counts of replicas.
func templates(o *unstructured.Unstructured) string {
	spec, _, _ := unstructured.NestedMap(o.Object, "spec") // a copy
	services, _ := spec["services"].(map[string]any)
	components, _ := spec["components"].([]any)
	for _, s := range services {
		components = append(components, s)
	}
	for _, c := range components {
		if m, ok := c.(map[string]any); ok {
			delete(m, "replicas")
		}
	}
	text, _ := json.Marshal(spec) // what came as JSON goes as JSON, keys sorted
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return strconv.FormatUint(h.Sum64(), 16)
}

func firstImage(containers []any) string {
	for _, c := range containers {
		m, _ := c.(map[string]any)
		if s, ok := m["image"].(string); ok {
			return intern(s)
		}
	}
	return ""
}
