//go:build kubetest

package deployment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func unstructuredOf(t *testing.T, o runtime.Object) *unstructured.Unstructured {
	t.Helper()
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("the watch brought %T", o)
	}
	return u
}

func TestRollRestartsWhatHasNotChanged(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{Version: "1.2.3"})
	s.hands()
	tests := []struct {
		kind string
		uid  func() types.UID
	}{
		{"Deployment", func() types.UID { return s.deployment("web", 3, nil).UID }},
		{"StatefulSet", func() types.UID { return s.statefulSet("db", 2, nil).UID }},
	}
	for i, tt := range tests {
		app := []string{"web", "db"}[i]
		uid := tt.uid()
		before := s.pods(app)
		l := s.lease(Roll(s.c), tt.kind, app, string(uid), "never")
		s.must(l, "preflight", "restart")
		if f := l.probe(s.ctx(), "restart"); f.Phase != operation.StepSucceeded {
			t.Errorf("%s: the probe of the restart finds %+v", tt.kind, f)
		}
		s.must(l, "wait", "confirm")
		after := s.pods(app)
		if len(after) != len(before) {
			t.Errorf("%s: %d pods, there were %d", tt.kind, len(after), len(before))
		}
		for name, uid := range after {
			if before[name] == uid {
				t.Errorf("%s: pod %s was not restarted", tt.kind, name)
			}
		}
		if all := fmt.Sprintf("%d/%d replicas", len(before), len(before)); !has(l.progress, "0/") || !has(l.progress, all) {
			t.Errorf("%s: progress %v", tt.kind, l.progress)
		}
		if len(l.commands) != 1 || l.commands[0] != "restart "+s.ns+"/"+app+": ok" {
			t.Errorf("%s: commands %v", tt.kind, l.commands)
		}
		end := executor.Ending{}
		l.typ.Observe(s.ctx(), l.Assignment, &end)
		if !has(end.Verified, "carries this restart") || !has(end.Verified, "the pods of before are gone") || len(end.Residual) > 0 ||
			len(end.Observed.Deployments) != 1 || end.Observed.Deployments[0].Image != "registry.example/server:1" || !has(end.NotVerified, "application readiness") {
			t.Errorf("%s: ending %+v", tt.kind, end)
		}
		list, err := s.admin.CoreV1().Events(s.ns).List(s.ctx(), metav1.ListOptions{LabelSelector: cluster.LabelOperation + "=" + l.Operation})
		if err != nil || len(list.Items) != 1 || !strings.Contains(list.Items[0].Message, l.Operation) || list.Items[0].InvolvedObject.UID != uid {
			t.Errorf("%s: events of the operation: %v %+v", tt.kind, err, list.Items)
		}
		again := l.next(Roll(s.c), 2) // a retry restarts it once more
		s.must(again, "preflight", "restart", "wait", "confirm")
		if len(again.commands) != 1 {
			t.Errorf("%s: commands of the retry %v", tt.kind, again.commands)
		}
	}
}

func TestRollOfNothing(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	d := s.deployment("web", 0, nil)
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
	if o := l.run(s.ctx(), "preflight"); o.Class != operation.OutcomeDone || !strings.Contains(o.Detail, "nothing will restart") {
		t.Errorf("preflight: %+v", o)
	}
	s.must(l, "restart", "wait", "confirm")
	other := s.lease(Roll(s.c), "Deployment", "web", "another-uid", "never")
	for _, step := range []string{"preflight", "restart", "wait", "confirm"} {
		if o := other.run(s.ctx(), step); o.ErrorCode != "deployment_gone" || o.Class != operation.OutcomePermanent {
			t.Errorf("%s of an object with another UID: %+v", step, o)
		}
	}
}

