//go:build kubetest

package deployment

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
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
	if o.Class != operation.OutcomeDone || !strings.Contains(o.Detail, "back at the template of before") {
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
