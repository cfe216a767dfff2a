package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func withHold(p *corev1.Pod) {
	p.Finalizers = []string{"example.com/hold"}
	p.Spec.NodeName = "n"
}

// ago is a pod that was told to stop so long ago, with 10 s of grace.
func ago(d time.Duration) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(10*time.Second - d)))
		p.DeletionGracePeriodSeconds = ptr.To[int64](10)
	}
}

func theNode(unschedulable bool, conditions ...corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}, Status: corev1.NodeStatus{Conditions: conditions}}
}

// stuckTask is a task with a minute to go that keeps its blockers.
func stuckTask(a *protocol.Assignment, blockers *[]protocol.Blocker) *executor.Task {
	a.NodeName = "n"
	return &executor.Task{Assignment: a, Attempt: 1, Progress: func(int, int, string, string) {}, Note: func(string, string) {},
		Blocked: func(b []protocol.Blocker) { *blockers = b }, Remaining: func() time.Duration { return time.Minute },
		Begin: func(string, string) (string, func(string, string)) { return "cmd_1", func(string, string) {} },
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) { return ctx, func() {}, nil }}
}

// A pod that was told to stop is there until it is gone, whatever phase its kubelet
// gave it: a drain does not succeed with it.
func TestStoppedPodIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, ph := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded, corev1.PodRunning} {
		t.Run(string(ph), func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset(theNode(true), aPod("stuck", withHold, ago(time.Hour), phase(ph)), aPod("done", withHold, phase(corev1.PodSucceeded)))
			permit(client)
			e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
			var told []protocol.Blocker
			task := stuckTask(lease("op_1"), &told)
			b, err := e.previewDrain(t.Context(), protocol.PreviewRequest{Type: "node.drain", TargetName: "node:n"})
			if err != nil || len(b) != 1 || b[0].Code != "finalizer" || b[0].Resource != "pod/ns/stuck" {
				t.Errorf("the dry run shows %+v, %v", b, err)
			}
			s := e.session(task.Assignment, true)
			if o := e.preflight(t.Context(), task, s); o.Detail != "1 pods to evict from node n" {
				t.Errorf("preflight: %+v", o)
			}
			if f := e.probeGone(t.Context(), task); f.Phase != operation.StepPending {
				t.Errorf("probed: %+v", f)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			keep := task.Blocked
			task.Blocked = func(b []protocol.Blocker) {
				if keep(b); len(b) > 0 {
					cancel()
				}
			}
			if o := e.waitGone(ctx, task, s); o.Class != operation.OutcomeWaiting || o.ErrorCode != "finalizer" || len(told) == 0 {
				t.Fatalf("with the pod still there: %+v, told %v", o, told)
			}
			task.Assignment.Steps = []protocol.Step{{PlanStep: operation.PlanStep{ID: "stp_1", Name: "wait"}, Phase: operation.StepFailed}}
			var end executor.Ending
			e.observeDrain(t.Context(), task.Assignment, &end)
			if len(end.Residual) != 1 || !strings.Contains(end.Residual[0].Detail, "ns/stuck (its finalizer example.com/hold is not removed; deleted by somebody else)") {
				t.Errorf("left behind: %+v", end.Residual)
			}
			s.close()
			if err := client.CoreV1().Pods("ns").Delete(t.Context(), "stuck", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if o := e.waitGone(t.Context(), task, e.session(lease("op_2"), true)); o.Class != operation.OutcomeDone {
				t.Errorf("once it is gone: %+v", o)
			}
		})
	}
}

