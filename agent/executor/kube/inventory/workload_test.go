package inventory

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/opsplane/opsplane/shared/protocol"
)

func TestDeploymentEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	d := aDeployment("default", "d", 2)
	setStatus(d, 0, 2, "NewReplicaSetCreated")
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"made", func() {}, []string{"deployment.created default/d"}},
		{"one is ready", func() { setStatus(d, 1, 2, "ReplicaSetUpdated") }, nil},
		{"all are", func() { setStatus(d, 2, 2, "NewReplicaSetAvailable") }, []string{"deployment.available default/d"}},
		{"one went", func() { setStatus(d, 1, 2, "NewReplicaSetAvailable") }, []string{"deployment.unavailable default/d"}},
		{"and came", func() { setStatus(d, 2, 2, "NewReplicaSetAvailable") }, []string{"deployment.available default/d"}},
		{"scaled", func() { n := int32(3); d.Spec.Replicas = &n; d.Generation++; setStatus(d, 2, 2, "ReplicaSetUpdated") }, []string{"deployment.unavailable default/d"}},
		{"to the end", func() { setStatus(d, 3, 3, "NewReplicaSetAvailable") }, []string{"deployment.available default/d"}},
		{"a new template, not seen yet", func() { d.Generation++ }, nil},
		{"rolling", func() {
			d.Annotations["deployment.kubernetes.io/revision"] = "2"
			setStatus(d, 3, 1, "ReplicaSetUpdated")
		}, nil},
		{"stuck", func() { setStatus(d, 3, 1, "ProgressDeadlineExceeded") }, []string{"deployment.rollout_stuck default/d"}},
		{"still stuck", func() { setStatus(d, 3, 2, "ProgressDeadlineExceeded") }, nil},
		{"rolled", func() { setStatus(d, 3, 3, "NewReplicaSetAvailable") }, []string{"deployment.rolled default/d"}},
	} {
		step.do()
		w.put(t, w.deployments, d.DeepCopy())
		if diff := cmp.Diff(step.want, w.happened()); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
		w.list(t, w.deployments, d.DeepCopy())
		if again := w.happened(); len(again) != 0 {
			t.Errorf("%s: told again: %v", step.name, again)
		}
	}
	w.remove(t, w.deployments, d)
	if got := w.told(); len(got.Events) != 1 || got.Events[0].Type != "deployment.deleted" || len(got.Gone) != 1 || got.Gone[0] != "deployment/uid-d" {
		t.Errorf("told %+v", got)
	}
}

// A rollout that was under way when the agent came is told when it ends.
func TestRolloutOfBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{})
	d := aDeployment("default", "d", 2)
	d.Annotations["deployment.kubernetes.io/revision"] = "4"
	setStatus(d, 2, 1, "ReplicaSetUpdated")
	w.list(t, w.deployments, d.DeepCopy())
	w.settle()
	w.begin()
	setStatus(d, 2, 2, "NewReplicaSetAvailable")
	w.put(t, w.deployments, d)
	if diff := cmp.Diff([]string{"deployment.rolled default/d"}, w.happened()); diff != "" {
		t.Error(diff)
	}
}

func aSet(name string, replicas, ready, updated int, rolling bool) *appsv1.StatefulSet {
	n := int32(replicas)
	o := &appsv1.StatefulSet{ObjectMeta: named("default", name, "uid-"+name), Spec: appsv1.StatefulSetSpec{Replicas: &n}}
	o.Status = appsv1.StatefulSetStatus{ObservedGeneration: 1, Replicas: n, ReadyReplicas: int32(ready), CurrentRevision: name + "-1", UpdateRevision: name + "-1", CurrentReplicas: n}
	if rolling {
		o.Status.UpdateRevision, o.Status.UpdatedReplicas, o.Status.CurrentReplicas = name+"-2", int32(updated), int32(replicas-updated)
	}
	return o
}

