//go:build kubetest

package deployment

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func parted(n int32) func(*appsv1.StatefulSet) {
	return func(d *appsv1.StatefulSet) {
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &n}
	}
}

// A roll of a StatefulSet with a partition restarts what it lets go, and says what it
// keeps.
func TestRollWithAPartition(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.statefulSet("db", 3, parted(2))
	before := s.pods("db")
	l := s.lease(Roll(s.c), "StatefulSet", "db", string(d.UID), "never")
	if list, err := l.typ.Preview(s.ctx(), protocol.PreviewRequest{ID: "pre_1", Type: l.Type, TargetName: l.TargetName, TargetUID: l.TargetUID, Payload: l.Payload}); err != nil || len(list) != 1 || list[0].Code != "partition" {
		t.Errorf("preview %+v %v", list, err)
	}
	s.must(l, "preflight", "restart", "wait", "confirm")
	var kept []string
	for name, uid := range s.pods("db") {
		if before[name] == uid {
			kept = append(kept, name)
		}
	}
	var end executor.Ending
	l.typ.Observe(s.ctx(), l.Assignment, &end)
	if len(kept) != 2 || has(end.Verified, "gone") || !has(end.Verified, "1 pods restarted, 2 of before are kept by a partition of 2") || !has(end.NotVerified, "db-0, db-1") || len(end.Residual) > 0 {
		t.Errorf("kept %v, ending %+v", kept, end)
	}
}

// Whoever takes the goal of a roll away in the middle is named, and it does not
// succeed; when the goal is back it does.
func TestGoalTakenAwayMidRoll(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	for name, tt := range map[string]struct {
		resource, away, back string
		code                 string
	}{
		"partition":  {"statefulsets", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":3}}}}`, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`, codePartition},
		"on delete":  {"statefulsets", `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`, `{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`, codeOnDelete},
		"scaled":     {"statefulsets", `{"spec":{"replicas":0}}`, `{"spec":{"replicas":2}}`, codeScaled},
		"deployment": {"deployments", `{"spec":{"replicas":0}}`, `{"spec":{"replicas":2}}`, codeScaled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, r, "admin", cluster.Options{})
			h := s.hands()
			var uid types.UID
			if tt.resource == "deployments" {
				uid = s.deployment("web", 3, nil).UID
			} else {
				uid = s.statefulSet("web", 3, func(d *appsv1.StatefulSet) { d.Spec.MinReadySeconds = 4 }).UID
			}
			before := s.pods("web")
			l := s.lease(Roll(s.c), tt.resource, "web", string(uid), "never")
			s.must(l, "preflight", "restart")
			h.set(untouched) // none gets ready meanwhile
			s.change(tt.resource, "web", tt.away)
			ctx, stop := context.WithCancel(s.ctx())
			waited := make(chan executor.Outcome, 1)
			go func() { waited <- l.run(ctx, "wait") }()
			if b := s.await(l, func(b protocol.Blocker) bool { return b.Code == tt.code }); b.Since == nil || b.Rule == "" {
				t.Errorf("blocker %+v", b)
			}
			stop() // the deadline
			if o := <-waited; o.Class != operation.OutcomeWaiting || !strings.Contains(o.Detail, "after the restart") || strings.Contains(o.Detail, restGoesOn) || o.ActionCode != operation.ActRestoreDependency {
				t.Errorf("wait: %+v", o)
			}
			var end executor.Ending
			l.typ.Observe(s.ctx(), l.Assignment, &end)
			if has(end.Verified, "are gone") || !strings.Contains(end.Message, "after the restart") {
				t.Errorf("ending %+v", end)
			}
			h.set(running)
			s.start("web")
			s.change(tt.resource, "web", tt.back)
			s.must(l, "wait", "confirm")
			for name, uid := range s.pods("web") {
				if before[name] == uid {
					t.Errorf("pod %s was not restarted", name)
				}
			}
		})
	}
}