// Pods outlive their node: they are named, and so is what there is to do.
func TestNodeGoneWithPodsStillThere(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(aPod("stuck", withHold, ago(time.Hour), phase(corev1.PodFailed)), aPod("left", func(p *corev1.Pod) { p.Spec.NodeName = "n" }))
	e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
	var told []protocol.Blocker
	task := stuckTask(lease("op_1"), &told)
	s := e.session(task.Assignment, true)
	s.node, s.nodeAt, s.plan = theNode(true), time.Now().Add(-time.Hour), map[types.UID]*planned{}
	for _, name := range []string{"stuck", "left", "gone"} {
		s.plan[types.UID("uid-"+name)] = &planned{uid: types.UID("uid-" + name), name: "ns/" + name, isGone: name == "gone"}
	}
	s.plan["uid-stuck"].pod = aPod("stuck", withHold, ago(time.Hour))
	o := e.drive(t.Context(), task, s, payload{}, true)
	if o.ErrorCode != "node_gone" || o.Class != operation.OutcomePermanent || !strings.Contains(o.ActionText, "finalizer") || o.ActionCode != operation.ActRestoreDependency {
		t.Errorf("the drain ended with %+v", o)
	}
	for _, name := range []string{"evict", "wait"} {
		task.Assignment.Steps = append(task.Assignment.Steps, protocol.Step{PlanStep: operation.PlanStep{ID: "stp_" + name, Name: name}, Phase: operation.StepFailed})
	}
	heir := newDrainer(e.c, Options{})
	for who, e := range map[string]*drainer{"the one that drained": e, "an heir": heir} {
		var end executor.Ending
		e.observeDrain(t.Context(), task.Assignment, &end)
		said := ""
		for _, r := range end.Residual {
			said += r.Detail + "\n"
		}
		if len(end.Residual) != 2 || !strings.Contains(said, "pod ns/left") || !strings.Contains(said, "pod ns/stuck (its node is gone, and its finalizer example.com/hold is not removed)") {
			t.Errorf("%s observed %+v", who, end)
		}
	}
}

// A pod that was told to go past its rules and stays was not removed.
func TestForcedPodThatStays(t *testing.T) {
	t.Parallel()
	pod := aPod("stuck", withHold, ago(time.Hour))
	pod.DeletionGracePeriodSeconds = ptr.To[int64](0)
	p := &planned{uid: pod.UID, name: key(pod), pod: pod, stage: withoutGrace, forced: "deleted without grace"}
	d := &details{}
	d.add(p, pod, &reading{node: theNode(true), at: time.Now()}, false)
	if o := d.Pods[0]; o.Forced || d.Counts.Forced != 0 || o.Outcome != outcomeStopping || !strings.Contains(o.Detail, "its finalizer example.com/hold is not removed, though it was deleted without grace") {
		t.Errorf("%+v, %+v", o, d.Counts)
	}
	e := newDrainer(&cluster.Cluster{Now: time.Now}, Options{})
	s := &session{plan: map[types.UID]*planned{pod.UID: p}}
	if r := e.reckon(&executor.Task{Assignment: lease("op_1")}, s, theNode(true), &survey{verdicts: payload{}.judge([]*corev1.Pod{pod}, nil)}); r.forced != 0 || r.total != 1 || r.gone != 0 {
		t.Errorf("reckoned %+v", r)
	}
	if r := e.reckon(&executor.Task{Assignment: lease("op_1")}, s, theNode(true), &survey{}); r.forced != 1 || r.gone != 1 {
		t.Errorf("reckoned %+v of a pod that is gone", r)
	}
}

// A pod that was deleted without grace is gone from the API server; what becomes of
// its processes nobody has seen.
func TestGraceTakenIsNotVerified(t *testing.T) {
	t.Parallel()
	var told []protocol.Blocker
	a := stuckTask(lease("op_1"), &told).Assignment
	e := newDrainer(&cluster.Cluster{Client: fake.NewClientset(theNode(true)), Now: time.Now}, Options{})
	for stage, want := range []bool{false, false, true} {
		s := e.session(a, true)
		s.plan = map[types.UID]*planned{"uid-a": {uid: "uid-a", name: "ns/a", isGone: true, stage: stage, forced: "deleted"}}
		var end executor.Ending
		e.observeDrain(t.Context(), a, &end)
		if got := strings.Contains(strings.Join(end.NotVerified, "\n"), "that the processes of 1 pods ended"); got != want {
			t.Errorf("stage %d: not verified %q", stage, end.NotVerified)
		}
	}
}

