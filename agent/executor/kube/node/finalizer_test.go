package node

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// tracked is a pod that its Job has not counted yet.
func tracked(p *corev1.Pod) {
	p.Finalizers = []string{batchv1.JobTrackingFinalizer}
	p.Spec.NodeName = "n"
}

// endedAgo is a pod whose container ended so long ago.
func endedAgo(d time.Duration) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-d))}}}}
	}
}

// released is a pod that its kubelet deleted without grace so long ago, since it has
// stopped; the API server sets the time anew (1.37), or leaves that of before.
func released(ago time.Duration) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(time.Now().Add(-ago))), ptr.To[int64](0)
	}
}

// What keeps a pod of a Job that stopped is its finalizer, and the controller that does
// not remove it, not its kubelet.
func TestWhoKeepsPodsOfJobs(t *testing.T) {
	t.Parallel()
	unreachable := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute))}
	says := "the Job controller (of the controller manager) has not removed its finalizer batch.kubernetes.io/job-tracking"
	for name, tt := range map[string]struct {
		pod        []func(p *corev1.Pod)
		node       []corev1.NodeCondition
		code, says string
		since      time.Duration // so long ago
	}{
		"it ended":                      {pod: []func(p *corev1.Pod){ago(time.Minute), endedAgo(55 * time.Second)}, code: "finalizer", says: says + ", though it ended at ", since: 55 * time.Second},
		"it ended before it was told":   {pod: []func(p *corev1.Pod){ago(time.Minute), endedAgo(time.Hour)}, code: "finalizer", says: says + ", though it ended at ", since: time.Minute},
		"it ended, nobody tells when":   {pod: []func(p *corev1.Pod){ago(time.Minute), phase(corev1.PodSucceeded)}, code: "finalizer", says: says, since: time.Minute},
		"in its grace":                  {pod: []func(p *corev1.Pod){ago(5 * time.Second), endedAgo(time.Second)}, code: "terminating", since: 5 * time.Second},
		"in its grace, and ended":       {pod: []func(p *corev1.Pod){ago(9 * time.Second), endedAgo(7 * time.Second)}, code: "finalizer", says: says + ", though it ended at ", since: 7 * time.Second},
		"it ended just now":             {pod: []func(p *corev1.Pod){ago(9 * time.Second), endedAgo(time.Second), released(0)}, code: "stopping", since: 0},
		"it was released long ago":      {pod: []func(p *corev1.Pod){ago(time.Minute), endedAgo(55 * time.Second), released(40 * time.Second)}, code: "finalizer", says: says, since: 40 * time.Second},
		"it was released at its end":    {pod: []func(p *corev1.Pod){endedAgo(55 * time.Second), released(time.Minute)}, code: "finalizer", says: says, since: 55 * time.Second},
		"it ended, and was told then":   {pod: []func(p *corev1.Pod){endedAgo(time.Hour), released(time.Minute)}, code: "finalizer", says: says + ", though it ended at ", since: time.Minute},
		"another one, and it ended":     {pod: []func(p *corev1.Pod){ago(9 * time.Second), endedAgo(3 * time.Second), withHold}, code: "finalizer", says: "its finalizer example.com/hold is not removed", since: 3 * time.Second},
		"another one, and it runs on":   {pod: []func(p *corev1.Pod){ago(time.Minute), withHold}, code: "finalizer", says: "its finalizer example.com/hold is not removed", since: 50 * time.Second},
		"released, and nobody tells":    {pod: []func(p *corev1.Pod){ago(time.Minute), released(2 * time.Second)}, code: "stopping", since: 2 * time.Second},
		"it runs on":                    {pod: []func(p *corev1.Pod){ago(time.Minute)}, code: "stopping", says: "its kubelet has not said that it stopped", since: 50 * time.Second},
		"it has no grace":               {pod: []func(p *corev1.Pod){ago(time.Minute), released(50 * time.Second)}, code: "finalizer", says: says, since: 50 * time.Second},
		"no grace, and nobody there":    {pod: []func(p *corev1.Pod){ago(time.Minute), released(50 * time.Second)}, node: []corev1.NodeCondition{unreachable}, code: "finalizer", says: says, since: 50 * time.Second},
		"ended, but nobody there":       {pod: []func(p *corev1.Pod){ago(time.Minute), endedAgo(55 * time.Second)}, node: []corev1.NodeCondition{unreachable}, code: "node_unreachable", since: time.Minute},
		"another finalizer has its say": {pod: []func(p *corev1.Pod){ago(time.Minute), endedAgo(55 * time.Second), func(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, "example.com/hold") }}, code: "finalizer", says: "its finalizer example.com/hold is not removed, and " + says, since: 55 * time.Second},
	} {
		pod := aPod("a", append([]func(p *corev1.Pod){tracked}, tt.pod...)...)
		s := &session{node: theNode(true, tt.node...)}
		code, rule, why := staying(s, &planned{pod: pod}, time.Now())
		since := time.Since(*stayingSince(s, &planned{pod: pod}, code))
		if code != tt.code || !strings.Contains(why, tt.says) || (since-tt.since).Abs() > 2*time.Second {
			t.Errorf("%s: %s, %s: %s, since %s", name, code, rule, why, since)
		}
	}
}

