//go:build kubetest

package deployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Each right is taken away in turn: a roll that needs it fails and names it before
// anything is issued, and so does its dry run.
func TestEachRightIsNeeded(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{})
	define(t, r, "leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", false, "v1")
	define(t, r, "nvidia.com", "DynamoGraphDeployment", "dynamographdeployments", false, "v1beta1")
	for i, without := range Rights {
		t.Run(fmt.Sprintf("%s %s", without.Verb, without.Resource), func(t *testing.T) {
			user := r.User(fmt.Sprintf("agent-%d", i))
			var rules []rbacv1.PolicyRule
			for j, right := range Rights {
				if j != i {
					rules = append(rules, kuberig.Rule(right.Group, right.Resource, []string{right.Verb}))
				}
			}
			r.For(t).Grant(user, "", rules...)
			s := setup(t, r.For(t), user, cluster.Options{})
			l := s.stuckRoll(without)
			list, err := l.typ.Preview(s.ctx(), protocol.PreviewRequest{ID: "pre_1", Type: l.Type, TargetName: l.TargetName, TargetUID: l.TargetUID, Payload: l.Payload})
			denied := slices.IndexFunc(list, func(b protocol.Blocker) bool { return b.Code == "forbidden" })
			if err != nil || denied >= 0 != (without != cluster.EventRight) || denied >= 0 && (list[denied].Rule != "rbac" || !names(list[denied].Detail, without)) {
				t.Errorf("preview %+v %v", list, err)
			}
			o := s.untilRefused(l)
			if without == cluster.EventRight { // best effort: the operation goes on, and says nothing on the object
				list, err := s.admin.CoreV1().Events(s.ns).List(s.ctx(), metav1.ListOptions{LabelSelector: cluster.LabelOperation})
				if o.Class != operation.OutcomeDone || err != nil || len(list.Items) != 0 {
					t.Errorf("%+v, %v %d events", o, err, len(list.Items))
				}
				return
			}
			if o.ErrorCode != "forbidden" || !names(o.Detail, without) {
				t.Errorf("%+v does not say %s", o, without)
			}
			if len(l.commands) > 0 {
				t.Errorf("issued without the right to %s: %v", without, l.commands)
			}
		})
	}
}

// names tells whether a detail says that the right is missing: in the authorizer's
// words or in the agent's.
func names(detail string, right cluster.Right) bool {
	return strings.Contains(detail, fmt.Sprintf("cannot %s resource %q", right.Verb, right.Resource)) || strings.Contains(detail, "lacks the right to "+right.String())
}

// stuckRoll is a roll of an object for which the right matters, that does not
// come through by itself.
func (s *site) stuckRoll(right cluster.Right) *lease {
	s.t.Helper()
	h := s.hands()
	if right == cluster.EventRight {
		return s.lease(RollWithin(s.c, quick), "", "web", string(s.deployment("web", 1, nil).UID), "never")
	}
	switch right.Resource {
	case "leaderworkersets":
		u := s.create(leaderWorkerSets.resources[0], "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: web}\nspec: {replicas: 1, leaderWorkerTemplate: {workerTemplate: {spec: {}}}}\n", "{}")
		return s.lease(RollWithin(s.c, quick), "", "web", string(u.GetUID()), "never")
	case "dynamographdeployments":
		u := s.create(dynamoGraphs.resources[0], "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nmetadata: {name: web}\nspec: {components: [{name: a}]}\n", "{}")
		return s.lease(RollWithin(s.c, quick), "", "web", string(u.GetUID()), "never")
	case "statefulsets", "events":
		d := s.statefulSet("web", 1, nil)
		h.set(untouched)
		return s.lease(RollWithin(s.c, quick), "", "web", string(d.UID), "on_failure")
	}
	if right.Verb == "delete" {
		d := s.statefulSet("web", 1, nil)
		h.set(crashing)
		return s.lease(RollWithin(s.c, quick), "", "web", string(d.UID), "on_failure")
	}
	d := s.deployment("web", 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](5) })
	h.set(untouched)
	return s.lease(RollWithin(s.c, quick), "", "web", string(d.UID), "never")
}

// untilRefused runs the steps until one lacks a right.
func (s *site) untilRefused(l *lease) executor.Outcome {
	s.t.Helper()
	var o executor.Outcome
	for _, step := range []string{"preflight", "restart", "wait", "undo"} {
		o = l.run(s.ctx(), step)
		if o.ErrorCode == "forbidden" {
			return o
		}
		if step != "wait" && step != "undo" && o.Class != operation.OutcomeDone {
			s.t.Fatalf("%s: %+v", step, o)
		}
	}
	return o
}