// A roll that an agent began which wrote down no goal is taken over under a partition
// that was raised in between: it does not succeed before that is lowered.
func TestPartitionRaisedBeforeAHandOver(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.statefulSet("db", 3, nil)
	before := s.pods("db")
	l := s.lease(Roll(s.c), "StatefulSet", "db", string(d.UID), "never")
	s.must(l, "preflight")
	h.set(untouched) // the first that is made anew is the last, as long as it is not ready
	s.must(l, "restart")
	s.rig.For(t).AwaitPod(s.ns, "db-2", "of the restart, on its node", func(p *corev1.Pod) bool {
		_, marked := cluster.ReadMark(p.Annotations)
		return marked && p.Spec.NodeName != ""
	})
	made, err := s.admin.AppsV1().StatefulSets(s.ns).Get(s.ctx(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.change("statefulsets", "db", string(withoutGoal(t, made.Annotations[AnnotationRoll])))
	s.change("statefulsets", "db", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":3}}}}`)
	h.set(running)
	s.start("db")
	s.rig.For(t).Await("db settled under its partition", func(ctx context.Context) (bool, error) {
		d, err := s.admin.AppsV1().StatefulSets(s.ns).Get(ctx, "db", metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 1 && d.Status.AvailableReplicas == 3, err
	})
	one := l.next(Roll(s.c), 1)
	ctx, stop := context.WithCancel(s.ctx())
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- one.run(ctx, "wait") }()
	if b := s.await(one, func(b protocol.Blocker) bool { return b.Code == codePartition }); !strings.Contains(b.Detail, "keeps") || b.Since == nil {
		t.Errorf("blocker %+v", b)
	}
	stop()
	if o := <-waited; o.Class != operation.OutcomeWaiting || !strings.Contains(o.Detail, "1 of 3 replicas updated") {
		t.Errorf("wait: %+v", o)
	}
	s.change("statefulsets", "db", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	s.must(one, "wait", "confirm")
	for name, uid := range s.pods("db") {
		if before[name] == uid {
			t.Errorf("pod %s was not restarted", name)
		}
	}
}

// start makes pods ready that nobody touched.
func (s *site) start(app string) {
	s.t.Helper()
	for name := range maps.Clone(s.pods(app)) {
		p, err := s.admin.CoreV1().Pods(s.ns).Get(s.ctx(), name, metav1.GetOptions{})
		if err != nil || ready(p) || p.DeletionTimestamp != nil || p.Spec.NodeName == "" {
			continue
		}
		p.Status = *running(p)
		if _, err := s.admin.CoreV1().Pods(s.ns).UpdateStatus(s.ctx(), p, metav1.UpdateOptions{}); err != nil {
			s.t.Log(err) // it changed meanwhile
		}
	}
}

// The name of a Deployment may be longer than what its ReplicaSets' have room for.
func TestRollOfALongName(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	name := "model.v1-" + strings.Repeat("x", 238) // a name that was cut after a dot would be none
	for _, n := range []int{len(name), 63} {
		name = name[:n]
		app := fmt.Sprintf("app-%d", n)
		d := s.deployment(name, 2, func(d *appsv1.Deployment) {
			d.Spec.Selector.MatchLabels["app"], d.Spec.Template.Labels["app"] = app, app
		})
		before := s.pods(app)
		l := s.lease(Roll(s.c), "Deployment", name, string(d.UID), "never")
		s.must(l, "preflight", "restart", "wait", "confirm")
		var end executor.Ending
		l.typ.Observe(s.ctx(), l.Assignment, &end)
		if !has(end.Verified, "2 pods restarted") || !has(end.Verified, "the pods of before are gone") {
			t.Errorf("%d: ending %+v", n, end)
		}
		for name, uid := range s.pods(app) {
			if before[name] == uid {
				t.Errorf("pod %s was not restarted", name)
			}
		}
		list, err := s.admin.CoreV1().Events(s.ns).List(s.ctx(), metav1.ListOptions{LabelSelector: cluster.LabelOperation + "=" + l.Operation})
		if err != nil || len(list.Items) != 1 {
			t.Errorf("%d: %d events of the operation, %v", n, len(list.Items), err)
		}
	}
}

// A controller manager that hangs is named, before it saw the restart and after.
func TestControllerManagerHangs(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{})
	s := setup(t, r, "admin", cluster.Options{})
	h := s.hands()
	d := s.statefulSet("web", 2, nil)
	l := s.lease(RollWithin(s.c, Bounds{Stall: time.Minute, Silence: 2 * time.Second}), "StatefulSet", "web", string(d.UID), "never")
	waited := make(chan executor.Outcome, 1)
	silent := func(rule string) func(protocol.Blocker) bool {
		return func(b protocol.Blocker) bool {
			return b.Code == codeSilent && b.Rule == rule && b.Since != nil && strings.Contains(b.Detail, "kube-controller-manager")
		}
	}
	s.must(l, "preflight")
	r.Stop(kuberig.ControllerManager)
	s.must(l, "restart")
	go func() { waited <- l.run(s.ctx(), "wait") }()
	s.await(l, silent("status.observedGeneration"))
	h.set(untouched)
	r.Cont(kuberig.ControllerManager)
	s.await(l, func(b protocol.Blocker) bool { return b.Code == codeTerminating })
	r.AwaitPod(s.ns, "web-1", "of the restart, on its node", func(p *corev1.Pod) bool {
		_, marked := cluster.ReadMark(p.Annotations)
		return marked && p.Spec.NodeName != ""
	})
	r.Stop(kuberig.ControllerManager)
	h.set(running)
	s.start("web")
	s.await(l, silent("status"))
	r.Cont(kuberig.ControllerManager)
	if o := <-waited; o.Class != operation.OutcomeDone {
		t.Errorf("wait: %+v", o)
	}
}

// A rollout that somebody undoes in the middle is theirs.
func TestRollUndoneBySomebody(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.deployment("web", 2, nil)
	h.set(untouched)
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	<-l.told
	// kubectl rollout undo writes template and annotations of the revision before.
	s.change("deployments", "web", `{"metadata":{"annotations":{"opsplane.io/mark":null,"opsplane.io/roll":null}},"spec":{"template":{"metadata":{"annotations":null}}}}`)
	if o := <-waited; o.Class != operation.OutcomePermanent || o.ErrorCode != "superseded" || !strings.Contains(o.ActionText, "who changed the deployment") {
		t.Errorf("wait: %+v", o)
	}
	var end executor.Ending
	l.typ.Observe(s.ctx(), l.Assignment, &end)
	if has(end.Verified, "gone") || has(end.Verified, "carries this restart") {
		t.Errorf("ending %+v", end)
	}
}

// An old pod that a finalizer holds keeps the next one from being made: it is what the
// roll waits for.
func TestOldPodHeldByAFinalizer(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.statefulSet("db", 1, func(d *appsv1.StatefulSet) {
		d.Spec.Template.Finalizers, d.Spec.Template.Spec.TerminationGracePeriodSeconds = []string{"example.com/hold"}, ptr.To[int64](1)
	})
	l := s.lease(Roll(s.c), "StatefulSet", "db", string(d.UID), "never")
	s.must(l, "preflight", "restart")
	ctx, stop := context.WithCancel(s.ctx())
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(ctx, "wait") }()
	s.await(l, func(b protocol.Blocker) bool {
		return b.Code == codeFinalizer && b.Rule == "finalizer example.com/hold" && b.Since != nil
	})
	stop()
	if o := <-waited; !strings.Contains(o.Detail, "held by finalizer example.com/hold") || o.ActionCode != operation.ActRestoreDependency || !strings.Contains(o.ActionText, "finalizer") {
		t.Errorf("wait: %+v", o)
	}
	for name := range s.pods("db") {
		if _, err := s.admin.CoreV1().Pods(s.ns).Patch(s.ctx(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.must(l, "wait", "confirm")
}

// A Deployment whose controller may not make the new ReplicaSet says so, and its
// controller is no suspect.
func TestNoRoomForTheReplicaSet(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.deployment("web", 1, nil)
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "sets", Namespace: s.ns}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/replicasets.apps": resource.MustParse("1")}}}
	if _, err := s.admin.CoreV1().ResourceQuotas(s.ns).Create(s.ctx(), q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.rig.For(t).Await("the quota counted", func(ctx context.Context) (bool, error) {
		q, err := s.admin.CoreV1().ResourceQuotas(s.ns).Get(ctx, "sets", metav1.GetOptions{})
		return err == nil && len(q.Status.Used) > 0, err
	})
	l := s.lease(RollWithin(s.c, Bounds{Stall: time.Minute, Silence: time.Second}), "Deployment", "web", string(d.UID), "never")
	s.must(l, "preflight", "restart")
	ctx, stop := context.WithCancel(s.ctx())
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(ctx, "wait") }()
	if b := s.await(l, func(b protocol.Blocker) bool { return b.Code == codeQuota || b.Code == codeSilent }); b.Code != codeQuota || b.Rule != "quota sets" {
		t.Errorf("blocker %+v", b)
	}
	stop()
	if o := <-waited; !strings.Contains(o.Detail, "exceeded quota: sets") {
		t.Errorf("wait: %+v", o)
	}
}
