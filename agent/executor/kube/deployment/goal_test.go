package deployment

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	db = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: llm, uid: s-1, generation: 3, resourceVersion: "70"}
spec: {replicas: 3, selector: {matchLabels: {app: db}}, updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0}}, template: {metadata: {labels: {app: db}}}}
status: {observedGeneration: 4, replicas: 3, updatedReplicas: 0, readyReplicas: 3, availableReplicas: 3}
`
	big = `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: db, namespace: llm, uid: l-1, generation: 3, resourceVersion: "70"}
spec: {replicas: 3, leaderWorkerTemplate: {size: 2, workerTemplate: {metadata: {}, spec: {containers: [{name: c, image: "c:1"}]}}}, rolloutStrategy: {type: RollingUpdate, rollingUpdateConfiguration: {partition: 0}}}
status: {observedGeneration: 4, replicas: 3, updatedReplicas: 0, readyReplicas: 3}
`
	graph = `
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: db, namespace: llm, uid: g-1, generation: 3, resourceVersion: "70"}
spec: {components: [{name: a, replicas: 3}]}
status: {observedGeneration: 4, components: {a: {replicas: 3, updatedReplicas: 3, readyReplicas: 3}}}
`
)

// dbPod is a pod of the StatefulSet above; old: of before its restart.
func dbPod(n int, old bool, change func(*corev1.Pod)) *corev1.Pod {
	p := newPod(fmt.Sprintf("db-%d", n), old, isReady)
	p.UID, p.Labels = types.UID(p.Name), map[string]string{"app": "db"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", UID: "s-1", Controller: new(true)}}
	if change != nil {
		change(p)
	}
	return p
}

// TestTheGoalIsTakenAway: whoever changes what a restart was to renew keeps it from
// success, is named, and has the rest in hand.
func TestTheGoalIsTakenAway(t *testing.T) {
	t.Parallel()
	partitioned := func(n int) string {
		return fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, n)
	}
	const parted = `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}`
	oneNew := []*corev1.Pod{dbPod(0, true, nil), dbPod(1, true, nil), dbPod(2, false, nil)}
	allOld := []*corev1.Pod{dbPod(0, true, nil), dbPod(1, true, nil), dbPod(2, true, nil)}
	const scaled = `{"spec":{"replicas":0},"status":{"replicas":0,"updatedReplicas":0,"readyReplicas":0,"availableReplicas":0}}`
	tests := []struct {
		name         string
		kind         *kind
		text, before string // a patch before the restart
		after        string // and after it
		pods         []*corev1.Pod
		code         string // "": it is rolled
		says, rest   string
		words        string // how far it is
	}{
		{name: "partition of all", kind: statefulSets, text: db, after: partitioned(3), pods: allOld, code: codePartition,
			says: "the partition of llm/db was raised to 3 after the restart: it keeps 3 of the 3 replicas that were to restart", rest: "when the partition is lowered", words: "0 of 3 replicas updated, 3 ready"},
		{name: "partition of all, one was new", kind: statefulSets, text: db, after: `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":3}}},"status":{"updatedReplicas":1}}`, pods: oneNew, code: codePartition,
			says: "it keeps 2 of the 3", words: "1 of 3 replicas updated, 3 ready"},
		{name: "partition raised", kind: statefulSets, text: db, after: `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}},"status":{"updatedReplicas":1}}`, pods: oneNew, code: codePartition,
			says: "it keeps 2 of the 3", words: "1 of 3 replicas updated, 3 ready"},
		{name: "partition raised when all was done", kind: statefulSets, text: db, after: `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}},"status":{"updatedReplicas":3}}`,
			pods: []*corev1.Pod{dbPod(0, false, nil), dbPod(1, false, nil), dbPod(2, false, nil)}},
		{name: "the partition of before", kind: statefulSets, text: db, before: parted, after: `{"status":{"updatedReplicas":1}}`, pods: oneNew, words: "1 of 1 replicas updated, 2 kept by a partition, 3 ready"},
		{name: "the partition of before was lowered", kind: statefulSets, text: db, before: parted, after: `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}},"status":{"updatedReplicas":1}}`,
			pods: oneNew, code: "", words: "1 of 3 replicas updated, 3 ready"},
		{name: "scaled to what a partition keeps", kind: statefulSets, text: db, before: parted, after: `{"spec":{"replicas":2},"status":{"replicas":2,"readyReplicas":2,"availableReplicas":2}}`, pods: allOld[:2], code: codeScaled,
			says: "scaled from 3 replicas to 2 after the restart, which are those that a partition of 2 keeps"},
		{name: "OnDelete", kind: statefulSets, text: db, after: `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`, pods: allOld, code: codeOnDelete,
			says: "changed to OnDelete after the restart", rest: "when somebody deletes its pods"},
		{name: "OnDelete, and somebody deleted them", kind: statefulSets, text: db, after: `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}},"status":{"updatedReplicas":3}}`,
			pods: []*corev1.Pod{dbPod(0, false, nil), dbPod(1, false, nil), dbPod(2, false, nil)}},
		{name: "StatefulSet scaled to nothing", kind: statefulSets, text: db, after: scaled, code: codeScaled, says: "scaled from 3 replicas to 0 after the restart: nothing is left", rest: "when it is scaled up again"},
		{name: "Deployment scaled to nothing", kind: deployments, text: web, after: `{"spec":{"replicas":0},"status":{"observedGeneration":4,"replicas":0,"updatedReplicas":0,"readyReplicas":0,"availableReplicas":0}}`, code: codeScaled, says: "scaled from 2 replicas to 0"},
		{name: "graph scaled to nothing", kind: dynamoGraphs, text: graph, after: `{"spec":{"components":[{"name":"a","replicas":0}]},"status":{"restart":{"observedID":"op_1-1","phase":"Completed"}}}`, code: codeScaled, says: "scaled from 3 replicas to 0"},
		{name: "graph", kind: dynamoGraphs, text: graph, after: `{"status":{"restart":{"observedID":"op_1-1","phase":"Completed"}}}`},
		{name: "scaled to one, which is new", kind: statefulSets, text: db, after: `{"spec":{"replicas":1},"status":{"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}}`, pods: []*corev1.Pod{dbPod(0, false, nil)}, words: "1 of 1 replicas updated, 1 ready"},
		{name: "it had nothing", kind: statefulSets, text: db, before: scaled, after: `{}`},
		{name: "groups, partition raised", kind: leaderWorkerSets, text: big, after: `{"spec":{"rolloutStrategy":{"rollingUpdateConfiguration":{"partition":3}}}}`, code: codePartition, says: "it keeps 3 of the 3"},
		{name: "groups, scaled to nothing", kind: leaderWorkerSets, text: big, after: `{"spec":{"replicas":0},"status":{"replicas":0,"readyReplicas":0}}`, code: codeScaled, says: "scaled from 3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := object(t, tt.kind, tt.text)
			if tt.before != "" {
				d = merged(t, d, []byte(tt.before))
			}
			d = merged(t, merged(t, restarted(t, d, by, noon), []byte(`{"metadata":{"generation":4}}`)), []byte(tt.after))
			s, now := scene{rollout: d, pods: tt.pods}, noon.Add(5*time.Second)
			v := s.judge(by, DefaultBounds, true, map[string]time.Time{}, now)
			if tt.words != "" && s.String() != tt.words {
				t.Errorf("it says %q, want %q", s, tt.words)
			}
			if tt.code == "" {
				if lowered := strings.Contains(tt.name, "lowered"); v.rolled == lowered || len(v.causes) > 0 && lowered {
					t.Errorf("rolled %v, causes %+v", v.rolled, v.causes)
				}
				return
			}
			if list := v.blockers(now); v.rolled || v.code != "" || len(list) != 1 || list[0].Code != tt.code || !strings.Contains(list[0].Detail, tt.says) || list[0].Since == nil || list[0].Rule == "" {
				t.Errorf("rolled %v code %q blockers %+v", v.rolled, v.code, list)
			}
			o := (&roller{Cluster: &cluster.Cluster{Now: func() time.Time { return now }}}).halted("interrupted", &s, v, nil)
			if !strings.Contains(o.Detail, tt.says) || !strings.Contains(o.Detail, tt.rest) || strings.Contains(o.Detail, restGoesOn) || o.ActionCode != operation.ActRestoreDependency {
				t.Errorf("at the deadline: %s; next action %s: %s", o.Detail, o.ActionCode, o.ActionText)
			}
			seen, taken := map[string]time.Time{}, noon.Add(time.Hour)
			for at, want := range map[time.Duration]string{0: "", 10*time.Minute - 1: "", 10 * time.Minute: tt.code} {
				s.judge(by, DefaultBounds, false, seen, taken)
				if v = s.judge(by, DefaultBounds, false, seen, taken.Add(at)); v.code != want || want != "" && !v.wake.IsZero() {
					t.Errorf("%s after it was taken away: %q %s", at, v.code, v.why)
				}
			}
		})
	}
}

