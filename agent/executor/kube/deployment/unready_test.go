package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

var health = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8080)}}}

// runs makes of a pod one whose container runs since a while after noon and is not
// ready.
func runs(after time.Duration, change func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Spec.Containers[0].ReadinessProbe = health.DeepCopy()
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(noon.Add(after))}}}}
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(noon)},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(noon), Reason: "ContainersNotReady", Message: "containers with unready status: [server]"}}
		if change != nil {
			change(p)
		}
	}
}

// gets makes a pod ready so long after its container ran.
func gets(ready time.Duration) func(*corev1.Pod) {
	return runs(0, func(p *corev1.Pod) {
		for i := range p.Status.Conditions {
			p.Status.Conditions[i] = corev1.PodCondition{Type: p.Status.Conditions[i].Type, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(ready))}
		}
		p.Status.ContainerStatuses[0].Ready = true
	})
}

// gated makes a pod whose containers are ready since a while after noon.
func gated(after time.Duration, conditions ...corev1.PodCondition) func(*corev1.Pod) {
	return runs(0, func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb.example.com/tg"}}
		p.Status.ContainerStatuses[0].Ready = true
		p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionTrue, metav1.NewTime(noon.Add(after))
		p.Status.Conditions[1].Reason, p.Status.Conditions[1].Message = "ReadinessGatesNotReady", `corresponding condition of pod readiness gate "lb.example.com/tg" does not exist.`
		p.Status.Conditions = append(p.Status.Conditions, conditions...)
	})
}

