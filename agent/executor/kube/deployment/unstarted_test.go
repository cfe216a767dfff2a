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
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// pending makes a pod that nobody has begun anything with since at, unless change says
// otherwise.
func pending(at time.Time, change func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		if change != nil {
			change(p)
			for i := range p.Status.Conditions {
				p.Status.Conditions[i].LastTransitionTime = metav1.NewTime(at)
			}
		}
	}
}

func scheduledBy(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulerName = name }
}

func kueued(p *corev1.Pod) {
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, Message: "Scheduling is blocked due to non-empty scheduling gates"}}
}

// placed makes a pod that a scheduler gave a node to.
func placed(base corev1.ConditionStatus, states ...corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = "gpu-1"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		if base != "" {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: base})
		}
		for _, s := range states {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: p.Spec.Containers[0].Name, State: s})
		}
	}
}

var creating = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}

// fetching makes a pod whose init container runs.
func fetching(p *corev1.Pod) {
	placed(corev1.ConditionTrue, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}})(p)
	p.Spec.InitContainers = []corev1.Container{{Name: "fetch"}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "fetch", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(noon.Add(time.Minute))}}}}
}

// TestPodsThatNobodyStarts are named when their scheduler or kubelet had its time, and an
// image that may be on its way is only what an end is explained by.
func TestPodsThatNobodyStarts(t *testing.T) {
	t.Parallel()
	at := noon.Add(2 * time.Second)
	for name, tt := range map[string]struct {
		how  func(*corev1.Pod)
		from time.Duration // after noon; 0: never a blocker
		code string
		rule string
		says string
	}{
		"no scheduler": {nil, 11 * time.Second, codeNoScheduler, "scheduler default-scheduler", "scheduler default-scheduler has said nothing of pod web-1 since 2026-05-04T12:00:01Z: it does not run, or is behind"},
		"another":      {scheduledBy("kai-scheduler"), 11 * time.Second, codeNoScheduler, "scheduler kai-scheduler", "scheduler kai-scheduler has said nothing of pod web-1"},
		"gated":        {kueued, 12 * time.Second, codeGated, "scheduling gate kueue.x-k8s.io/admission", "pod web-1 is held by its scheduling gate kueue.x-k8s.io/admission since 2026-05-04T12:00:02Z"},
		"two gates": {func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/a"}, {Name: "example.com/b"}}
		}, 11 * time.Second, codeGated, "scheduling gate example.com/a, example.com/b", "example.com/a, example.com/b"},
		"no kubelet":                    {placed(""), 32 * time.Second, codeNotStarted, "node gpu-1", "pod web-1 was placed on node gpu-1 at 2026-05-04T12:00:02Z, and its kubelet has begun nothing of it"},
		"no sandbox":                    {placed(corev1.ConditionFalse, creating), 62 * time.Second, codeNotStarted, "pod sandbox", "pod web-1 on node gpu-1 is without its sandbox, network or volumes since 2026-05-04T12:00:02Z"},
		"an image":                      {placed(corev1.ConditionTrue, creating), 0, codeNotStarted, "container server", "container server of pod web-1 on node gpu-1 is not started since 2026-05-04T12:00:02Z: its image may be on its way"},
		"an image, of an older kubelet": {placed("", creating), 0, codeNotStarted, "container server", "its image may be on its way"},
		"an init container":             {fetching, 0, codeNotStarted, "container fetch", "container fetch of pod web-1 on node gpu-1 runs since 2026-05-04T12:01:00Z, and the others begin when it has ended"},
		"a scheduler that failed": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulerError, Message: "plugin X: boom"}}
		}, time.Second, codeUnschedulable, "scheduler", "pod web-1 cannot be placed: plugin X: boom (SchedulerError)"},
		"no room": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available"}}
		}, time.Second, codeUnschedulable, "scheduler", "pod web-1 cannot be placed: 0/1 nodes are available"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scene{rollout: merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(`{"status":{"updatedReplicas":1}}`)), pods: []*corev1.Pod{newPod("web-1", false, pending(at, tt.how))}}
			told := func(after time.Duration) ([]protocol.Blocker, verdict) {
				v := s.judge(by, DefaultBounds, false, map[string]time.Time{}, noon.Add(after))
				return v.blockers(noon.Add(after)), v
			}
			if tt.from > time.Second {
				if list, v := told(tt.from - time.Second); len(list) > 0 || v.wake.After(noon.Add(tt.from)) || v.wake.IsZero() {
					t.Errorf("a second before: %+v, wakes at %s", list, v.wake)
				}
			}
			when := tt.from
			if when == 0 {
				when = 9 * time.Minute
			}
			list, v := told(when)
			if first, is := v.first(); !is || first.code != tt.code || first.rule != tt.rule || !strings.Contains(first.detail, tt.says) {
				t.Errorf("it would end with %+v", first)
			}
			if tt.from == 0 {
				if len(list) > 0 {
					t.Errorf("it tells %+v", list)
				}
				return
			}
			if len(list) != 1 || list[0].Code != tt.code || list[0].Rule != tt.rule || list[0].Resource != "pod/llm/web-1" || list[0].Since == nil || !strings.Contains(list[0].Detail, tt.says) {
				t.Errorf("it tells %+v", list)
			}
			if next := strings.Contains(list[0].Detail, "after 10m0s without progress the rollout counts as failed"); next != (tt.code != codeUnschedulable) {
				t.Errorf("what will happen: %s", list[0].Detail)
			}
			if !executor.Advised(tt.code) {
				t.Errorf("nobody says what to do about %s", tt.code)
			}
		})
	}
}