func TestRollFailsWithItsFirstCause(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	tests := []struct {
		name   string
		how    func(*corev1.Pod) *corev1.PodStatus
		code   string
		detail []string
	}{
		{"no kubelet", untouched, codeNotStarted, []string{"no progress for its whole deadline", "its kubelet has begun nothing of it"}},
		{"image", stuckIn("ImagePullBackOff", `Back-off pulling image "registry.example/server:1": not found`), codeImagePull, []string{"registry.example/server:1", "not found"}},
		{"crash", crashing, codeCrashLoop, []string{"container server", "exit code 139", "CUDA error: out of memory"}},
		{"config", stuckIn("CreateContainerConfigError", `secret "hub" not found`), codeConfig, []string{`secret "hub" not found`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, r, "admin", cluster.Options{})
			h := s.hands()
			d := s.deployment("web", 2, func(d *appsv1.Deployment) {
				d.Spec.ProgressDeadlineSeconds, d.Spec.MinReadySeconds = ptr.To[int32](3), 0
			})
			h.set(tt.how)
			l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
			s.must(l, "preflight", "restart")
			o := l.run(s.ctx(), "wait")
			if o.Class != operation.OutcomePermanent || o.ErrorCode != tt.code {
				t.Fatalf("wait: %+v", o)
			}
			for _, part := range tt.detail {
				if !strings.Contains(o.Detail, part) {
					t.Errorf("the detail does not name %q: %s", part, o.Detail)
				}
			}
			if tt.code != codeNotStarted { // not due by then
				b := s.await(l, func(b protocol.Blocker) bool { return b.Code == tt.code })
				if !strings.HasPrefix(b.Resource, "pod/"+s.ns+"/web-") || b.Since == nil || b.Rule == "" {
					t.Errorf("blocker %+v", b)
				}
			}
			if f := l.probe(s.ctx(), "wait"); f.Phase != operation.StepFailed || f.ErrorCode != tt.code {
				t.Errorf("the probe finds %+v", f)
			}
			end := executor.Ending{}
			l.typ.Observe(s.ctx(), l.Assignment, &end)
			if len(end.Residual) != 1 || end.Residual[0].Step != "wait" {
				t.Errorf("ending %+v", end)
			}
			if len(l.commands) != 1 {
				t.Errorf("commands %v", l.commands)
			}
		})
	}
}

func TestRollNamesTheQuota(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.deployment("web", 2, func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1))}}
	})
	db := s.statefulSet("db", 1, nil)
	s.quota(3)
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	b := s.await(l, func(b protocol.Blocker) bool { return b.Code == codeQuota })
	if b.Rule != "quota pods" || b.Since == nil || !strings.Contains(b.Detail, "exceeded quota: pods") {
		t.Errorf("blocker %+v", b)
	}
	s.quota(4) // makes room, and the rollout comes through
	if o := <-waited; o.Class != operation.OutcomeDone {
		t.Errorf("wait: %+v", o)
	}
	// A StatefulSet has no condition for it: its events tell.
	s.quota(2)
	l = s.lease(RollWithin(s.c, Bounds{Stall: 6 * time.Second}), "StatefulSet", "db", string(db.UID), "never")
	s.must(l, "preflight", "restart")
	if o := l.run(s.ctx(), "wait"); o.ErrorCode != codeQuota || !strings.Contains(o.Detail, "exceeded quota: pods") {
		t.Errorf("wait of the StatefulSet: %+v", o)
	}
}

func (s *site) quota(pods int64) {
	s.t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "pods", Namespace: s.ns},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI)}}}
	_, err := s.admin.CoreV1().ResourceQuotas(s.ns).Create(s.ctx(), q, metav1.CreateOptions{})
	if err != nil {
		_, err = s.admin.CoreV1().ResourceQuotas(s.ns).Update(s.ctx(), q, metav1.UpdateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	w, err := s.admin.CoreV1().ResourceQuotas(s.ns).Watch(s.ctx(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		q, ok := e.Object.(*corev1.ResourceQuota)
		if hard := q.Status.Hard[corev1.ResourcePods]; ok && hard.Value() == pods {
			return
		}
	}
}