func TestStatefulSetRolls(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	w.put(t, w.sets, aSet("s", 3, 3, 0, false))
	w.told()
	w.put(t, w.sets, aSet("s", 3, 2, 1, true)) // one at a time is no outage
	w.put(t, w.sets, aSet("s", 3, 3, 2, true))
	if got := w.happened(); len(got) != 0 {
		t.Errorf("told %v", got)
	}
	w.put(t, w.sets, aSet("s", 3, 3, 3, true))
	done := aSet("s", 3, 3, 0, false)
	done.Status.CurrentRevision, done.Status.UpdateRevision = "s-2", "s-2"
	w.put(t, w.sets, done)
	if diff := cmp.Diff([]string{"deployment.rolled default/s"}, w.happened()); diff != "" {
		t.Error(diff)
	}
	w.put(t, w.sets, aSet("s", 3, 1, 0, false))
	if diff := cmp.Diff([]string{"deployment.unavailable default/s"}, w.happened()); diff != "" {
		t.Error(diff)
	}
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return o
}

const aWorkerSet = `{"apiVersion":"leaderworkerset.x-k8s.io/v1","kind":"LeaderWorkerSet","metadata":{"namespace":"default","name":"llm","uid":"lws-1"},
 "spec":{"replicas":2,"leaderWorkerTemplate":{"size":4,"workerTemplate":{"spec":{"containers":[{"name":"w","image":"vllm:1"}]}}}},
 "status":{"replicas":2,"readyReplicas":2,"updatedReplicas":%s,"conditions":[{"type":"Available","status":"True"},{"type":"UpdateInProgress","status":"%s","lastTransitionTime":"%s"}]}}`

func TestCustomDeployments(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	text := func(updated, status, at string) string { return format(aWorkerSet, updated, status, at) }
	w.put(t, w.lws, parse(t, text("2", "False", "t0")))
	graph := `{"apiVersion":"nvidia.com/v1beta1","kind":"DynamoGraphDeployment","metadata":{"namespace":"default","name":"g","uid":"dgd-1","generation":1},
	 "spec":{"components":[{"name":"frontend"},{"name":"decode","replicas":3}]},
	 "status":{"observedGeneration":1,"state":"%s","components":{"frontend":{"replicas":1,"readyReplicas":1,"updatedReplicas":1},"decode":{"replicas":3,"availableReplicas":%s,"updatedReplicas":3}}}}`
	w.put(t, w.graphs, parse(t, format(graph, "successful", "3")))
	got := w.snapshot().Deployments
	for i := range got {
		got[i].Revision = 0
	}
	want := []protocol.Deployment{
		{UID: "dgd-1", Name: "default/g", Kind: "DynamoGraphDeployment", Desired: 4, Ready: 4, Updated: 4, Available: true},
		{UID: "lws-1", Name: "default/llm", Kind: "LeaderWorkerSet", Desired: 2, Ready: 2, Updated: 2, Image: "vllm:1", Available: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	w.told()
	w.put(t, w.lws, parse(t, text("0", "True", "t1")))
	w.put(t, w.lws, parse(t, text("1", "True", "t1")))
	if got := w.happened(); len(got) != 0 {
		t.Errorf("told %v", got)
	}
	w.put(t, w.lws, parse(t, text("2", "False", "t2")))
	w.put(t, w.graphs, parse(t, format(graph, "pending", "1")))
	if diff := cmp.Diff([]string{"deployment.rolled default/llm", "deployment.unavailable default/g"}, w.happened()); diff != "" {
		t.Error(diff)
	}
	w.lws.leave() // the CRD is gone
	if diff := cmp.Diff([]string{"deployment.deleted default/llm"}, w.happened()); diff != "" {
		t.Error(diff)
	}
}

func format(text string, with ...string) string {
	for _, s := range with {
		text = replaceOne(text, s)
	}
	return text
}

func replaceOne(text, with string) string {
	for i := 0; i+1 < len(text); i++ {
		if text[i] == '%' && text[i+1] == 's' {
			return text[:i] + with + text[i+2:]
		}
	}
	return text
}

// What another deployment made, and what is in an excluded namespace, is not one
// of its own.
func TestWhatIsNoDeployment(t *testing.T) {
	t.Parallel()
	yes := true
	child := aSet("llm", 1, 1, 0, false)
	child.OwnerReferences = []metav1.OwnerReference{{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "llm", Controller: &yes}}
	workers := aSet("llm-0", 1, 1, 0, false)
	workers.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "llm-0", Controller: &yes}}
	w := newWorld(Options{}).start(t)
	w.put(t, w.sets, child, workers)
	w.put(t, w.deployments, aDeployment("kube-system", "coredns", 1))
	if d := w.told(); len(d.Events) != 0 || len(w.snapshot().Deployments) != 0 {
		t.Errorf("told %+v, snapshot %+v", d, w.snapshot().Deployments)
	}
}

