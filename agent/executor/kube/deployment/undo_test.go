//go:build kubetest

package deployment

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// quick bounds, so that a test need not wait for what production waits for.
var quick = Bounds{Stall: 20 * time.Second, Patience: time.Second, Undo: 20 * time.Second}

func TestUndoGoesBackToThePodsOfBefore(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.deployment("web", 4, nil)
	revisions := s.replicaSets()
	before := s.pods("web")
	h.set(stuckIn("ImagePullBackOff", "not found"))
	l := s.lease(RollWithin(s.c, quick), "Deployment", "web", string(d.UID), "on_failure")
	s.must(l, "preflight", "restart")
	if o := l.run(s.ctx(), "wait"); o.ErrorCode != codeImagePull {
		t.Fatalf("wait: %+v", o)
	}
	h.set(running)
	o := l.run(s.ctx(), "undo")
	if o.Class != operation.OutcomeDone || !strings.Contains(o.Detail, "is back: the template is that of before") {
		t.Fatalf("undo: %+v", o)
	}
	if f := l.probe(s.ctx(), "undo"); f.Phase != operation.StepSucceeded {
		t.Errorf("the probe finds %+v", f)
	}
	kept := 0
	for name, uid := range s.pods("web") {
		if before[name] == uid {
			kept++
		}
	}
	if kept < 3 { // maxUnavailable 25 %: one of four was stopped
		t.Errorf("%d of 4 pods of before were kept", kept)
	}
	for name, rs := range s.replicaSets() {
		if _, known := revisions[name]; known != (rs == 4) {
			t.Errorf("replica set %s has %d replicas, known before: %v", name, rs, known)
		}
	}
	end := executor.Ending{}
	l.typ.Observe(s.ctx(), l.Assignment, &end)
	if !has(end.Verified, "that of before the restart") || len(end.Residual) > 0 {
		t.Errorf("ending %+v", end)
	}
	// Whoever comes after finds it done, and issues nothing.
	after := l.next(RollWithin(s.c, quick), 1)
	if o := after.run(s.ctx(), "undo"); o.Class != operation.OutcomeDone || len(after.commands) != 0 {
		t.Errorf("the undo of the next lease: %+v, commands %v", o, after.commands)
	}
}

// replicaSets are the desired replicas by name.
func (s *site) replicaSets() map[string]int32 {
	s.t.Helper()
	list, err := s.admin.AppsV1().ReplicaSets(s.ns).List(s.ctx(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	m := map[string]int32{}
	for _, rs := range list.Items {
		m[rs.Name] = *rs.Spec.Replicas
	}
	return m
}

// A StatefulSet in order waits for its broken pod for ever, also after the
// template is mended: the undo lets go of it.
func TestUndoOfAStatefulSetInOrder(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.statefulSet("db", 2, nil)
	before := s.pods("db")
	h.set(crashing)
	l := s.lease(RollWithin(s.c, quick), "StatefulSet", "db", string(d.UID), "on_failure")
	s.must(l, "preflight", "restart")
	if o := l.run(s.ctx(), "wait"); o.ErrorCode != codeCrashLoop {
		t.Fatalf("wait: %+v", o)
	}
	broken := s.pods("db")["db-1"]
	h.set(running)
	if o := l.run(s.ctx(), "undo"); o.Class != operation.OutcomeDone {
		t.Fatalf("undo: %+v; commands %v", o, l.commands)
	}
	after := s.pods("db")
	if after["db-0"] != before["db-0"] || after["db-1"] == broken || len(after) != 2 {
		t.Errorf("pods before %v, broken %s, after %v", before, broken, after)
	}
	if len(l.commands) != 3 || !has(l.commands, "delete "+s.ns+"/db-1: ok") {
		t.Errorf("commands %v", l.commands)
	}
	set, err := s.admin.AppsV1().StatefulSets(s.ns).Get(s.ctx(), "db", metav1.GetOptions{})
	if err != nil || set.Status.UpdateRevision != d.Status.UpdateRevision && set.Status.UpdateRevision != set.Status.CurrentRevision {
		t.Errorf("%v: update revision %s, current %s", err, set.Status.UpdateRevision, set.Status.CurrentRevision)
	}
}

func TestUndoThatDoesNotComeThrough(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.deployment("web", 1, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })
	h.set(stuckIn("ImagePullBackOff", "not found"))
	bounds := quick
	bounds.Undo = 3 * time.Second
	l := s.lease(RollWithin(s.c, bounds), "Deployment", "web", string(d.UID), "on_failure")
	s.must(l, "preflight", "restart")
	if o := l.run(s.ctx(), "wait"); o.ErrorCode != codeImagePull {
		t.Fatalf("wait: %+v", o)
	}
	if o := l.run(s.ctx(), "undo"); o.ErrorCode != codeUndoIncomplete {
		t.Errorf("undo: %+v", o)
	}
}

// label has every change of the site's deployments label their pods; off ends that.
func (s *site) label() (off func()) {
	s.t.Helper()
	admin := s.admin.AdmissionregistrationV1()
	name := s.rig.Name("label") + ".example.com"
	_, err := admin.MutatingAdmissionPolicies().Create(s.ctx(), &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.MutatingAdmissionPolicySpec{
		FailurePolicy: ptr.To(admissionv1.Fail), ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}}}}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "here", Expression: fmt.Sprintf("request.namespace == %q", s.ns)}},
		Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{
			Expression: `Object{spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{labels: {"mesh": "on"}}}}}`}}}}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	off = func() {
		_ = admin.MutatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
	}
	s.t.Cleanup(off)
	if _, err = admin.MutatingAdmissionPolicyBindings().Create(s.ctx(), &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = admin.MutatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return off
}

