package deployment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

var by = cluster.Mark{Operation: "op_1", Run: 1, Generation: 2}

func object(t *testing.T, k *kind, text string) *rollout {
	t.Helper()
	var m map[string]any
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		var u unstructured.Unstructured
		err = u.UnmarshalJSON(raw)
		m = u.Object
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := read(k, k.resources[0], &unstructured.Unstructured{Object: m})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: llm, uid: d-1, generation: 3, resourceVersion: "70"}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}, annotations: {kubectl.kubernetes.io/restartedAt: "2026-01-01T00:00:00Z"}}, spec: {containers: [{name: c, image: "c:1"}]}}
status: {observedGeneration: 3, replicas: 2, updatedReplicas: 2, readyReplicas: 2, availableReplicas: 2}
`

// restarted applies the restart's own patch, as the API server would.
func restarted(t *testing.T, d *rollout, by cluster.Mark, at time.Time) *rollout {
	t.Helper()
	patch, err := restartPatch(d, by, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	return merged(t, d, patch)
}

func merged(t *testing.T, d *rollout, patch []byte) *rollout {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal(patch, &p); err != nil {
		t.Fatal(err)
	}
	u := d.object.DeepCopy()
	merge(u.Object, p)
	r, err := read(d.kind, d.resource, u)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRestartAndUndoOfTheTemplate(t *testing.T) {
	t.Parallel()
	lws := `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: big, namespace: llm, uid: l-1, generation: 1, resourceVersion: "9"}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 4
    %s
    workerTemplate: {metadata: {}, spec: {containers: [{name: c, image: "c:1"}]}}
`
	tests := []struct {
		name  string
		of    *rollout
		where [][]string
	}{
		{"Deployment", object(t, deployments, web), [][]string{{"spec", "template"}}},
		{"LeaderWorkerSet", object(t, leaderWorkerSets, fmt.Sprintf(lws, "leaderTemplate: {metadata: {annotations: {kubectl.kubernetes.io/restartedAt: then}}, spec: {containers: [{name: l, image: l}]}}")),
			[][]string{{"spec", "leaderWorkerTemplate", "leaderTemplate"}, {"spec", "leaderWorkerTemplate", "workerTemplate"}}},
		{"LeaderWorkerSet without leader template", object(t, leaderWorkerSets, fmt.Sprintf(lws, "")),
			[][]string{{"spec", "leaderWorkerTemplate", "workerTemplate"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			after := restarted(t, tt.of, by, noon)
			for _, at := range tt.where {
				got, _, _ := unstructured.NestedStringMap(after.object.Object, annotationsOf(at)...)
				if got[annotationRestarted] != "2026-05-04T12:00:00Z" || got[cluster.AnnotationMark] != "op_1/1/2" {
					t.Errorf("%s: annotations %v", strings.Join(at, "."), got)
				}
			}
			if !after.restarted(by) || after.superseded() != "" || after.template == tt.of.template {
				t.Errorf("after the restart: restarted %v, superseded %q", after.restarted(by), after.superseded())
			}
			if after.restarted(cluster.Mark{Operation: "op_1", Run: 2, Generation: 3}) {
				t.Error("another run counts as this one")
			}
			patch, err := undoPatch(after, cluster.Mark{Operation: "op_1", Run: 1, Generation: 4}, nil)
			if err != nil {
				t.Fatal(err)
			}
			back := merged(t, after, patch)
			if is := back.takenBack(); !is.whole {
				t.Errorf("it says: %s", is.text)
			}
			for _, at := range tt.where { // an empty map and none make the same template
				if m, _, _ := unstructured.NestedMap(back.object.Object, annotationsOf(at)...); len(m) == 0 {
					unstructured.RemoveNestedField(back.object.Object, annotationsOf(at)...)
					unstructured.RemoveNestedField(back.object.Object, append(append([]string{}, at...), "metadata")...)
					unstructured.RemoveNestedField(tt.of.object.Object, append(append([]string{}, at...), "metadata")...)
				}
			}
			was, _, _ := unstructured.NestedMap(tt.of.object.Object, tt.of.kind.template...)
			is, _, _ := unstructured.NestedMap(back.object.Object, back.kind.template...)
			if diff := cmp.Diff(was, is); diff != "" {
				t.Errorf("the template is not that of before: %s", diff)
			}
			if !back.record.Undone || back.mark.Generation != 4 {
				t.Errorf("record %+v, mark %s", back.record, back.mark)
			}
		})
	}
}

func TestSupersededByAnotherTemplate(t *testing.T) {
	t.Parallel()
	after := restarted(t, object(t, deployments, web), by, noon)
	scaled := merged(t, after, []byte(`{"spec":{"replicas":7},"metadata":{"labels":{"x":"y"}}}`))
	if s := scaled.superseded(); s != "" {
		t.Errorf("a scaled deployment counts as superseded: %s", s)
	}
	for _, patch := range []string{
		`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-05-04T12:00:01Z"}}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"c:2"}]}}}}`,
		`{"metadata":{"annotations":{"opsplane.io/roll":null}}}`,
	} {
		if merged(t, after, []byte(patch)).superseded() == "" {
			t.Errorf("%s does not count as superseding", patch)
		}
	}
}

