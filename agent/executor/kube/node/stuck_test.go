package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
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
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if o := e.waitGone(ctx, task, s); o.Class != operation.OutcomeWaiting || o.ErrorCode != "finalizer" || len(told) == 0 {
				t.Fatalf("with the pod still there: %+v, told %v", o, told)
			}
			task.Assignment.Steps = []protocol.Step{{PlanStep: operation.PlanStep{ID: "stp_1", Name: "wait"}, Phase: operation.StepFailed}}
			var end executor.Ending
			e.observeDrain(t.Context(), task.Assignment, &end)
			if len(end.Residual) != 1 || !strings.Contains(end.Residual[0].Detail, "ns/stuck (its finalizer example.com/hold is not removed)") {
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
	p := &planned{uid: pod.UID, name: key(pod), pod: pod, stage: withoutGrace, forced: "deleted without grace"}
	d := &details{}
	d.add(nil, p, pod, &reading{node: theNode(true), at: time.Now()})
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

// What a drain does in its force window to a pod that is stopping.
func TestEscalation(t *testing.T) {
	t.Parallel()
	hour := metav1.NewTime(time.Now().Add(-time.Hour))
	ready := func(s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: s, LastTransitionTime: hour, Message: "container runtime is down"}
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

// An API server that hangs leaves its watches silent: a drain that waits asks it, and
// blames no kubelet for what nobody could pass on.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var hangs atomic.Bool
		hangs.Store(true)
		client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			if !hangs.Load() {
				return false, nil, nil // 404: an answer
			}
			time.Sleep(pulseFor)
			return true, nil, context.DeadlineExceeded
		})
		pod := aPod("slow", ago(9*time.Second))
		s := &session{node: theNode(true), pods: newFeed(source{}, takePod), plan: map[types.UID]*planned{pod.UID: {uid: pod.UID, name: key(pod)}}}
		s.pods.seed([]runtime.Object{pod}, "1")
		begun := time.Now()
		d := &drive{drainer: newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{}), s: s, gone: true, begun: begun.Add(time.Hour), serving: map[string]*serving{},
			t: &executor.Task{Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Hour }}}
		defer time.Sleep(time.Minute) // what it watched lingers
		defer d.close()
		var l *look
		var codes []string
		for time.Since(begun) < 30*time.Second { // as drive does
			var stop *executor.Outcome
			if l, stop = d.look(t.Context()); stop != nil {
				t.Fatal(stop)
			}
			if h := l.first(); h != nil && (len(codes) == 0 || codes[len(codes)-1] != h.code) {
				codes = append(codes, h.code)
				if h.code == "api_unavailable" && (time.Since(begun) > 10*time.Second || !strings.Contains(d.message(l), "does not answer since "+begun.Add(silentFor).UTC().Format(time.RFC3339))) {
					t.Errorf("after %s: %s", time.Since(begun), d.message(l))
				}
			}
			d.rest(t.Context(), l)
		}
		if !slices.Equal(codes, []string{"terminating", "stopping", "api_unavailable"}) && !slices.Equal(codes, []string{"terminating", "api_unavailable"}) || l.first().code != "api_unavailable" {
			t.Errorf("held by %q, at last %+v", codes, l.first())
		}
		d.t.Cancelled = nil
		if d.halted = "interrupted"; d.ended(l).ErrorCode != "api_unavailable" {
			t.Errorf("at the deadline: %+v", d.ended(l))
		}
		hangs.Store(false)
		time.Sleep(2 * silentFor)
		synctest.Wait()
		_, _ = d.look(t.Context())
		synctest.Wait()
		if l, _ = d.look(t.Context()); l.away || l.first().code != "stopping" {
			t.Errorf("it answers again, and the drain is held by %+v", l.first())
		}
	})
}

// A drain that waits for volumes says so as well.
func TestServerHangsWhileVolumesAreDetached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
			time.Sleep(pulseFor)
			return true, nil, context.DeadlineExceeded
		})
		e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
		src := attachmentsOf(e.c)
		src.list = func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) {
			return []runtime.Object{&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n"}}}, "1", nil
		}
		e.attachments.open = func() *feed[*storagev1.VolumeAttachment] { return newFeed(src, takeAttachment) }
		defer time.Sleep(2 * linger)
		var told []protocol.Blocker
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		o := e.awaitDetach(ctx, stuckTask(lease("op_1"), &told), &session{node: theNode(true)}, payload{}, executor.Outcome{Detail: "2 of 2 pods gone"})
		if o.ErrorCode != "api_unavailable" || len(told) != 2 || told[0].Code != "api_unavailable" || told[1].Code != "volume_attached" {
			t.Errorf("%+v, told %+v", o, told)
		}
	})
}

// What a watch brings is an answer as well, and a client's own limit is none.
func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		p.hear(time.Now())
		answer := errors.New("client rate limiter Wait returned an error: context deadline exceeded")
		feel := func(after time.Duration) error {
			time.Sleep(after)
			_, _, _, _ = p.feel(func(context.Context) error { return answer })
			synctest.Wait()
			_, err, _, _ := p.feel(func(context.Context) error { t.Error("asked at once again"); return nil })
			return err
		}
		if err := feel(silentFor); err != nil {
			t.Errorf("limited: %v", err)
		}
		answer = errors.New("no route to host")
		if err := feel(silentFor); err == nil {
			t.Error("nobody said that it is away")
		}
		f := newFeed(source{}, takePod)
		time.Sleep(time.Second)
		if err := f.apply(watch.Event{Type: watch.Bookmark, Object: versioned("", "7")}); err != nil {
			t.Fatal(err)
		}
		p.hear(f.lastHeard())
		if _, err, _, _ := p.feel(nil); err != nil {
			t.Errorf("after a bookmark: %v", err)
		}
	})
}

// Namespaces come and go: what watched the endpoints of one goes when nobody asks.
func TestEndpointsOfNamespacesThatWent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newDrainer(&cluster.Cluster{Now: time.Now}, Options{})
		open := func() *feed[*discoveryv1.EndpointSlice] {
			return newFeed(source{read: func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
				list: func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) {
					return nil, "", errors.New("away")
				}}, takeSlice)
		}
		watched := func(ns string) *shared[*discoveryv1.EndpointSlice] {
			s := e.endpointsOf(ns)
			s.open = open
			s.acquire()
			return s
		}
		used, left := watched("used"), watched("left")
		left.release()
		time.Sleep(time.Minute)
		e.endpointsOf("new")
		if e.slices["used"] != used || e.slices["left"] != nil || len(e.slices) != 2 {
			t.Errorf("kept %v", e.slices)
		}
		used.release()
		time.Sleep(time.Minute)
	})
}