// labels waits until a change of the deployment is, or is not, labelled.
func (s *site) labels(name string, on bool) {
	s.t.Helper()
	s.rig.Await("a change is labelled or not", func(ctx context.Context) (bool, error) {
		d, err := s.admin.AppsV1().Deployments(s.ns).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"labels":{"mesh":null}}}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && (d.Spec.Template.Labels["mesh"] == "on") == on, err
	})
}

// What admission changes with the restart is taken back with it, and where it changes
// the undo as well, that is said. The pods run and get never ready, which is the cause.
func TestUndoOfWhatAPolicyAdds(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	for name, on := range map[string]bool{"off by then": false, "in force": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, r, "admin", cluster.Options{})
			h := s.hands()
			d := s.deployment("web", 1, func(d *appsv1.Deployment) {
				oneByOne(d)
				d.Spec.ProgressDeadlineSeconds = ptr.To[int32](5)
			})
			before := s.replicaSets()
			off := s.label()
			s.labels("web", true)
			h.set(unreadyPod)
			bounds := quick
			bounds.Start = time.Second
			l := s.lease(RollWithin(s.c, bounds), "Deployment", "web", string(d.UID), "on_failure")
			s.must(l, "preflight", "restart")
			if o := l.run(s.ctx(), "wait"); o.ErrorCode != codeNotReady || !strings.Contains(o.Detail, "container server of pod web-") {
				t.Fatalf("wait: %+v", o)
			}
			if b := s.await(l, func(b protocol.Blocker) bool { return b.Code == codeNotReady }); !strings.Contains(b.Detail, "after 5s without progress the rollout counts as failed and is taken back") {
				t.Errorf("blocker %+v", b)
			}
			h.set(running)
			if !on {
				off()
				s.labels("web", false)
			}
			o := l.run(s.ctx(), "undo")
			var end executor.Ending
			l.typ.Observe(s.ctx(), l.Assignment, &end)
			const field = "changed spec.template.metadata.labels.mesh"
			if on != (o.ErrorCode == codeUndoDiffers) || on != strings.Contains(o.Detail, field) || on == has(end.Verified, "that of before the restart") || on != (len(end.Residual) == 1 && strings.Contains(end.Residual[0].Detail, field+"; next: see to what changes the template, then kubectl rollout undo deployment/web -n "+s.ns+" --to-revision=1")) {
				t.Errorf("undo: %+v, ending %+v", o, end)
			}
			for name, replicas := range s.replicaSets() {
				if _, known := before[name]; known == on && replicas > 0 {
					t.Errorf("replica set %s has %d replicas, known before: %v", name, replicas, known)
				}
			}
		})
	}
}

// unreadyPod runs and does not get ready.
func unreadyPod(p *corev1.Pod) *corev1.PodStatus {
	return statusOf(p, corev1.PodRunning, corev1.ConditionFalse, corev1.ContainerStatus{Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}})
}
