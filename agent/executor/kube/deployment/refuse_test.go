//go:build kubetest

package deployment

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestPreflightRefuses(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	paused := s.deployment("paused", 1, nil)
	s.change("deployments", "paused", `{"spec":{"paused":true}}`)
	onDelete := s.statefulSet("ondelete", 1, func(d *appsv1.StatefulSet) { d.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType })
	parted := s.statefulSet("parted", 2, func(d *appsv1.StatefulSet) {
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](2)}
	})
	tests := []struct {
		kind, name, uid, code, detail string
	}{
		{"Deployment", "paused", string(paused.UID), "paused", "nothing would restart"},
		{"StatefulSet", "ondelete", string(onDelete.UID), "not_supported", "StatefulSet"},
		{"StatefulSet", "parted", string(parted.UID), "not_supported", "partition of all its 2 replicas"},
	}
	for _, tt := range tests {
		l := s.lease(Roll(s.c), tt.kind, tt.name, tt.uid, "never")
		o := l.run(s.ctx(), "preflight")
		if o.Class != operation.OutcomePermanent || o.ErrorCode != tt.code || !strings.Contains(o.Detail, tt.detail) {
			t.Errorf("%s: %+v", tt.name, o)
		}
		list, err := l.typ.Preview(s.ctx(), protocol.PreviewRequest{ID: "pre_1", Type: l.Type, TargetName: l.TargetName, TargetUID: l.TargetUID, Payload: l.Payload})
		if err != nil || len(list) != 1 || list[0].Code != tt.code || list[0].Detail != o.Detail {
			t.Errorf("%s: preview %+v %v", tt.name, list, err)
		}
	}
	if o := s.lease(Roll(s.c), "Deployment", "paused", string(paused.UID), "never").run(s.ctx(), "restart"); o.ErrorCode != "paused" {
		t.Errorf("the restart of what was paused after its preflight: %+v", o)
	}
}

// change patches an object as a person does.
func (s *site) change(resource, name, patch string) {
	s.t.Helper()
	k := map[string]*kind{"deployments": deployments, "statefulsets": statefulSets}[resource]
	if _, err := s.dynamic.Resource(k.resources[0]).Namespace(s.ns).Patch(s.ctx(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func TestRollSuperseded(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.deployment("web", 2, nil)
	h.set(stuckIn("ImagePullBackOff", "not found"))
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "on_failure")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	s.await(l, func(b protocol.Blocker) bool { return b.Code == codeImagePull })
	h.set(running)
	s.change("deployments", "web", `{"spec":{"template":{"spec":{"containers":[{"name":"server","image":"registry.example/server:2"}]}}}}`)
	if o := <-waited; o.ErrorCode != "superseded" || o.Class != operation.OutcomePermanent {
		t.Errorf("wait: %+v", o)
	}
	if o := l.run(s.ctx(), "confirm"); o.ErrorCode != "superseded" {
		t.Errorf("confirm: %+v", o)
	}
	if o := l.run(s.ctx(), "undo"); o.ErrorCode != "superseded" || len(l.commands) != 1 {
		t.Errorf("undo: %+v, commands %v", o, l.commands)
	}
	s.settled("deployments", "web")
}

func TestRollCancelledLeavesTheRollout(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.deployment("web", 2, nil)
	h.set(untouched)
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "on_failure")
	s.must(l, "preflight", "restart")
	waited := make(chan executor.Outcome, 1)
	go func() { waited <- l.run(s.ctx(), "wait") }()
	<-l.told
	close(l.cancelled)
	if o := <-waited; o.Class != operation.OutcomeWaiting || o.ErrorCode != "cancelled" {
		t.Errorf("wait: %+v", o)
	}
	if o := l.run(s.ctx(), "undo"); o.Class != operation.OutcomeDone || !o.Nothing || !strings.Contains(o.Detail, "left as it is") {
		t.Errorf("undo: %+v", o)
	}
	if len(l.commands) != 1 {
		t.Errorf("commands %v", l.commands)
	}
}
