//go:build kubetest

package deployment

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// usher lets the site's pods go to a node, as a queue does that takes scheduling gates
// away and as a scheduler of another name places them, until leave is called.
func (s *site) usher() (leave func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	w, err := s.admin.CoreV1().Pods(s.ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			switch {
			case !ok || p.Spec.NodeName != "" || p.DeletionTimestamp != nil: // what was meant for a pod that changed comes with its change again
			case len(p.Spec.SchedulingGates) > 0:
				p.Spec.SchedulingGates = nil
				_, _ = s.admin.CoreV1().Pods(s.ns).Update(ctx, p, metav1.UpdateOptions{})
			case p.Spec.SchedulerName != corev1.DefaultSchedulerName:
				_ = s.admin.CoreV1().Pods(s.ns).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: s.node.Name}}, metav1.CreateOptions{})
			}
		}
	}()
	leave = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(leave)
	return leave
}

func gatedBy(t *corev1.PodTemplateSpec) {
	t.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
}

func placedBy(t *corev1.PodTemplateSpec) { t.Spec.SchedulerName = "kai-scheduler" }

// TestRollOfPodsThatNobodyPlaces: who does not is named while the roll waits, and it goes
// on once they do.
func TestRollOfPodsThatNobodyPlaces(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	for name, tt := range map[string]struct {
		kind       string
		change     func(*corev1.PodTemplateSpec)
		code, rule string
	}{
		"gates, Deployment":      {"Deployment", gatedBy, codeGated, "scheduling gate kueue.x-k8s.io/admission"},
		"gates, StatefulSet":     {"StatefulSet", gatedBy, codeGated, "scheduling gate kueue.x-k8s.io/admission"},
		"scheduler, Deployment":  {"Deployment", placedBy, codeNoScheduler, "scheduler kai-scheduler"},
		"scheduler, StatefulSet": {"StatefulSet", placedBy, codeNoScheduler, "scheduler kai-scheduler"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, r, "admin", cluster.Options{})
			s.hands()
			leave := s.usher()
			var uid string
			if tt.kind == "Deployment" {
				uid = string(s.deployment("web", 2, func(d *appsv1.Deployment) { oneByOne(d); tt.change(&d.Spec.Template) }).UID)
			} else {
				uid = string(s.statefulSet("web", 2, func(d *appsv1.StatefulSet) { tt.change(&d.Spec.Template) }).UID)
			}
			leave()
			l := s.lease(Roll(s.c), tt.kind, "web", uid, "never")
			s.must(l, "preflight", "restart")
			waited := make(chan executor.Outcome, 1)
			go func() { waited <- l.run(s.ctx(), "wait") }()
			b := s.await(l, func(b protocol.Blocker) bool { return b.Code == tt.code })
			if b.Rule != tt.rule || b.Since == nil || !strings.HasPrefix(b.Resource, "pod/"+s.ns+"/web-") || !strings.Contains(b.Detail, "counts as failed") {
				t.Errorf("blocker %+v", b)
			}
			s.usher()
			if o := <-waited; o.Class != operation.OutcomeDone {
				t.Errorf("wait: %+v", o)
			}
		})
	}
}

// TestUndoOfPodsThatNobodyPlaces: a roll in place that fails because nobody places its
// pods says so, and so does its undo, which meets the same.
func TestUndoOfPodsThatNobodyPlaces(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	for name, comes := range map[string]bool{"until its end": false, "for a while": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, r, "admin", cluster.Options{})
			s.hands()
			leave := s.usher()
			d := s.deployment("web", 2, func(d *appsv1.Deployment) {
				d.Spec.Strategy, d.Spec.ProgressDeadlineSeconds = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}, ptr.To[int32](15)
				gatedBy(&d.Spec.Template)
			})
			leave()
			l := s.lease(RollWithin(s.c, Bounds{Stall: time.Minute, Patience: time.Second, Undo: 20 * time.Second}), "Deployment", "web", string(d.UID), "on_failure")
			s.must(l, "preflight", "restart")
			if o := l.run(s.ctx(), "wait"); o.ErrorCode != codeGated || !strings.Contains(o.Detail, "kueue.x-k8s.io/admission") {
				t.Fatalf("wait: %+v", o)
			}
			l.note(func() { l.blocked = nil })
			undone := make(chan executor.Outcome, 1)
			go func() { undone <- l.run(s.ctx(), "undo") }()
			b := s.await(l, func(b protocol.Blocker) bool { return b.Code == codeGated })
			if b.Rule != "scheduling gate kueue.x-k8s.io/admission" || !strings.Contains(b.Detail, "the undo waits for it until") {
				t.Errorf("the undo told %+v", b)
			}
			if comes {
				s.usher()
				if o := <-undone; o.Class != operation.OutcomeDone || len(l.blockers()) > 0 {
					t.Errorf("undo: %+v, blockers %+v", o, l.blockers())
				}
				return
			}
			if o := <-undone; o.ErrorCode != codeUndoIncomplete || !strings.Contains(o.Detail, "is held by its scheduling gate kueue.x-k8s.io/admission") {
				t.Errorf("undo: %+v", o)
			}
		})
	}
}
