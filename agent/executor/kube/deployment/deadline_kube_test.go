//go:build kubetest

package deployment

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// by runs a step until its end, with a deadline that comes nearer.
func (l *lease) by(ctx context.Context, step string, deadline time.Time) executor.Outcome {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	t := l.task(step)
	t.Remaining = func() time.Duration { return max(time.Until(deadline), 0) }
	return l.typ.Steps[step].Execute(ctx, t)
}

// oneByOne adds a pod before it takes one away.
func oneByOne(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}
}

// At its deadline a roll names what stood in its way.
func TestRollAtItsDeadline(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	for name, tt := range map[string]struct {
		how     func(*corev1.Pod) *corev1.PodStatus
		prepare func(s *site)
		meet    func(s *site) // after the restart
		code    string
		detail  string
		text    string // of the next action
	}{
		"image":  {how: stuckIn("ImagePullBackOff", "not found"), code: codeImagePull, detail: "image registry.example/server:1 cannot be pulled (ImagePullBackOff): not found", text: "repair the deployment"},
		"quota":  {how: running, prepare: func(s *site) { s.quota(2) }, code: codeQuota, detail: "exceeded quota: pods", text: "raise the namespace's quota"},
		"paused": {how: untouched, meet: func(s *site) { s.change("deployments", "web", `{"spec":{"paused":true}}`) }, code: codePaused, detail: "is paused (spec.paused)", text: "resume the rollout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, r, "admin", cluster.Options{})
			h := s.hands()
			d := s.deployment("web", 2, oneByOne)
			if tt.prepare != nil {
				tt.prepare(s)
			}
			h.set(tt.how)
			l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
			s.must(l, "preflight", "restart")
			if tt.meet != nil {
				tt.meet(s)
			}
			ctx, stop := context.WithCancel(s.ctx())
			waited := make(chan executor.Outcome, 1)
			go func() { waited <- l.run(ctx, "wait") }()
			b := s.await(l, func(b protocol.Blocker) bool { return b.Code == tt.code })
			if b.Since == nil || b.Rule == "" || !strings.Contains(b.Detail, tt.detail) {
				t.Errorf("blocker %+v", b)
			}
			stop() // the deadline
			o := <-waited
			if o.Class != operation.OutcomeWaiting || !strings.Contains(o.Detail, tt.detail) || !strings.Contains(o.ActionText, tt.text) {
				t.Errorf("wait: %+v", o)
			}
		})
	}
}

// A roll that is to be taken back is, before its deadline, whatever stands in its
// way: also what more time might mend.
func TestUndoBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	for name, tt := range map[string]struct {
		how   func(*corev1.Pod) *corev1.PodStatus
		quota int64
		code  string
	}{
		"image":       {stuckIn("ImagePullBackOff", "not found"), 0, codeImagePull},
		"quota":       {running, 2, codeQuota},
		"never ready": {untouched, 0, codeNotStarted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, r, "admin", cluster.Options{})
			h := s.hands()
			d := s.deployment("web", 2, oneByOne)
			before := fmt.Sprint(s.pods("web"))
			if tt.quota > 0 {
				s.quota(tt.quota)
			}
			h.set(tt.how)
			l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "on_failure")
			s.must(l, "preflight", "restart")
			deadline := time.Now().Add(20 * time.Second)
			if o := l.by(s.ctx(), "wait", deadline); o.Class != operation.OutcomePermanent || o.ErrorCode != tt.code || !strings.Contains(o.Detail, "deadline is 5s away") {
				t.Fatalf("wait: %+v", o)
			}
			h.set(running)
			if o := l.by(s.ctx(), "undo", deadline); o.Class != operation.OutcomeDone || o.Nothing {
				t.Fatalf("undo: %+v", o)
			}
			if after := fmt.Sprint(s.pods("web")); after != before && name == "quota" {
				t.Errorf("pods %s, before %s", after, before)
			}
		})
	}
}

// What somebody paused is left to them: the undo says so, and does nothing.
func TestUndoOfAPausedRollout(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	h := s.hands()
	d := s.deployment("web", 2, oneByOne)
	h.set(untouched)
	l := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "on_failure")
	s.must(l, "preflight", "restart")
	s.change("deployments", "web", `{"spec":{"paused":true}}`)
	deadline := time.Now().Add(20 * time.Second)
	if o := l.by(s.ctx(), "wait", deadline); o.ErrorCode != codePaused || o.Class != operation.OutcomePermanent {
		t.Fatalf("wait: %+v", o)
	}
	if o := l.by(s.ctx(), "undo", deadline); o.ErrorCode != codePaused || len(l.commands) != 1 {
		t.Errorf("undo: %+v, commands %v", o, l.commands)
	}
}