// TestPodsThatRunAndAreNotReady are named when they had their time to start.
func TestPodsThatRunAndAreNotReady(t *testing.T) {
	t.Parallel()
	starting := func(started bool) func(*corev1.Pod) {
		return runs(time.Second, func(p *corev1.Pod) {
			p.Spec.Containers[0].StartupProbe = health.DeepCopy()
			p.Spec.Containers[0].StartupProbe.PeriodSeconds, p.Spec.Containers[0].StartupProbe.FailureThreshold = 10, 6
			p.Status.ContainerStatuses[0].Started = &started
		})
	}
	sidecar := runs(time.Second, func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "proxy", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}, {Name: "fetch"}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "proxy", State: p.Status.ContainerStatuses[0].State}, {Name: "fetch", State: p.Status.ContainerStatuses[0].State}}
		p.Status.ContainerStatuses[0].Ready = true
	})
	for name, tt := range map[string]struct {
		pods []*corev1.Pod
		from time.Duration // after noon; 0: never
		rule string
		says string
	}{
		"readiness probe": {pods: []*corev1.Pod{newPod("web-1", false, runs(time.Second, nil))}, from: 31 * time.Second, rule: "container server",
			says: "container server of pod web-1 runs and is not ready since 2026-05-04T12:00:01Z: its readiness probe (HTTP GET :8080/health) does not succeed (Ready is False, ContainersNotReady: containers with unready status: [server]); after 10m0s without progress the rollout counts as failed; at the operation's deadline the cluster rolls on by itself"},
		"with an initial delay": {pods: []*corev1.Pod{newPod("web-1", false, runs(time.Second, func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe.InitialDelaySeconds = 40 }))},
			from: 71 * time.Second, rule: "container server", says: "its readiness probe"},
		"startup probe":         {pods: []*corev1.Pod{newPod("web-1", false, starting(false))}, from: 91 * time.Second, rule: "container server", says: "its startup probe (HTTP GET :8080/health) has not succeeded yet"},
		"startup probe is past": {pods: []*corev1.Pod{newPod("web-1", false, starting(true))}, from: 31 * time.Second, rule: "container server", says: "its readiness probe"},
		"two":                   {pods: []*corev1.Pod{newPod("web-2", false, runs(2*time.Second, nil)), newPod("web-1", false, runs(time.Second, nil))}, from: 32 * time.Second, rule: "container server", says: "pod web-1 runs and is not ready since 2026-05-04T12:00:01Z"},
		"sidecar":               {pods: []*corev1.Pod{newPod("web-1", false, sidecar)}, from: 31 * time.Second, rule: "container proxy", says: "it has no readiness probe"},
		"gate without a condition": {pods: []*corev1.Pod{newPod("web-1", false, gated(5*time.Second))}, from: 35 * time.Second, rule: "readiness gate lb.example.com/tg",
			says: "the containers of pod web-1 are ready and it is not since 2026-05-04T12:00:05Z, by its readiness gate lb.example.com/tg: nobody has set that condition"},
		"gate that is false": {pods: []*corev1.Pod{newPod("web-1", false, gated(5*time.Second, corev1.PodCondition{Type: "lb.example.com/tg", Status: corev1.ConditionFalse, Reason: "Unhealthy", Message: "target is draining"}))},
			from: 35 * time.Second, rule: "readiness gate lb.example.com/tg", says: "it is False, Unhealthy: target is draining"},
		"node that is lost": {pods: []*corev1.Pod{newPod("web-1", false, gated(5*time.Second, corev1.PodCondition{Type: "lb.example.com/tg", Status: corev1.ConditionTrue}))}, from: 35 * time.Second, rule: "pod", says: "Ready is False"},
		"pods of before took a minute": {pods: []*corev1.Pod{newPod("web-0", true, gets(time.Minute)), newPod("web-9", true, gets(time.Hour)), newPod("web-1", false, runs(time.Second, nil))},
			from: 91 * time.Second, rule: "container server", says: "pod web-1"},
		"new ones took a minute":        {pods: []*corev1.Pod{newPod("web-0", true, gets(time.Second)), newPod("web-2", false, gets(time.Minute)), newPod("web-1", false, runs(time.Second, nil))}, from: 91 * time.Second, rule: "container server", says: "pod web-1"},
		"pods of before took for ever":  {pods: []*corev1.Pod{newPod("web-0", true, gets(24*time.Hour)), newPod("web-1", false, runs(time.Second, nil))}, from: 5*time.Minute + time.Second, rule: "container server", says: "pod web-1"},
		"crashes between":               {pods: []*corev1.Pod{newPod("web-1", false, runs(time.Second, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = corev1.ContainerState{} }))}},
		"ready":                         {pods: []*corev1.Pod{newPod("web-1", false, gets(time.Second))}},
		"of before":                     {pods: []*corev1.Pod{newPod("web-1", true, runs(time.Second, nil))}},
		"an init container that runs":   {pods: []*corev1.Pod{newPod("web-1", false, func(p *corev1.Pod) { sidecar(p); p.Status.InitContainerStatuses = p.Status.InitContainerStatuses[1:] })}},
		"stopping, not ready any more":  {pods: []*corev1.Pod{newPod("web-1", false, runs(time.Second, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon.Add(time.Hour)} }))}},
		"a container that is not there": {pods: []*corev1.Pod{newPod("web-1", false, runs(time.Second, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Name = "other" }))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scene{rollout: merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(`{"status":{"updatedReplicas":1}}`)), pods: tt.pods}
			told := func(after time.Duration) (list []protocol.Blocker, wake time.Time) {
				v := s.judge(by, DefaultBounds, false, map[string]time.Time{}, noon.Add(after))
				list = slices.DeleteFunc(v.blockers(noon.Add(after)), func(b protocol.Blocker) bool { return b.Code != codeNotReady })
				return list, v.wake
			}
			if tt.from == 0 {
				if list, _ := told(9 * time.Minute); len(list) > 0 {
					t.Errorf("it tells %+v", list)
				}
				return
			}
			n := 0
			for _, p := range tt.pods {
				if !ready(p) {
					n++
				}
			}
			if list, wake := told(tt.from - time.Second); n == 1 && len(list) > 0 || wake.After(noon.Add(tt.from)) {
				t.Errorf("a second before: %+v, wakes at %s", list, wake)
			}
			list, _ := told(tt.from)
			if len(list) != 1 || list[0].Rule != tt.rule || list[0].Resource != "pod/llm/web-1" || list[0].Since == nil || !strings.Contains(list[0].Detail, tt.says) || strings.Contains(list[0].Detail, "(2 pods)") != (n == 2) {
				t.Errorf("it tells %+v", list)
			}
		})
	}
}

// TestStartupProbeThatTookLong: the time to get ready is counted from when it passed, and
// from nothing where that was not seen.
func TestStartupProbeThatTookLong(t *testing.T) {
	t.Parallel()
	p := newPod("web-1", false, runs(0, func(p *corev1.Pod) {
		p.Spec.Containers[0].StartupProbe = &corev1.Probe{PeriodSeconds: 10, FailureThreshold: 180}
	}))
	s := scene{rollout: merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(`{"status":{"updatedReplicas":1}}`)), pods: []*corev1.Pod{p}}
	seen := map[string]time.Time{}
	for _, at := range []struct {
		after   time.Duration
		started bool
		told    bool
	}{{time.Second, false, false}, {299 * time.Second, false, false}, {300 * time.Second, true, false}, {329 * time.Second, true, false}, {330 * time.Second, true, true}, {331 * time.Second, true, true}} {
		p.Status.ContainerStatuses[0].Started = &at.started
		v := s.judge(by, DefaultBounds, false, seen, noon.Add(at.after))
		if told := len(v.causes) > 0; told != at.told {
			t.Errorf("after %s: %+v", at.after, v.causes)
		}
	}
	if v := s.judge(by, DefaultBounds, false, map[string]time.Time{}, noon.Add(300*time.Second)); len(v.causes) != 1 {
		t.Errorf("whoever did not see it: %+v", v.causes)
	}
}