// The plan outlasts the cordon that it was kept beside, for the lease that lifts it.
func TestPlanOutlastsRestore(t *testing.T) {
	t.Parallel()
	node := theNode(true)
	node.Annotations = map[string]string{cluster.AnnotationCordon: `{"owner":"opsplane","operation":"op_1"}`,
		annotationDrain: `{"operation":"op_1","run":1,"planned":"2026-01-01T00:00:00Z","pods":{"uid-a":"ns/a"}}`}
	client := fake.NewClientset(node, aPod("a", func(p *corev1.Pod) { p.Spec.NodeName = "n" }))
	e := newDrainer(&cluster.Cluster{Client: client, Log: slog.New(slog.DiscardHandler), Now: time.Now}, Options{})
	var told []protocol.Blocker
	task := stuckTask(lease("op_1"), &told)
	a := task.Assignment
	a.Steps = []protocol.Step{{PlanStep: operation.PlanStep{Name: "preflight", Required: true}, Phase: operation.StepSucceeded}, {PlanStep: operation.PlanStep{Name: "evict", Required: true}, Phase: operation.StepFailed}}
	task.Step = protocol.Step{PlanStep: operation.PlanStep{Name: "restore", Cleanup: true}}
	_ = e.timed(e.restore)(t.Context(), task) // this cluster bounds calls by 0 s: the patch is fenced off
	if _, err := client.CoreV1().Nodes().Update(t.Context(), theNode(false), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for who, tc := range map[string]struct {
		e    *drainer
		want string
	}{"the one that lifted it": {e, "0 of 1 planned pods gone"}, "another": {newDrainer(e.c, Options{}), "nobody knows any more which evictions were planned"}} {
		var end executor.Ending
		if tc.e.observeDrain(t.Context(), a, &end); !strings.Contains(end.Message, tc.want) {
			t.Errorf("%s observed %q", who, end.Message)
		}
	}
}

// What a drain does in its force window to a pod that is stopping.
func TestEscalation(t *testing.T) {
	t.Parallel()
	just := metav1.NewTime(time.Now().Add(-time.Second))
	ready := func(s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: s, LastTransitionTime: just, Message: "container runtime is down"}
	}
	long := func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(time.Hour))) }
	for _, tc := range []struct {
		name  string
		node  corev1.NodeCondition
		pod   *corev1.Pod
		left  time.Duration
		stage int
		code  string
	}{
		{"grace that outlasts the deadline", ready(corev1.ConditionTrue), aPod("a", long), 20 * time.Second, withGrace, "terminating"},
		{"near the deadline", ready(corev1.ConditionTrue), aPod("a", ago(time.Hour)), 5 * time.Second, withoutGrace, "stopping"},
		{"nobody can see it stop", ready(corev1.ConditionUnknown), aPod("a", long), 20 * time.Second, withoutGrace, "node_unreachable"},
		{"not ready: grace first", ready(corev1.ConditionFalse), aPod("a", long), 20 * time.Second, withGrace, "terminating"},
		{"not ready, and grace is over", ready(corev1.ConditionFalse), aPod("a", ago(time.Hour)), 20 * time.Second, 0, "node_not_ready"},
		{"not ready, near the deadline", ready(corev1.ConditionFalse), aPod("a", ago(time.Hour)), 5 * time.Second, withoutGrace, "node_not_ready"},
		{"only a finalizer keeps it", ready(corev1.ConditionTrue), aPod("a", withHold, ago(time.Hour), func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](0) }), 5 * time.Second, 0, "finalizer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := &drive{drainer: newDrainer(&cluster.Cluster{Now: time.Now}, Options{}), gone: true, s: &session{node: theNode(true, tc.node)},
				p: payload{DrainPayload: operation.DrainPayload{OnDeadline: onDeadlineForce, ForceWindowSeconds: 30, GracePeriodSeconds: -1}}}
			l, stage := &look{force: map[*planned]int{}, next: heartbeat}, 0
			d.lookStopping(l, &planned{name: "ns/a", pod: tc.pod}, true, tc.left, func(_ *planned, s int) { stage = s })
			if stage != tc.stage || l.first() == nil || l.first().code != tc.code {
				t.Errorf("stage %d, held by %+v", stage, l.first())
			}
		})
	}
}

// Where the lease holds, a mark that is newer is somebody else's.
func TestNewerMark(t *testing.T) {
	t.Parallel()
	n := theNode(true)
	n.Annotations = map[string]string{cluster.AnnotationMark: "op_1/1/999999"}
	e := newDrainer(&cluster.Cluster{Client: fake.NewClientset(n), Now: time.Now}, Options{})
	var told []protocol.Blocker
	over := func(context.Context) (context.Context, context.CancelFunc, error) {
		return nil, nil, executor.ErrFenced
	}
	for _, tc := range []struct {
		attempt int
		fenced  bool
		class   string
		code    string
	}{{1, false, operation.OutcomeTransient, "fenced"}, {outdatedTries, false, operation.OutcomePermanent, "mark_newer"}, {outdatedTries, true, operation.OutcomeTransient, "fenced"}} {
		task := stuckTask(lease("op_1"), &told)
		task.Attempt = tc.attempt
		if tc.fenced {
			task.Fence = over
		}
		o := e.cordon(t.Context(), task, &placing{})
		if o.Class != tc.class || o.ErrorCode != tc.code || (tc.code == "mark_newer") != strings.Contains(o.ActionText, cluster.AnnotationMark) {
			t.Errorf("attempt %d, fenced %t: %+v", tc.attempt, tc.fenced, o)
		}
	}
}