// A drain of a Job's pod while the controller manager is away says so: before, meanwhile,
// at its end, and of what a force window does to it.
func TestDrainWithoutJobController(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{"stop": "", "force": `{"on_deadline":"force","force_window_seconds":30}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * linger)
				client := fake.NewClientset(theNode(true), aPod("a", tracked, ago(time.Minute), endedAgo(45*time.Second), released(44*time.Second)))
				permit(client)
				e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
				var told []protocol.Blocker
				task := stuckTask(lease("op_1"), &told)
				task.Assignment.Payload = []byte(payload)
				b, err := e.previewDrain(t.Context(), protocol.PreviewRequest{Type: "node.drain", TargetName: "node:n"})
				if err != nil || len(b) != 1 || b[0].Code != "finalizer" || b[0].Rule != batchv1.JobTrackingFinalizer || !strings.Contains(b[0].Detail, "Job controller") {
					t.Errorf("the dry run shows %+v, %v", b, err)
				}
				end := time.Now().Add(20 * time.Second)
				task.Assignment.Deadline, task.Remaining = end, func() time.Duration { return time.Until(end) }
				ctx, cancel := context.WithDeadline(t.Context(), end)
				defer cancel()
				o := e.waitGone(ctx, task, e.session(task.Assignment, true))
				if o.Class != operation.OutcomeWaiting || o.ErrorCode != "finalizer" || !strings.Contains(o.Detail, "waiting for pod ns/a: the Job controller") || !strings.Contains(o.ActionText, "controller manager") || o.ActionCode != operation.ActRestoreDependency {
					t.Errorf("%+v", o)
				}
				if len(told) != 1 || told[0].Rule != batchv1.JobTrackingFinalizer || told[0].Since == nil || time.Since(*told[0].Since) != 64*time.Second ||
					strings.Contains(told[0].Detail, "outlasts") != (name == "force") {
					t.Errorf("told %+v", told)
				}
				for _, a := range client.Actions() {
					if a.GetVerb() == "delete" {
						t.Errorf("asked for %v, which changes nothing", a)
					}
				}
				task.Assignment.Steps = []protocol.Step{{PlanStep: operation.PlanStep{ID: "stp_1", Name: "wait"}, Phase: operation.StepFailed}}
				var ending executor.Ending
				e.observeDrain(t.Context(), task.Assignment, &ending)
				if len(ending.Residual) != 1 || !strings.Contains(ending.Residual[0].Detail, "ns/a (the Job controller (of the controller manager) has not removed its finalizer batch.kubernetes.io/job-tracking, though it ended at ") {
					t.Errorf("left behind: %+v", ending.Residual)
				}
			})
		})
	}
}

// A pod that has run to its end is not told to go where it would stand in the way then.
func TestFinishedPodThatNobodyCounts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pod  []func(p *corev1.Pod)
		want bool
	}{
		"counted":                   {[]func(p *corev1.Pod){endedAgo(time.Hour)}, false},
		"just ended":                {[]func(p *corev1.Pod){tracked, endedAgo(time.Second)}, false},
		"nobody tells when":         {[]func(p *corev1.Pod){tracked, phase(corev1.PodSucceeded)}, false},
		"its controller is away":    {[]func(p *corev1.Pod){tracked, endedAgo(time.Minute)}, true},
		"of a finalizer that stays": {[]func(p *corev1.Pod){withHold, endedAgo(time.Second)}, true},
	} {
		if got := wouldStay(aPod("a", tt.pod...), time.Now()); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
