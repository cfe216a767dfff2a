package device

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestProbeSeesAnothersReset: an operation that ended left the Job of its reset behind.
// While that may reset the device, no other operation, nor a later run, has it that
// nothing is under way.
func TestProbeSeesAnothersReset(t *testing.T) {
	t.Parallel()
	now := time.Now()
	other := stepTask("op_other", 1, 1)
	for name, c := range map[string]struct {
		job   func(e *devices) *batchv1.Job
		under bool
	}{
		"another operation's": {func(e *devices) *batchv1.Job { return asked(e, other, report.VerbReset, now, time.Time{}) }, true},
		"an earlier run's": {func(e *devices) *batchv1.Job {
			return asked(e, stepTask("op_a", 1, 1), report.VerbReset, now, time.Time{})
		}, true},
		"another's that has ended":  {func(e *devices) *batchv1.Job { return asked(e, other, report.VerbReset, now.Add(-time.Minute), now) }, false},
		"another's that only looks": {func(e *devices) *batchv1.Job { return asked(e, other, report.VerbPreflight, now, time.Time{}) }, false},
		"another's of another device": {func(e *devices) *batchv1.Job {
			return e.job(other, target{"GPU-1", fakeNode}, report.VerbReset, "opsplane-other")
		}, false},
	} {
		e, client, _ := fakes(t)
		if err := client.Tracker().Add(c.job(e)); err != nil {
			t.Fatal(err)
		}
		// What was found says that the host has answered, where it came to be asked.
		task := stepTask("op_a", 2, 3)
		answer := yes(task, report.VerbMark)
		answer.Device, answer.Mark = nil, &report.Mark{State: report.MarkNone}
		mark := asked(e, task, report.VerbMark, now, now)
		for _, err := range []error{client.Tracker().Add(mark), client.Tracker().Add(podOf(mark, said(answer)))} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f := e.probeReset(t.Context(), task)
		if c.under && (f.Phase != operation.StepUnknown || f.ErrorCode != "in_progress" || !strings.Contains(f.Detail, "may reset GPU "+fakeUUID) || f.Blocker == nil || f.Blocker.Resource == "") ||
			!c.under && f.Phase != operation.StepPending {
			t.Errorf("%s: found %+v", name, f)
		}
	}
}

// TestResetAwaitsAnothers: while the Job of another operation may reset the device yet,
// no Job of this one's reset is made, whatever was said of it before. The step waits, and
// names what for. The preflight does as well: there a cancel is taken.
func TestResetAwaitsAnothers(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]func(*devices) func(context.Context, *executor.Task, target) executor.Outcome{
		"preflight": func(e *devices) func(context.Context, *executor.Task, target) executor.Outcome { return e.preflight },
		"reset":     func(e *devices) func(context.Context, *executor.Task, target) executor.Outcome { return e.reset },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, client, _ := fakes(t)
			client.PrependReactor("create", "jobs", func(ktesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewBadRequest("no Job is made in this test")
			})
			before := asked(e, stepTask("op_other", 1, 1), report.VerbReset, time.Now().Add(-time.Minute).Truncate(time.Second), time.Time{})
			if err := client.Tracker().Add(before); err != nil {
				t.Fatal(err)
			}
			task := stepTask("op_b", 1, 2)
			var shown []protocol.Blocker
			task.Blocked = func(now []protocol.Blocker) { shown = now }
			o := e.step(step(e))(t.Context(), task)
			if o.Class != operation.OutcomeWaiting || o.ErrorCode != report.CodeInProgress || o.After <= 0 ||
				!strings.Contains(o.Detail, before.Name+" of operation op_other") || !strings.HasSuffix(o.ActionText, operation.ThenRetry) {
				t.Errorf("%+v", o)
			}
			if n := made(client, "jobs", ""); n != 0 {
				t.Errorf("%d jobs were asked for", n)
			}
			if len(shown) != 1 || shown[0].Resource != "job/"+fakeNS+"/"+before.Name || shown[0].Rule != "operation/op_other" ||
				shown[0].Since == nil || !shown[0].Since.Equal(before.CreationTimestamp.Time) {
				t.Errorf("blockers %+v", shown)
			}
			over := before.DeepCopy()
			over.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			if err := client.Tracker().Update(batchv1.SchemeGroupVersion.WithResource("jobs"), over, fakeNS); err != nil {
				t.Fatal(err)
			}
			o = e.step(step(e))(t.Context(), task)
			if o.ErrorCode == report.CodeInProgress || made(client, "jobs", "") != 1 || len(shown) != 0 {
				t.Errorf("once that has ended: %+v, %d jobs were asked for, blockers %+v", o, made(client, "jobs", ""), shown)
			}
		})
	}
}

// TestHostThatCannotTell: a host that cannot say what became of a reset is asked again
// where one may have been begun; of one that never was its preflight says the same, and
// ends the wait.
func TestHostThatCannotTell(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempts   int
		generation int64
		code       string
		want       operation.StepPhase
	}{
		"its folder is broken":           {0, 1, report.CodeHost, operation.StepPending},
		"it does not know the question":  {0, 1, report.CodeInvalid, operation.StepPending},
		"a reset is under way":           {0, 1, report.CodeInProgress, operation.StepUnknown},
		"a later run was there":          {0, 1, report.CodeStale, operation.StepUnknown},
		"broken, and one was begun":      {1, 2, report.CodeHost, operation.StepUnknown},
		"broken, and it may have been":   {0, 1_000_002, report.CodeHost, operation.StepUnknown},
		"under way, and one was begun":   {1, 2, report.CodeInProgress, operation.StepUnknown},
		"it does not know what was done": {0, 1, report.CodeUnknown, operation.StepUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, _ := fakes(t)
				task := stepTask("op_a", 1, c.generation)
				task.Step.Attempts = c.attempts
				answers(t, client, func(n int) report.Answer {
					verb := report.VerbMark
					if n > 1 {
						verb = report.VerbPreflight
					}
					a := yes(task, verb)
					a.OK, a.Code, a.Detail, a.Device = false, c.code, "no such folder", nil
					return a
				})
				f := e.probeReset(t.Context(), task)
				if f.Phase != c.want || !strings.Contains(f.Detail, "no such folder") || f.Phase == operation.StepUnknown && f.ErrorCode != c.code {
					t.Errorf("found %+v", f)
				}
				if c.want == operation.StepUnknown {
					return
				}
				if o := e.step(e.preflight)(t.Context(), task); o.Class != operation.OutcomePermanent || o.ErrorCode != "host_error" || !o.Retryable {
					t.Errorf("the preflight: %+v", o)
				}
			})
		})
	}
}