// Namespaces come and go: what watched the endpoints of one goes when nobody asks.
func TestEndpointsOfNamespacesThatWent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newDrainer(&cluster.Cluster{Now: time.Now}, Options{})
		open := func() *follow.Feed[*discoveryv1.EndpointSlice] {
			return follow.New(follow.Source{Read: func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
				List: func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) {
					return nil, "", errors.New("away")
				}}, takeSlice)
		}
		watched := func(ns string) *follow.Shared[*discoveryv1.EndpointSlice] {
			s := e.endpointsOf(ns)
			s.Open = open
			s.Acquire()
			return s
		}
		used, left := watched("used"), watched("left")
		left.Release()
		time.Sleep(time.Minute)
		e.endpointsOf("new")
		if e.slices["used"] != used || e.slices["left"] != nil || len(e.slices) != 2 {
			t.Errorf("kept %v", e.slices)
		}
		used.Release()
		time.Sleep(time.Minute)
	})
}

// Whoever writes a node's conditions need not say since when they hold: then nobody does.
func TestAilingSinceNobodyKnowsWhen(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tt := range map[string]struct {
		status corev1.ConditionStatus
		at     time.Time
		why    string
	}{
		"unreachable":             {corev1.ConditionUnknown, at, "node n is unreachable since 2026-01-02T03:04:05Z, so nobody can see its pods stop"},
		"unreachable, no time":    {corev1.ConditionUnknown, time.Time{}, "node n is unreachable, so nobody can see its pods stop"},
		"not ready":               {corev1.ConditionFalse, at, "node n is not ready since 2026-01-02T03:04:05Z, so its pods may be slow to stop: down"},
		"not ready, without time": {corev1.ConditionFalse, time.Time{}, "node n is not ready, so its pods may be slow to stop: down"},
		"ready":                   {corev1.ConditionTrue, at, ""},
	} {
		n := theNode(true, corev1.NodeCondition{Type: corev1.NodeReady, Status: tt.status, LastTransitionTime: metav1.NewTime(tt.at), Message: "down"})
		if _, why := ailing(n); why != tt.why {
			t.Errorf("%s: %s", name, why)
		}
		if since := readySince(n); (since == nil) != tt.at.IsZero() || since != nil && !since.Equal(tt.at) {
			t.Errorf("%s: since %v", name, since)
		}
	}
}

// A node that is not ready is named at once, since when and in its own words: by the dry
// run, and while pods are waited for, whose grace is over and whose is not.
func TestNotReadyIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * linger)
		at := time.Now().Add(-time.Second)
		down := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(at), Reason: "KubeletNotReady", Message: "container runtime is down"}
		client := fake.NewClientset(theNode(true, down), aPod("a", ago(40*time.Second)), aPod("b", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(at.Add(time.Hour))) }))
		permit(client)
		e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
		says := "node n is not ready since " + at.UTC().Format(time.RFC3339) + ", so its pods may be slow to stop: container runtime is down"
		b, err := e.previewDrain(t.Context(), protocol.PreviewRequest{Type: "node.drain", TargetName: "node:n"})
		if err != nil || len(b) != 1 || b[0].Code != "node_not_ready" || b[0].Resource != "node/n" || b[0].Detail != says {
			t.Errorf("the dry run shows %+v, %v", b, err)
		}
		var told []protocol.Blocker
		task := stuckTask(lease("op_1"), &told)
		end := time.Now().Add(10 * time.Second)
		task.Assignment.Deadline, task.Remaining = end, func() time.Duration { return time.Until(end) }
		ctx, cancel := context.WithDeadline(t.Context(), end)
		defer cancel()
		drain := e.session(task.Assignment, true)
		defer drain.close()
		o := e.waitGone(ctx, task, drain)
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != "node_not_ready" || !strings.Contains(o.Detail, "container runtime is down") {
			t.Errorf("%+v", o)
		}
		said := map[string]protocol.Blocker{}
		for _, b := range told {
			said[b.Resource] = b
		}
		for resource, want := range map[string]string{"node/n": "node_not_ready", "pod/ns/a": "node_not_ready", "pod/ns/b": "terminating"} {
			b := said[resource]
			if b.Code != want || want == "node_not_ready" && (b.Since == nil || !b.Since.Equal(at) || !strings.Contains(b.Detail, "container runtime is down")) {
				t.Errorf("of %s it is told %+v", resource, b)
			}
		}
	})
}