func restarted(o *corev1.Pod, restarts int32, oom time.Time, looping bool) *corev1.Pod {
	s := corev1.ContainerStatus{Name: "main", RestartCount: restarts}
	s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
	if !oom.IsZero() {
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(oom)}
	}
	if looping {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	}
	o.Status.ContainerStatuses = []corev1.ContainerStatus{s}
	return o
}

// Repeats of one fact are told once in a window, with their count.
func TestTroublesAreFolded(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	w.put(t, w.deployments, aDeployment("default", "d", 2))
	w.put(t, w.pods, aPod("a", "n", "d"), aPod("b", "n", "d"), aPod("bare", "n", ""))
	w.told()
	count := func() map[string]int {
		t.Helper()
		w.unfold()
		out := map[string]int{}
		for _, e := range w.told().Events {
			var d struct{ Count int }
			if err := json.Unmarshal(e.Detail, &d); err != nil || e.Subject.UID != "uid-d" || e.Subject.Name != "default/d" {
				t.Fatalf("told %+v", e)
			}
			out[e.Type] += d.Count
		}
		return out
	}
	oom := func(n int) time.Time { return w.hands.now().Add(time.Duration(n) * time.Second) }
	first := restarted(aPod("a", "n", "d"), 1, oom(1), false)
	w.put(t, w.pods, first, restarted(aPod("bare", "n", ""), 1, oom(1), false))
	if diff := cmp.Diff(map[string]int{"deployment.oom": 1}, count()); diff != "" {
		t.Error(diff)
	}
	w.list(t, w.pods, first.DeepCopy(), aPod("b", "n", "d"))
	w.put(t, w.pods, restarted(aPod("a", "n", "d"), 2, oom(2), true))                      // again, and it loops
	w.put(t, w.pods, restarted(aPod("b", "n", "d"), 1, oom(3), false))                     // the other pod
	w.put(t, w.pods, restarted(aPod("a", "n", "d"), 3, oom(4), true))                      // once more
	w.put(t, w.pods, restarted(aPod("a", "n", "d"), 3, oom(4), true))                      // nothing new
	if diff := cmp.Diff(map[string]int{"deployment.crash_loop": 1}, count()); diff != "" { // the first of its kind
		t.Error(diff)
	}
	w.hands.pass(time.Minute)
	if diff := cmp.Diff(map[string]int{"deployment.oom": 3, "deployment.crash_loop": 1}, count()); diff != "" {
		t.Error(diff)
	}
	w.hands.pass(time.Minute)
	if got := count(); len(got) != 0 {
		t.Errorf("nothing came in the window, and %v was told", got)
	}
	w.put(t, w.pods, restarted(aPod("a", "n", "d"), 4, oom(5), false))
	if diff := cmp.Diff(map[string]int{"deployment.oom": 1}, count()); diff != "" { // a new window
		t.Error(diff)
	}
}

func TestTopOwner(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		labels     map[string]string
		kind, name string
		want       string
	}{
		{map[string]string{"pod-template-hash": "7d9f"}, "ReplicaSet", "web-7d9f", "Deployment web"},
		{map[string]string{"pod-template-hash": "7d9f"}, "ReplicaSet", "web-other", " "},
		{nil, "ReplicaSet", "web-7d9f", " "},
		{nil, "StatefulSet", "db", "StatefulSet db"},
		{nil, "DaemonSet", "dcgm", "DaemonSet dcgm"},
		{nil, "Job", "j", " "},
		{nil, "", "", " "},
		{map[string]string{labelLeaderWorkerSet: "llm"}, "StatefulSet", "llm-0", "LeaderWorkerSet llm"},
		{map[string]string{labelDynamoGraph: "g", "pod-template-hash": "1"}, "ReplicaSet", "g-decode-1", "DynamoGraphDeployment g"},
	} {
		kind, name := topOwner(tc.labels, metav1.OwnerReference{Kind: tc.kind, Name: tc.name})
		if got := kind + " " + name; got != tc.want {
			t.Errorf("%v of %s %s: %q, want %q", tc.labels, tc.kind, tc.name, got, tc.want)
		}
	}
}

func contains(in []string, s string) bool {
	for _, x := range in {
		if x == s {
			return true
		}
	}
	return false
}