// ending is what a roll says at its end of an object and its pods.
func ending(t *testing.T, d *rollout, objects ...runtime.Object) executor.Ending {
	t.Helper()
	c := &cluster.Cluster{Client: fake.NewClientset(objects...), Now: func() time.Time { return noon.Add(time.Minute) },
		Dynamic: dynamics(d.object)}
	a := &protocol.Assignment{Operation: by.Operation, Run: by.Run, Generation: by.Generation, TargetName: "deployment:" + d.name(), TargetUID: string(d.object.GetUID())}
	var end executor.Ending
	Roll(c).Observe(t.Context(), a, &end)
	return end
}

// TestEndingIsTrue: what is said at the end is what the pods are.
func TestEndingIsTrue(t *testing.T) {
	t.Parallel()
	set := func(before, after string) *rollout {
		d := merged(t, object(t, statefulSets, db), []byte(before))
		return merged(t, merged(t, restarted(t, d, by, noon), []byte(`{"metadata":{"generation":4}}`)), []byte(after))
	}
	const parted = `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}`
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "adopted", Namespace: "llm", UID: "rs-0", Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: "d-1", Controller: new(true)}}}}
	webPod := func(name string, old bool, owner types.UID) *corev1.Pod {
		p := newPod(name, old, isReady)
		p.UID, p.Labels["app"] = types.UID(name), "web"
		p.OwnerReferences[0].UID = owner
		if owner != "" {
			p.OwnerReferences[0].Name = "adopted"
		}
		return p
	}
	tests := []struct {
		name     string
		of       *rollout
		objects  []runtime.Object
		verified []string
		not      []string
		details  string
		residual string
	}{
		{"a partition keeps two", set(parted, `{"status":{"updatedReplicas":1}}`), []runtime.Object{dbPod(0, true, nil), dbPod(1, true, nil), dbPod(2, false, nil)},
			[]string{"1 pods restarted, 2 of before are kept by a partition of 2", "1 of 1 replicas updated", "3 of 3 replicas ready"},
			[]string{"a restart of the 2 pods that a partition of 2 keeps as they are: db-0, db-1"}, `{"restarted":1,"before":2,"kept":["db-0","db-1"],"partition":2}`, ""},
		{"a partition keeps two, and one stops", set(parted, `{"status":{"updatedReplicas":1}}`), []runtime.Object{dbPod(0, true, nil), dbPod(1, true, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: noon}, []string{"example.com/x"}
		}), dbPod(2, false, nil)}, []string{"1 of 1 replicas updated", "3 of 3 replicas ready"}, nil, `{"restarted":1,"before":2,"kept":["db-0"],"partition":2}`, "1 old pods have not gone"},
		{"the partition was raised", set(`{}`, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":3}}}}`), []runtime.Object{dbPod(0, true, nil), dbPod(1, true, nil), dbPod(2, true, nil)},
			[]string{"0 of 3 replicas updated", "3 of 3 replicas ready"}, nil, `{"restarted":0,"before":3}`, "the partition of llm/db was raised to 3"},
		{"all are new", set(`{}`, `{"status":{"updatedReplicas":3}}`), []runtime.Object{dbPod(0, false, nil), dbPod(1, false, nil), dbPod(2, false, nil)},
			[]string{"3 pods restarted", "the pods of before are gone", "3 of 3 replicas updated", "3 of 3 replicas ready"}, nil, `{"restarted":3,"before":0}`, ""},
		{"a rollout that surges", merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(`{"status":{"replicas":3,"updatedReplicas":1,"readyReplicas":3,"availableReplicas":3}}`)),
			[]runtime.Object{webPod("web-1", false, "")}, []string{"1 of 2 replicas updated", "3 replicas ready, 2 wanted"}, nil, `{"restarted":1,"before":0}`, "the rollout is incomplete"},
		{"a pod of an adopted ReplicaSet", restarted(t, object(t, deployments, web), by, noon), []runtime.Object{rs, webPod("web-1", false, ""), webPod("web-2", false, ""), webPod("x", true, "rs-0")},
			[]string{"2 of 2 replicas updated", "2 of 2 replicas ready"}, nil, `{"restarted":2,"before":1}`, "1 old pods have not gone"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			end := ending(t, tt.of, tt.objects...)
			want := append([]string{"the pod template carries this restart"}, tt.verified...)
			slices.Sort(want)
			slices.Sort(end.Verified)
			if diff := cmp.Diff(want, end.Verified); diff != "" {
				t.Errorf("verified: %s", diff)
			}
			if diff := cmp.Diff(append([]string{"application readiness"}, tt.not...), end.NotVerified); diff != "" {
				t.Errorf("not verified: %s", diff)
			}
			if string(end.Details) != tt.details || !json.Valid(end.Details) {
				t.Errorf("details %s, want %s", end.Details, tt.details)
			}
			if len(end.Residual) > 1 || tt.residual != "" != (len(end.Residual) == 1) || tt.residual != "" && !strings.Contains(end.Residual[0].Detail, tt.residual) {
				t.Errorf("residual %+v, want %q", end.Residual, tt.residual)
			}
		})
	}
}

