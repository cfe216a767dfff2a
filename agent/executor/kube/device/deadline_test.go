package device

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// before is how long is left to a deadline.
func before(at time.Time) func() time.Duration {
	return func() time.Duration { return time.Until(at) }
}

// TestNoTimeForAReset: a reset is begun with no less than it may take. Nothing is made,
// nor is a pod evicted for it.
func TestNoTimeForAReset(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		step func(e *devices, ctx context.Context, t *executor.Task, d target) executor.Outcome
		jobs int
	}{
		"preflight":     {(*devices).preflight, 0},
		"drain_holders": {(*devices).drainHolders, 1},
		"reset":         {(*devices).reset, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, _ := fakes(t, worker("a"))
				task := stepTask("op_a", 1, 1)
				task.Remaining = before(time.Now().Add(e.needs() - time.Second))
				answers(t, client, func(int) report.Answer {
					return busy(task, report.Holder{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{Namespace: "serve", Name: "a", UID: "uid-a"}})
				})
				o := c.step(e, t.Context(), task, target{fakeUUID, fakeNode})
				if o.Class != operation.OutcomePermanent || o.ErrorCode != codeDeadlineShort || !strings.Contains(o.Detail, "2m9s are left") || !strings.Contains(o.ActionText, "more than 2m10s") {
					t.Errorf("%+v", o)
				}
				if jobs, evicted := made(client, "jobs", ""), made(client, "pods", "eviction"); jobs != c.jobs || evicted != 0 {
					t.Errorf("%d jobs were made and %d pods evicted", jobs, evicted)
				}
			})
		})
	}
}

// TestBegunInTime: that the deadline has come close since says nothing of a Job that is
// under way.
func TestBegunInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, client, _ := fakes(t)
		task := stepTask("op_a", 1, 1)
		j := e.job(task, target{fakeUUID, fakeNode}, report.VerbReset, resetting(task))
		j.UID = "uid-j"
		for _, o := range []runtime.Object{j, podOf(j, said(yes(task, report.VerbReset)))} {
			if err := client.Tracker().Add(o); err != nil {
				t.Fatal(err)
			}
		}
		task.Remaining = before(time.Now().Add(20 * time.Second))
		if o := e.reset(t.Context(), task, target{fakeUUID, fakeNode}); o.Class != operation.OutcomeDone {
			t.Errorf("%+v", o)
		}
	})
}

// TestPreviewOfAShortDeadline: a dry run says so, beside what else it finds.
func TestPreviewOfAShortDeadline(t *testing.T) {
	t.Parallel()
	for left, short := range map[time.Duration]bool{0: false, 3 * time.Second: true, 8 * time.Second: true, 129 * time.Second: true, 130 * time.Second: false, time.Hour: false} {
		e, client, _ := fakes(t, hostReport(t, report.Device{UUID: fakeUUID, Health: report.HealthOK}))
		client.PrependReactor("create", "selfsubjectaccessreviews", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
		})
		got, err := e.preview(t.Context(), protocol.PreviewRequest{ID: "prv_a", Type: "device.reset", TargetUID: fakeUUID, NodeName: fakeNode,
			Payload: json.RawMessage(`{}`), DeadlineMS: left.Milliseconds()})
		if err != nil || short != (len(got) == 1 && got[0].Code == codeDeadlineShort && got[0].Rule != "") || !short && len(got) > 0 {
			t.Errorf("with %s: %+v, %v", left, got, err)
		}
	}
}

// TestAnswerThatDidNotCome: what is said of a reset that the deadline ended is a sentence,
// and its device is not called fine.
func TestAnswerThatDidNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _, _ := fakes(t)
		task := stepTask("op_a", 1, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		o := e.reset(ctx, task, target{fakeUUID, fakeNode})
		if o.Class != operation.OutcomeAmbiguous || !strings.HasSuffix(o.Detail, "its answer has not come") {
			t.Errorf("%+v", o)
		}
		e.note(task.Assignment, func(o *outcome) { o.device = &report.Device{UUID: fakeUUID, Health: report.HealthOK} })
		a := *task.Assignment
		a.Steps = []protocol.Step{{PlanStep: operation.PlanStep{Name: "reset", Required: true}, Phase: operation.StepUnknown}}
		var end executor.Ending
		e.observe(t.Context(), &a, &end)
		if want := "whether GPU " + fakeUUID + " was reset is not known; by its host's last word it is ok"; end.Message != want {
			t.Errorf("%q, want %q", end.Message, want)
		}
	})
}

// busy is an answer that says what holds the device; nothing: it is free.
func busy(t *executor.Task, holders ...report.Holder) report.Answer {
	a := yes(t, report.VerbPreflight)
	if len(holders) > 0 {
		a.OK, a.Code, a.Detail, a.Device.Holders = false, report.CodeBusy, "it is held", holders
	}
	return a
}