// TestNotReadyIsTheCauseAtTheEnd where nothing else is known, also before it is one; and
// it gives no rollout up that goes on.
func TestNotReadyIsTheCauseAtTheEnd(t *testing.T) {
	t.Parallel()
	const exceeded = `{"status":{"updatedReplicas":1,"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"timed out"}]}}`
	late, early := newPod("web-1", false, runs(time.Second, nil)), newPod("web-1", false, runs(5*time.Second, nil))
	broken, made := newPod("web-3", false, waiting("ImagePullBackOff", "no such image")), newPod("web-2", false, nil)
	made.CreationTimestamp = metav1.NewTime(noon.Add(25 * time.Second))
	for name, tt := range map[string]struct {
		patch string
		pods  []*corev1.Pod
		code  string
		left  time.Duration // until the deadline; 0: no undo
		text  string
	}{
		"failed":                  {patch: exceeded, pods: []*corev1.Pod{late}, code: codeNotReady, text: "container server of pod web-1 runs and is not ready since"},
		"failed before it is due": {patch: exceeded, pods: []*corev1.Pod{early}, code: codeNotReady, text: "container server of pod web-1 runs and is not ready since"},
		"failed by an image":      {patch: exceeded, pods: []*corev1.Pod{late, broken}, code: codeImagePull, text: "no such image"},
		"given up":                {pods: []*corev1.Pod{late}, left: 10 * time.Second, code: codeNotReady, text: "deadline is 10s away"},
		"it goes on":              {pods: []*corev1.Pod{late, made}, left: 10 * time.Second},
		"it may yet":              {pods: []*corev1.Pod{late}, left: time.Hour},
	} {
		patch := tt.patch
		if patch == "" {
			patch = `{"status":{"updatedReplicas":1}}`
		}
		s, now := scene{rollout: merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(patch)), pods: tt.pods}, noon.Add(31*time.Second)
		v := s.judge(by, DefaultBounds, tt.left > 0, map[string]time.Time{}, now)
		if tt.left > 0 {
			v.giveUp(s, DefaultBounds, tt.left, now)
		}
		if v.code != tt.code || !strings.Contains(v.why, tt.text) || strings.Contains(v.why, "counts as failed") {
			t.Errorf("%s: %q %s", name, v.code, v.why)
		}
		if o := failed(v.code, v.why); tt.code == codeNotReady && !strings.Contains(o.ActionText, "container or readiness gate") {
			t.Errorf("%s: next action %s", name, o.ActionText)
		}
		r := &roller{Cluster: &cluster.Cluster{Now: func() time.Time { return now }}}
		if o := r.halted("interrupted", &s, v, nil); name == "it may yet" && (!strings.Contains(o.Detail, "pod web-1 runs and is not ready since") || !strings.Contains(o.ActionText, "container or readiness gate")) {
			t.Errorf("%s, at the deadline: %s; next action: %s", name, o.Detail, o.ActionText)
		}
	}
}

// TestWaitTellsWhatIsNotReady when it is due, though nothing happens then.
func TestWaitTellsWhatIsNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		d := merged(t, restarted(t, object(t, deployments, web), by, begun), []byte(`{"status":{"updatedReplicas":1}}`))
		p := newPod("web-1", false, runs(0, func(p *corev1.Pod) {
			for i := range p.Status.Conditions {
				p.Status.Conditions[i].LastTransitionTime = metav1.NewTime(begun)
			}
			p.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(begun)
		}))
		p.UID, p.Labels["app"], p.CreationTimestamp = types.UID("p-1"), "web", metav1.NewTime(begun)
		var s clustertest.Server
		c := &cluster.Cluster{Client: fake.NewClientset([]runtime.Object{p}...), Dynamic: dynamics(d.object), Now: time.Now, Pulse: s.Pulse()}
		tk := rollTask()
		tk.Assignment = &protocol.Assignment{Operation: by.Operation, Run: by.Run, Generation: by.Generation, TargetName: "deployment:llm/web", TargetUID: "d-1"}
		var shown []string
		tk.Blocked = func(now []protocol.Blocker) {
			for _, b := range now {
				shown = append(shown, fmt.Sprintf("%s %s", time.Since(begun), b.Code))
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan executor.Outcome, 1)
		go func() { over <- Roll(c).Steps["wait"].Execute(ctx, tk) }()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		cancel()
		if o := <-over; o.Class != operation.OutcomeWaiting || o.ErrorCode != "interrupted" || !strings.Contains(o.Detail, "pod web-1 runs and is not ready since") {
			t.Errorf("it ended with %+v", o)
		}
		if len(shown) != 1 || shown[0] != "30s not_ready" {
			t.Errorf("told %q", shown)
		}
	})
}