func newPod(name string, old bool, change func(*corev1.Pod)) *corev1.Pod {
	p := pod(change)
	p.Name, p.Labels = name, map[string]string{"pod-template-hash": "h1"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-h1", Controller: new(true)}}
	p.CreationTimestamp = metav1.NewTime(noon.Add(time.Second))
	if !old {
		p.Annotations = map[string]string{cluster.AnnotationMark: "op_1/1/2"}
	}
	return p
}

func isReady(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(2 * time.Second))}}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const exceeded = `{"status":{"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"timed out"}]}}`
	broken := newPod("web-3", false, waiting("ImagePullBackOff", "no such image"))
	both := []*corev1.Pod{newPod("web-1", false, isReady), newPod("web-2", false, isReady)}
	tests := []struct {
		name    string
		patch   string
		pods    []*corev1.Pod
		after   time.Duration
		undo    bool
		rolled  bool
		code    string
		causes  []string
		old     int
		wakesIn time.Duration // after noon; 0: never
	}{
		{name: "rolled", pods: both, rolled: true},
		{name: "rolled, an old one is stopping", pods: append([]*corev1.Pod{newPod("web-0", true, nil)}, both...), rolled: true, old: 1},
		{name: "status tells of the template before", patch: `{"metadata":{"generation":4}}`, pods: both, wakesIn: 8 * time.Second},
		{name: "status says so, pods do not", pods: both[:1], wakesIn: 10 * time.Second},
		{name: "another's pods", pods: append([]*corev1.Pod{func() *corev1.Pod {
			p := newPod("other-0", true, nil)
			p.OwnerReferences[0].Name = "other-h1"
			return p
		}()}, both...), rolled: true},
		{name: "being deleted", patch: `{"metadata":{"deletionTimestamp":"2026-05-04T12:00:01Z"}}`, pods: both, code: "deployment_gone", wakesIn: 10 * time.Second},
		{name: "image, before the deadline", patch: `{"status":{"updatedReplicas":1}}`, pods: []*corev1.Pod{broken}, causes: []string{codeImagePull}},
		{name: "image, at the deadline", patch: exceeded, pods: []*corev1.Pod{broken}, code: codeImagePull, causes: []string{codeImagePull}},
		{name: "deadline without a cause", patch: exceeded, code: codeDeadline, wakesIn: 10 * time.Second},
		{name: "old deadline", patch: strings.Replace(exceeded, `{"status"`, `{"metadata":{"generation":4},"status"`, 1), wakesIn: 8 * time.Second},
		{name: "image, undo asked for", patch: `{"status":{"updatedReplicas":1}}`, pods: []*corev1.Pod{broken}, undo: true, causes: []string{codeImagePull}, wakesIn: 30 * time.Second},
		{name: "image, undo asked for, patience over", patch: `{"status":{"updatedReplicas":1}}`, pods: []*corev1.Pod{broken}, undo: true, after: 30 * time.Second,
			code: codeImagePull, causes: []string{codeImagePull}},
		{name: "quota", patch: `{"status":{"updatedReplicas":1,"conditions":[{"type":"ReplicaFailure","status":"True","reason":"FailedCreate","message":"exceeded quota: gpus, requested: 8"}]}}`,
			undo: true, after: time.Hour, causes: []string{codeQuota}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := restarted(t, object(t, deployments, web), by, noon)
			if tt.patch != "" {
				d = merged(t, d, []byte(tt.patch))
			}
			s := scene{rollout: d, pods: tt.pods}
			seen := map[string]time.Time{}
			s.judge(by, DefaultBounds, tt.undo, seen, noon.Add(2*time.Second))
			v := s.judge(by, DefaultBounds, tt.undo, seen, noon.Add(2*time.Second+tt.after))
			var causes []string
			for _, c := range v.causes {
				causes = append(causes, c.code)
			}
			if v.rolled != tt.rolled || v.code != tt.code || len(v.old) != tt.old || !cmp.Equal(causes, tt.causes) {
				t.Errorf("rolled %v code %q (%s) old %d causes %v", v.rolled, v.code, v.why, len(v.old), causes)
			}
			wake := time.Duration(0)
			if !v.wake.IsZero() {
				wake = v.wake.Sub(noon.Add(2 * time.Second))
			}
			if wake != tt.wakesIn {
				t.Errorf("wakes after %s, want %s", wake, tt.wakesIn)
			}
		})
	}
}