// TestOwnedByUID: a pod is a Deployment's by the UIDs on the way, whatever its
// ReplicaSet is called.
func TestOwnedByUID(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 250)
	s := scene{rollout: object(t, deployments, strings.Replace(web, "name: web,", "name: "+long+",", 1)),
		sets: map[types.UID]types.UID{"own": "d-1", "adopted": "d-1", "another's": "d-2", "nobody's": ""}}
	for _, tt := range []struct {
		uid  types.UID
		name string
		want bool
	}{
		{"own", long[:242] + "-0123456789", true},
		{"adopted", "whatever", true},
		{"another's", long[:242] + "-0123456789", false},
		{"nobody's", long[:242] + "-0123456789", false},
		{"gone", long[:242] + "-0123456789", true}, // as the controller named it
		{"gone", long + "-0123456789", false},
		{"gone", "other-0123456789", false},
	} {
		p := newPod("p", true, nil)
		p.Labels["pod-template-hash"] = "0123456789"
		p.OwnerReferences[0].UID, p.OwnerReferences[0].Name = tt.uid, tt.name
		if got := s.owned(p); got != tt.want {
			t.Errorf("a pod of ReplicaSet %s (%s...): owned %v", tt.uid, tt.name[:8], got)
		}
	}
	if s.owned(&corev1.Pod{}) {
		t.Error("a pod of nobody is owned")
	}
}

