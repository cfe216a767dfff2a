package inventory

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodeop "github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

// What is kept of pods and budgets is enough for a drain's judge: it says the
// same of the whole objects and of those made anew.
func TestJudgedAsTheWholeObjects(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 0, 0, 0, time.UTC)
	yes, grace := true, int64(300)
	owned := func(o *corev1.Pod, kind string) *corev1.Pod {
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "x", UID: "x", Controller: &yes}}
		return o
	}
	ready := func(o *corev1.Pod) *corev1.Pod {
		o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return o
	}
	pods := map[string]*corev1.Pod{
		"bare": aPod("bare", "n", ""), "daemon": owned(aPod("daemon", "n", ""), "DaemonSet"), "mirror": aPod("mirror", "n", ""),
		"local": owned(aPod("local", "n", ""), "StatefulSet"), "final": owned(aPod("final", "n", ""), "Job"), "stopping": owned(aPod("stopping", "n", ""), "Job"),
		"guarded": ready(aPod("guarded", "n", "d")), "twice": ready(aPod("twice", "n", "d")), "unready": aPod("unready", "n", "d"),
		"tolerates": owned(aPod("tolerates", "n", ""), "Job"), "all": owned(aPod("all", "n", ""), "Job"), "pending": aPod("pending", "n", "d"), "free": ready(aPod("free", "n", "d")),
		"scratch": owned(aPod("scratch", "n", ""), "StatefulSet"), "part": owned(aPod("part", "n", ""), "StatefulSet"), "shm": owned(aPod("shm", "n", ""), "StatefulSet"),
	}
	pods["mirror"].Annotations[corev1.MirrorPodAnnotationKey] = "x"
	pods["local"].Spec.Volumes = []corev1.Volume{{Name: "a"}, {Name: "b", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	disk := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	}
	pods["scratch"].Spec.Volumes, pods["part"].Spec.Volumes = []corev1.Volume{disk("tmp"), disk("cache")}, []corev1.Volume{disk("tmp"), disk("books")}
	pods["shm"].Spec.Volumes = []corev1.Volume{{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	for _, name := range []string{"scratch", "part"} {
		pods[name].Annotations[nodeop.AnnotationScratch] = "tmp, cache"
	}
	pods["final"].Finalizers = []string{"example.com/x", "batch.kubernetes.io/job-tracking"}
	at := metav1.NewTime(now)
	pods["stopping"].DeletionTimestamp, pods["stopping"].DeletionGracePeriodSeconds = &at, &grace
	pods["tolerates"].Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	pods["all"].Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}, {Key: "x", Effect: corev1.TaintEffectNoExecute}}
	pods["pending"].Status.Phase = corev1.PodPending
	for _, name := range []string{"guarded", "twice", "unready", "pending"} {
		pods[name].Labels["app"] = name
	}
	budgets := []*policyv1.PodDisruptionBudget{aBudget("a", map[string]string{"app": "guarded"}, 0), aBudget("b", map[string]string{"app": "twice"}, 1),
		aBudget("c", map[string]string{"app": "twice"}, 1), aBudget("d", map[string]string{"app": "unready"}, 0), aBudget("e", map[string]string{"app": "pending"}, 0)}
	budgets[0].Status.DesiredHealthy, budgets[0].Status.CurrentHealthy, budgets[0].Status.ExpectedPods = 3, 3, 3
	budgets[3].Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: "no scale"}}
	budgets[4].Status.ObservedGeneration = 0

	var asked []*corev1.Pod
	var guards []*policyv1.PodDisruptionBudget
	var got []protocol.Blocker
	w := newWorld(Options{JudgeEvery: time.Second, LocalData: nodeop.HasLocalData, Judge: func(n *corev1.Node, p []*corev1.Pod, b []*policyv1.PodDisruptionBudget) []protocol.Blocker {
		asked, guards = p, b
		got = nodeop.Blockers(func() time.Time { return now })(n, p, b)
		return got
	}}).start(t)
	lost := aNode("n", "u", 0)
	setReady(lost, corev1.ConditionUnknown)
	w.put(t, w.nodes, lost.DeepCopy())
	for _, o := range pods {
		w.put(t, w.pods, o)
	}
	for _, o := range budgets {
		w.put(t, w.budgets, o)
	}
	w.judge()
	if len(asked) != len(pods) || len(guards) != len(budgets) {
		t.Fatalf("asked of %d pods and %d budgets", len(asked), len(guards))
	}
	var whole []*corev1.Pod
	for _, p := range asked {
		whole = append(whole, pods[p.Name])
	}
	want := nodeop.Blockers(func() time.Time { return now })(lost, whole, budgets)
	if diff := cmp.Diff(codes(want), codes(got)); diff != "" {
		t.Error(diff)
	}
	if len(want) < 9 {
		t.Errorf("the judge found only %v", codes(want))
	}
	told := w.snapshot().Nodes[0].Blockers
	if diff := cmp.Diff(codes(want), codes(told)); diff != "" {
		t.Error(diff)
	}
	for _, b := range told {
		if b.Since == nil {
			t.Errorf("since when %s stands is not told", b.Code)
		}
	}
}