func TestNoRoomForThePods(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.deployment("web", 1, nil)
	label := func(v string) {
		s.t.Helper()
		if _, err := s.admin.CoreV1().Nodes().Patch(s.ctx(), s.node.Name, "application/merge-patch+json",
			fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, kuberig.LabelRig, v), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("null") // the pods that run stay
	l := s.lease(Roll(s.c), "", "web", string(d.UID), "on_failure")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	b := s.await(l, func(b protocol.Blocker) bool { return b.Code == codeUnschedulable })
	if b.Rule != "scheduler" || b.Since == nil || !strings.Contains(b.Detail, "nodes are available") {
		t.Errorf("blocker %+v", b)
	}
	label(fmt.Sprintf("%q", s.node.Labels[kuberig.LabelRig]))
	if o := <-waited; o.Class != operation.OutcomeDone {
		t.Errorf("wait: %+v", o)
	}
}

// The API server hangs and goes away in the middle of a rollout and comes back: the
// wait says so and goes on, and nothing is restarted twice.
func TestRollOutlivesTheAPIServer(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{})
	s := setup(t, r, "admin", cluster.Options{})
	h := s.hands()
	d := s.deployment("web", 2, nil)
	h.set(untouched)
	l := s.lease(Roll(s.c), "", "web", string(d.UID), "never")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	// It waits on its watches once each of them has brought something.
	note := []byte(`{"metadata":{"annotations":{"example.com/note":"1"}}}`)
	for ; l.count() < 2; <-l.told { // it has read, and then listed
	}
	for _, touch := range []func() error{
		func() (err error) {
			for name := range s.pods("web") {
				_, err = s.admin.CoreV1().Pods(s.ns).Patch(s.ctx(), name, types.MergePatchType, note, metav1.PatchOptions{})
			}
			return err
		},
		func() error {
			_, err := s.admin.AppsV1().Deployments(s.ns).Patch(s.ctx(), "web", types.MergePatchType, note, metav1.PatchOptions{})
			return err
		},
	} {
		before := l.count()
		if err := touch(); err != nil {
			t.Fatal(err)
		}
		for ; l.count() == before; <-l.told {
		}
	}
	away := func(b protocol.Blocker) bool { return b.Code == cluster.CodeUnavailable }
	r.Stop(kuberig.APIServer)
	silent := time.Now()
	if b := s.await(l, away); time.Since(silent) > 20*time.Second || b.Since == nil || b.Since.Sub(silent) > 15*time.Second || !strings.Contains(b.Detail, "no answer within 3s") {
		t.Errorf("silent since %s, told after %s: %+v", silent.UTC(), time.Since(silent), b)
	}
	r.Cont(kuberig.APIServer)
	heard := time.Now()
	for ; slices.ContainsFunc(l.blockers(), away); <-l.told {
	}
	if took := time.Since(heard); took > 15*time.Second {
		t.Errorf("it answers again, and that was told after %s", took)
	}
	r.Kill(kuberig.APIServer)
	if o := l.next(Roll(s.c), 1).run(s.ctx(), "wait"); o.Class != operation.OutcomeWaiting || o.ErrorCode != "api_unavailable" {
		t.Errorf("another wait meanwhile: %+v", o)
	}
	if f := l.probe(s.ctx(), "restart"); f.Phase != operation.StepUnknown {
		t.Errorf("a probe meanwhile finds %+v", f)
	}
	h.set(running)
	r.Restart(kuberig.APIServer)
	for name := range s.pods("web") { // those that nobody touched start now
		p, err := s.admin.CoreV1().Pods(s.ns).Get(s.ctx(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !ready(p) && p.DeletionTimestamp == nil {
			p.Status = *running(p)
			if _, err := s.admin.CoreV1().Pods(s.ns).UpdateStatus(s.ctx(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	o := <-waited
	for o.ErrorCode == "api_unavailable" && o.Class == operation.OutcomeWaiting && s.ctx().Err() == nil { // the loop waits, and goes on with it
		o = l.run(s.ctx(), "wait")
	}
	if o.Class != operation.OutcomeDone {
		t.Errorf("wait: %+v; progress %v", o, l.progress)
	}
	s.must(l, "confirm")
	if n := len(s.replicaSets()); n != 2 {
		t.Errorf("%d revisions", n)
	}
}