func TestStatefulSetStalls(t *testing.T) {
	t.Parallel()
	const set = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: llm, uid: s-1, generation: 2, annotations: {opsplane.io/progress-deadline-seconds: "90"}}
spec: {replicas: 3, selector: {matchLabels: {app: db}}, updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}, template: {metadata: {labels: {app: db}}}}
status: {observedGeneration: 2, replicas: 3, updatedReplicas: 1, readyReplicas: 2, availableReplicas: 2}
`
	d := restarted(t, object(t, statefulSets, set), by, noon)
	if d.want != 2 || !d.ordered {
		t.Fatalf("want %d replicas renewed, ordered %v", d.want, d.ordered)
	}
	made := pod(isReady)
	made.Annotations = map[string]string{cluster.AnnotationMark: by.String()}
	made.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", UID: "s-1", Controller: new(true)}}
	s := scene{rollout: d, pods: []*corev1.Pod{made}} // ready at noon + 2 s
	v := s.judge(by, DefaultBounds, false, map[string]time.Time{}, noon.Add(91*time.Second))
	if v.code != "" || !v.wake.Equal(noon.Add(92*time.Second)) {
		t.Errorf("at 91 s: code %q, wakes at %s", v.code, v.wake)
	}
	v = s.judge(by, DefaultBounds, false, map[string]time.Time{}, noon.Add(92*time.Second))
	if v.code != codeDeadline || !strings.Contains(v.why, "1m30s") {
		t.Errorf("at 92 s: code %q, %s", v.code, v.why)
	}
}

func TestDynamoGraph(t *testing.T) {
	t.Parallel()
	const graph = `
apiVersion: nvidia.com/%s
kind: DynamoGraphDeployment
metadata: {name: llama, namespace: llm, uid: g-1, generation: 5}
spec: %s
status: {observedGeneration: 5, %s: {a: {replicas: 1, updatedReplicas: 1, readyReplicas: 1}, b: {replicas: 2, updatedReplicas: 2, availableReplicas: 2}}}
`
	for _, text := range []string{
		fmt.Sprintf(graph, "v1alpha1", `{services: {a: {}, b: {replicas: 2}}}`, "services"),
		fmt.Sprintf(graph, "v1beta1", `{components: [{name: a}, {name: b, replicas: 2}]}`, "components"),
	} {
		d := restarted(t, object(t, dynamoGraphs, text), by, noon)
		if d.desired != 3 || d.updated != 3 || d.ready != 3 || d.restart.id != "op_1-1" {
			t.Errorf("%+v", d)
		}
		for phase, want := range map[string]verdict{
			"":           {},
			"Restarting": {},
			"Completed":  {rolled: true},
			"Failed":     {code: "restart_failed"},
			"Superseded": {code: "superseded"},
		} {
			now := merged(t, d, fmt.Appendf(nil, `{"status":{"restart":{"observedID":"op_1-1","phase":%q}}}`, phase))
			v := scene{rollout: now}.judge(by, DefaultBounds, false, map[string]time.Time{}, noon)
			if v.rolled != want.rolled || v.code != want.code {
				t.Errorf("phase %q: rolled %v, code %q", phase, v.rolled, v.code)
			}
		}
		other := merged(t, d, []byte(`{"status":{"restart":{"observedID":"before","phase":"Completed"}}}`))
		if v := (scene{rollout: other}).judge(by, DefaultBounds, false, map[string]time.Time{}, noon); v.rolled {
			t.Error("the restart before counts as this one")
		}
	}
}

// A name that is too long for a label selects no pods, and not all.
func TestLongNamesSelectNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"g", strings.Repeat("g", 63), strings.Repeat("g", 64), strings.Repeat("g", 253)} {
		parsed, err := labels.Parse(labelled(labelDynamoGraph, name).String()) // as the API server does
		if err != nil {
			t.Errorf("%d bytes: %v", len(name), err)
			continue
		}
		for value, want := range map[string]bool{name: len(name) <= 63, name[:min(len(name), 62)] + "x": false} {
			if got := parsed.Matches(labels.Set{labelDynamoGraph: value}); got != want {
				t.Errorf("%d bytes: a pod of %s: %v", len(name), value, got)
			}
		}
		if parsed.Matches(labels.Set{}) {
			t.Errorf("%d bytes: selects any pod", len(name))
		}
	}
}