// TestSilentController: one that takes no notice, or leaves something undone, is named
// after a while, with since when.
func TestSilentController(t *testing.T) {
	t.Parallel()
	later := func(d *rollout, patch string) *rollout {
		return merged(t, merged(t, d, []byte(`{"metadata":{"generation":4}}`)), []byte(patch))
	}
	unready := dbPod(1, true, func(p *corev1.Pod) { p.Status.Conditions = nil })
	gone := dbPod(2, true, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon.Add(time.Hour)} })
	for name, tt := range map[string]struct {
		of   *rollout
		pods []*corev1.Pod
		rule string // "": it is not silent
		says string
	}{
		"generation not observed": {of: later(restarted(t, object(t, statefulSets, db), by, noon), `{"status":{"observedGeneration":3}}`), pods: []*corev1.Pod{dbPod(0, true, nil)},
			rule: "status.observedGeneration", says: "the controller manager (kube-controller-manager) has not taken notice of the restart: its generation 4 (observed is 3)"},
		"Deployment not observed":        {of: later(restarted(t, object(t, deployments, web), by, noon), `{}`), rule: "status.observedGeneration", says: "kube-controller-manager"},
		"restart of a graph":             {of: later(restarted(t, object(t, dynamoGraphs, graph), by, noon), `{}`), rule: "status.restart", says: "the Dynamo operator has not taken notice of the restart"},
		"groups":                         {of: later(restarted(t, object(t, leaderWorkerSets, big), by, noon), `{"status":{"observedGeneration":3}}`), rule: "status.observedGeneration", says: "lws-controller-manager"},
		"nothing is done":                {of: later(restarted(t, object(t, statefulSets, db), by, noon), `{}`), pods: []*corev1.Pod{dbPod(0, true, nil), dbPod(1, true, nil)}, rule: "status", says: "no pod of llm/db is stopping or getting ready"},
		"a pod gets ready":               {of: later(restarted(t, object(t, statefulSets, db), by, noon), `{}`), pods: []*corev1.Pod{unready}},
		"a pod stops":                    {of: later(restarted(t, object(t, statefulSets, db), by, noon), `{}`), pods: []*corev1.Pod{gone}},
		"it waits for readiness to last": {of: later(restarted(t, object(t, statefulSets, db), by, noon), `{"spec":{"minReadySeconds":60}}`), pods: []*corev1.Pod{dbPod(0, true, nil)}},
		"rolled":                         {of: later(restarted(t, object(t, deployments, web), by, noon), `{"status":{"observedGeneration":4}}`), pods: []*corev1.Pod{newPod("a", false, isReady), newPod("b", false, isReady)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, seen := scene{rollout: tt.of, pods: tt.pods}, map[string]time.Time{}
			if v := s.judge(by, DefaultBounds, false, seen, noon); len(v.causes) > 0 || tt.rule != "" && !v.wake.Equal(noon.Add(10*time.Second)) {
				t.Errorf("at first: %+v, wakes at %s", v.causes, v.wake)
			}
			v := s.judge(by, DefaultBounds, false, seen, noon.Add(10*time.Second))
			list := v.blockers(noon)
			if tt.rule == "" {
				if slices.ContainsFunc(list, func(b protocol.Blocker) bool { return b.Code == codeSilent }) {
					t.Errorf("%+v", list)
				}
				return
			}
			if len(list) != 1 || list[0].Code != codeSilent || list[0].Rule != tt.rule || !strings.Contains(list[0].Detail, tt.says) || !list[0].Since.Equal(noon) {
				t.Errorf("after a while: %+v", list)
			}
			o := (&roller{Cluster: &cluster.Cluster{Now: time.Now}}).halted("interrupted", &s, v, nil)
			if !strings.Contains(o.Detail, "rolls on once its controller runs") || !strings.Contains(o.ActionText, "why the controller") {
				t.Errorf("at the deadline: %s; next action: %s", o.Detail, o.ActionText)
			}
		})
	}
}