func codes(in []protocol.Blocker) []string {
	var out []string
	for _, b := range in {
		out = append(out, fmt.Sprintf("%s %s %s: %s", b.Code, b.Resource, b.Rule, b.Detail))
	}
	return out
}

// A node is judged when something of it changed, and at most once in a while.
func TestJudgedWhenSomethingChanged(t *testing.T) {
	t.Parallel()
	judged := 0
	w := newWorld(Options{JudgeEvery: 3 * time.Second, Judge: func(_ *corev1.Node, p []*corev1.Pod, _ []*policyv1.PodDisruptionBudget) []protocol.Blocker {
		judged++
		var out []protocol.Blocker
		for _, x := range p {
			out = append(out, protocol.Blocker{Code: "unmanaged_pod", Resource: "pod/" + x.Name})
		}
		return out
	}}).start(t)
	expect := func(what string, n int) {
		t.Helper()
		w.judge()
		if judged != n {
			t.Errorf("%s: judged %d times, want %d", what, judged, n)
		}
	}
	w.put(t, w.nodes, aNode("n", "u", 0))
	expect("a new node", 1)
	for i := range 5 {
		w.put(t, w.pods, aPod("p"+strconv.Itoa(i), "n", ""))
	}
	expect("too soon", 1)
	w.hands.pass(3 * time.Second)
	expect("its pods changed", 2)
	d := w.told()
	first := d.Objects.Nodes[0].Blockers
	if len(first) != 5 {
		t.Errorf("blockers %v", first)
	}
	w.hands.pass(time.Hour)
	expect("nothing changed", 2)
	w.put(t, w.budgets, aBudget("b", map[string]string{"other": "x"}, 0))
	expect("another's budget", 2)
	w.put(t, w.pods, aPod("p0", "n", "")) // the same
	expect("nothing that counts", 2)
	w.put(t, w.budgets, aBudget("b", map[string]string{}, 0))
	expect("its budget", 3)
	if got := w.told(); len(got.Objects.Nodes) != 0 {
		t.Errorf("the verdict is the same, and the node was told again")
	}
	w.remove(t, w.pods, aPod("p4", "n", ""))
	w.hands.pass(time.Hour)
	expect("a pod went", 4)
	now := w.told().Objects.Nodes[0].Blockers
	if len(now) != 4 || !now[0].Since.Equal(*first[0].Since) {
		t.Errorf("blockers %v: what stands since before does so still", now)
	}
	gone := aNode("n", "u", 0)
	setReady(gone, corev1.ConditionFalse)
	w.put(t, w.nodes, gone)
	w.hands.pass(3 * time.Second)
	expect("not ready", 5)
	w.hands.pass(judgeAgain)
	expect("not ready for longer", 6)
}