// TestGateThatWasTakenAway: its scheduler has its time from then on.
func TestGateThatWasTakenAway(t *testing.T) {
	t.Parallel()
	p, seen := newPod("web-1", false, pending(noon, kueued)), map[string]time.Time{}
	p.UID = "p-1"
	s := scene{rollout: merged(t, restarted(t, object(t, deployments, web), by, noon), []byte(`{"status":{"updatedReplicas":1}}`)), pods: []*corev1.Pod{p}}
	for _, at := range []struct {
		after time.Duration
		gone  bool
		want  string
	}{{time.Minute, false, codeGated}, {61 * time.Second, true, ""}, {70 * time.Second, true, ""}, {71 * time.Second, true, codeNoScheduler}} {
		if at.gone {
			p.Spec.SchedulingGates = nil
		}
		v, code := s.judge(by, DefaultBounds, false, seen, noon.Add(at.after)), ""
		if len(v.causes) > 0 {
			code = v.causes[0].code
		}
		if code != at.want {
			t.Errorf("after %s: %q, want %q", at.after, code, at.want)
		}
	}
}

// TestStepsTellWhatNobodyStarts when it is due, though nothing happens then, and at their
// end: the wait for the new pods, and the undo's for those of before.
func TestStepsTellWhatNobodyStarts(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."}}}}
	mount := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "web-1.1", Namespace: "llm"}, InvolvedObject: corev1.ObjectReference{UID: "p-1"}, Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: `secret "tls" not found`}
	for name, tt := range map[string]struct {
		how     func(*corev1.Pod)
		objects []runtime.Object
		shown   string
		says    []string
		act     string
	}{
		"no scheduler":        {scheduledBy("kai-scheduler"), nil, "10s scheduler_silent", []string{"scheduler kai-scheduler has said nothing of pod web-1"}, "find out why the scheduler"},
		"gated":               {kueued, nil, "10s scheduling_gated", []string{"scheduling gate kueue.x-k8s.io/admission"}, "scheduling gate that the detail names"},
		"a node that is lost": {placed(""), []runtime.Object{node}, "30s not_started", []string{"has begun nothing of it; node gpu-1 is not ready since", "NodeStatusUnknown: Kubelet stopped posting node status."}, "see on the node"},
		"a node that is gone": {placed(""), nil, "30s not_started", []string{"node gpu-1 is gone"}, "see on the node"},
		"a volume":            {placed(corev1.ConditionFalse, creating), []runtime.Object{mount}, "1m0s not_started", []string{`the last warning of it is FailedMount: secret "tls" not found`}, "see on the node"},
	} {
		for _, step := range []string{"wait", "undo"} {
			t.Run(name+", "+step, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					begun := time.Now()
					d := restarted(t, object(t, deployments, web), by, begun)
					if step == "undo" {
						d = undone(t, object(t, deployments, web))
					}
					d = merged(t, d, []byte(`{"status":{"observedGeneration":9,"updatedReplicas":1,"readyReplicas":0,"availableReplicas":0}}`))
					p := newPod("web-1", step == "undo", pending(begun, tt.how))
					p.UID, p.Labels["app"], p.CreationTimestamp = types.UID("p-1"), "web", metav1.NewTime(begun)
					var s clustertest.Server
					c := &cluster.Cluster{Client: fake.NewClientset(append([]runtime.Object{p}, tt.objects...)...), Dynamic: dynamics(d.object), Now: time.Now, Pulse: s.Pulse()}
					tk := rollTask()
					tk.Assignment = &protocol.Assignment{Operation: by.Operation, Run: by.Run, Generation: by.Generation, TargetName: "deployment:llm/web", TargetUID: "d-1"}
					var shown, details []string
					tk.Blocked = func(now []protocol.Blocker) {
						for _, b := range now {
							if text := b.Code; len(shown) == 0 || !strings.HasSuffix(shown[len(shown)-1], text) {
								shown, details = append(shown, fmt.Sprintf("%s %s", time.Since(begun), text)), append(details, b.Detail)
							}
						}
					}
					ctx, cancel := context.WithCancel(t.Context())
					over := make(chan executor.Outcome, 1)
					go func() { over <- Roll(c).Steps[step].Execute(ctx, tk) }()
					time.Sleep(2 * time.Minute)
					synctest.Wait()
					cancel()
					o := <-over
					if o.Class != operation.OutcomeWaiting || o.ErrorCode != "interrupted" || !strings.Contains(o.ActionText, tt.act) {
						t.Errorf("it ended with %+v", o)
					}
					if !slices.Equal(shown, []string{tt.shown}) {
						t.Fatalf("told %q %q", shown, details)
					}
					for _, says := range tt.says {
						if !strings.Contains(details[0], says) || !strings.Contains(o.Detail, says) {
							t.Errorf("told %q, ended with %q, want %q", details[0], o.Detail, says)
						}
					}
					if on := strings.Contains(details[0], "the undo waits for it until"); on != (step == "undo") {
						t.Errorf("what will happen: %s", details[0])
					}
				})
			})
		}
	}
}

// TestUndoThatIsIncompleteSaysWhy: what keeps the pods of before is named when the undo's
// time is over.
func TestUndoThatIsIncompleteSaysWhy(t *testing.T) {
	t.Parallel()
	p := newPod("web-1", true, pending(noon, kueued))
	s := scene{rollout: undone(t, object(t, deployments, web)), pods: []*corev1.Pod{p}}
	v := s.backward(by, DefaultBounds, noon.Add(3*time.Minute), map[string]time.Time{}, noon.Add(3*time.Minute))
	if o := s.takenBack().unready(s.rollout, 3*time.Minute, nil, v); o.ErrorCode != codeUndoIncomplete || !strings.Contains(o.Detail, "pod web-1 is held by its scheduling gate kueue.x-k8s.io/admission") {
		t.Errorf("%+v", o)
	}
}