// TestPodsInTheWay: where pods are made one after another, the one before that does
// not go or get ready is named.
func TestPodsInTheWay(t *testing.T) {
	t.Parallel()
	d := merged(t, restarted(t, object(t, statefulSets, db), by, noon), []byte(`{"metadata":{"generation":4}}`))
	going := func(left time.Duration, finalizers ...string) *corev1.Pod {
		return dbPod(2, true, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &metav1.Time{Time: noon.Add(time.Minute + left)}, new(int64(30)), finalizers
		})
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		code string
		says string
		fact bool // a cause, and no mere waiting
	}{
		"grace":       {going(10 * time.Second), codeTerminating, "is stopping, 10s of its grace period left", false},
		"overdue":     {going(-late), codeOverdue, "should have stopped", true},
		"finalizer":   {going(0, "example.com/x"), codeFinalizer, "held by finalizer example.com/x", true},
		"old crashes": {dbPod(0, true, func(p *corev1.Pod) { *p = *waitingIn(p, "CrashLoopBackOff") }), codeCrashLoop, "of pod db-0 crashes", true},
	} {
		s, now := scene{rollout: d, pods: []*corev1.Pod{tt.pod}}, noon.Add(time.Minute)
		v := s.judge(by, DefaultBounds, true, map[string]time.Time{}, now)
		if list := v.blockers(now); len(list) != 1 || list[0].Code != tt.code || !strings.Contains(list[0].Detail, tt.says) || (len(v.causes) > 0) != tt.fact || v.code != "" {
			t.Errorf("%s: code %q, blockers %+v, causes %+v", name, v.code, list, v.causes)
		}
		if v = s.judge(by, DefaultBounds, true, map[string]time.Time{v.causeKey(): noon}, now); tt.code == codeCrashLoop && v.code != "" {
			t.Errorf("%s: the restart may mend an old pod, and it failed: %s", name, v.why)
		}
	}
}

