package device

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// unreachableSince makes the device's node one whose kubelet does not report.
func unreachableSince(t *testing.T, e *devices, status corev1.ConditionStatus, since time.Time) {
	t.Helper()
	n, err := e.c.Client.CoreV1().Nodes().Get(t.Context(), fakeNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(since)}}
	if _, err = e.c.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestNodeAwayForAMoment: a node that was lost a moment ago, as many are when the API
// server comes back, is waited for; one that has been away for longer fails what has
// begun nothing, and what proves a reset waits for it to the deadline.
func TestNodeAwayForAMoment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		step string
		away time.Duration
		want string
	}{
		"preflight, a moment": {"preflight", 10 * time.Second, operation.OutcomeWaiting},
		"preflight, long":     {"preflight", DefaultNodePatience + time.Second, operation.OutcomePermanent},
		"reset, a moment":     {"reset", 10 * time.Second, operation.OutcomeWaiting},
		"reset, long":         {"reset", DefaultNodePatience + time.Second, operation.OutcomePermanent},
		"verify, a moment":    {"verify", 10 * time.Second, operation.OutcomeWaiting},
		"verify, long":        {"verify", time.Hour, operation.OutcomeWaiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, client, _ := fakes(t)
			since := time.Now().Add(-c.away)
			unreachableSince(t, e, corev1.ConditionUnknown, since)
			task := stepTask("op_a", 1, 1)
			met := new(blockers).of(task)
			o := e.step(map[string]func(context.Context, *executor.Task, target) executor.Outcome{"preflight": e.preflight, "reset": e.reset, "verify": e.verify}[c.step])(t.Context(), task)
			if o.Class != c.want || o.ErrorCode != codeUnreachable {
				t.Errorf("%+v", o)
			}
			if waits := c.want == operation.OutcomeWaiting; met.has(codeUnreachable) != waits || !waits && o.ActionText != nodeAction {
				t.Errorf("blockers %+v, advice %q", met.all, o.ActionText)
			}
			for _, b := range met.all {
				if b.Since == nil || !b.Since.Equal(since) {
					t.Errorf("it blocks since %v, not since %s", b.Since, since)
				}
			}
			if n := made(client, "jobs", ""); n != 0 {
				t.Errorf("%d jobs were made", n)
			}
		})
	}
}

// TestNodeComesBack: a node that answers again stands in no wait's way.
func TestNodeComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _, pods := fakes(t)
		e.cfg.LookTimeout = time.Hour
		task := stepTask("op_a", 1, 1)
		task.Remaining = func() time.Duration { return time.Hour }
		var codes []string
		var since *time.Time
		task.Blocked = func(now []protocol.Blocker) {
			code := ""
			if len(now) > 0 {
				code, since = now[0].Code, now[0].Since
			}
			codes = append(codes, code)
		}
		last := func() string {
			synctest.Wait()
			if len(codes) == 0 {
				return ""
			}
			return codes[len(codes)-1]
		}
		j := asked(e, task, report.VerbPreflight, time.Now(), time.Time{})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan heard, 1)
		go func() { over <- e.await(ctx, task, target{fakeUUID, fakeNode}, report.VerbPreflight, j) }()
		pods.Modify(podOf(j, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}))
		lost := time.Now()
		unreachableSince(t, e, corev1.ConditionUnknown, lost)
		time.Sleep(2 * nodeLook)
		if got := last(); got != codeUnreachable || since == nil || !since.Equal(lost) {
			t.Errorf("while it is away: %q since %v", got, since)
		}
		unreachableSince(t, e, corev1.ConditionTrue, time.Now())
		time.Sleep(2 * nodeLook)
		if got := last(); got != "" {
			t.Errorf("when it is back: %q", got)
		}
		cancel()
		<-over
	})
}

// TestNodeAwayBeforeAnyReset: what became of a reset that was begun cannot be read from a
// node that is gone or unreachable. Of one that never was there is nothing to wait for: its
// preflight says how the node is, and waits for one that was lost a moment ago.
func TestNodeAwayBeforeAnyReset(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempts   int
		generation int64
		jobs       []string // operations whose Job of a reset has not ended
		want       operation.StepPhase
		code       string // of what is not known; "": the node
	}{
		"never begun":                   {0, 1, nil, operation.StepPending, ""},
		"begun":                         {1, 2, nil, operation.StepUnknown, ""},
		"restored: it may have been so": {0, 1_000_002, nil, operation.StepUnknown, ""},
		"not by its record, by its Job": {0, 2, []string{"op_a"}, operation.StepUnknown, ""},
		"another's may reset it yet":    {0, 1, []string{"op_other"}, operation.StepUnknown, report.CodeInProgress},
	} {
		for node, n := range map[string]struct {
			away  func(t *testing.T, e *devices)
			code  string
			class string // of the preflight
		}{
			"gone": {func(t *testing.T, e *devices) {
				if err := e.c.Client.CoreV1().Nodes().Delete(t.Context(), fakeNode, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}, report.CodeGone, operation.OutcomePermanent},
			"unreachable for long": {func(t *testing.T, e *devices) {
				unreachableSince(t, e, corev1.ConditionUnknown, time.Now().Add(-DefaultNodePatience-time.Second))
			}, codeUnreachable, operation.OutcomePermanent},
			"unreachable for a moment": {func(t *testing.T, e *devices) {
				unreachableSince(t, e, corev1.ConditionUnknown, time.Now().Add(-10*time.Second))
			}, codeUnreachable, operation.OutcomeWaiting},
		} {
			t.Run(name+", "+node, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					e, client, _ := fakes(t)
					n.away(t, e)
					for _, op := range c.jobs {
						if err := client.Tracker().Add(asked(e, stepTask(op, 1, 1), report.VerbReset, time.Now(), time.Time{})); err != nil {
							t.Fatal(err)
						}
					}
					task := stepTask("op_a", 1, c.generation)
					task.Step.Attempts = c.attempts
					f := e.probeReset(t.Context(), task)
					if f.Phase != c.want || c.code != "" && f.ErrorCode != c.code {
						t.Errorf("found %+v", f)
					}
					if made(client, "jobs", "") != 0 {
						t.Error("a Job was made for a node that is away")
					}
					if len(c.jobs) > 0 {
						return
					}
					if o := e.step(e.preflight)(t.Context(), task); o.Class != n.class || o.ErrorCode != n.code {
						t.Errorf("the preflight: %+v", o)
					}
				})
			})
		}
	}
}