func (v verdict) causeKey() string {
	if len(v.causes) == 0 {
		return "\x00"
	}
	return v.causes[0].key()
}

func waitingIn(p *corev1.Pod, reason string) *corev1.Pod {
	p.Status.Conditions = nil
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	return p
}

// TestPreviewSaysWhatAPartitionKeeps: and what else a restart will not do.
func TestPreviewSaysWhatAPartitionKeeps(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec, code, rule, says string
	}{
		"partition":   {`{"replicas":3,"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"partition":2}}}`, "partition", "partition", "a partition of 2 keeps 2 of the 3 replicas of web/web as they are: 1 will restart"},
		"no replicas": {`{"replicas":0}`, "no_replicas", "spec.replicas", "nothing will restart"},
		"Recreate":    {`{"strategy":{"type":"Recreate"}}`, "recreate", "spec.updateStrategy", "stops all of its pods"},
	} {
		kind := map[bool]string{true: "Deployment", false: "StatefulSet"}[name == "Recreate"]
		s, c := serve(t, kind, nil)
		merge(s.object, map[string]any{"spec": parse(t, tt.spec), "status": map[string]any{"replicas": int64(3), "updatedReplicas": int64(3), "readyReplicas": int64(3), "availableReplicas": int64(3)}})
		if name == "Recreate" {
			merge(s.object, parse(t, `{"status":{"replicas":1,"updatedReplicas":1}}`))
		}
		list, err := Roll(c).Preview(within(t, 10*time.Second), protocol.PreviewRequest{ID: "pre_1", TargetName: "deployment:web/web", TargetUID: "u1", Payload: []byte(`{}`)})
		if err != nil || len(list) != 1 || list[0].Code != tt.code || list[0].Rule != tt.rule || !strings.Contains(list[0].Detail, tt.says) {
			t.Errorf("%s: preview %+v %v", name, list, err)
		}
		tk := rollTask()
		if o := Roll(c).Steps["preflight"].Execute(within(t, 10*time.Second), tk); o.Class != operation.OutcomeDone || !strings.Contains(o.Detail, tt.says) {
			t.Errorf("%s: preflight %+v", name, o)
		}
	}
}

// TestEndingOfARefusedRoll claims nothing that it did not do.
func TestEndingOfARefusedRoll(t *testing.T) {
	t.Parallel()
	for _, patch := range []string{`{"spec":{"updateStrategy":{"type":"OnDelete"}}}`, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":3}}}}`} {
		end := ending(t, merged(t, object(t, statefulSets, db), []byte(patch)))
		if len(end.Verified) > 0 || end.Message != "llm/db does not carry a restart of this operation, 3 of 3 replicas ready" || len(end.Observed.Deployments) != 1 {
			t.Errorf("%s: %q, verified %q", patch, end.Message, end.Verified)
		}
	}
}

// TestBarredSinceThePreflight: what no restart gets past is refused at the restart, too.
func TestBarredSinceThePreflight(t *testing.T) {
	t.Parallel()
	for code, patch := range map[string]string{
		"not_supported":   `{"spec":{"updateStrategy":{"type":"OnDelete"}}}`,
		"deployment_gone": `{"metadata":{"deletionTimestamp":"2026-05-04T12:00:00Z"}}`,
	} {
		s, c := serve(t, "StatefulSet", nil)
		merge(s.object, parse(t, patch))
		if o := Roll(c).Steps["restart"].Execute(within(t, 10*time.Second), rollTask()); o.Class != operation.OutcomePermanent || o.ErrorCode != code {
			t.Errorf("%s: %+v", code, o)
		}
	}
}
