package device

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
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
		if c.under && (f.Phase != operation.StepUnknown || f.ErrorCode != "in_progress" || !strings.Contains(f.Detail, "may reset GPU "+fakeUUID)) ||
			!c.under && f.Phase != operation.StepPending {
			t.Errorf("%s: found %+v", name, f)
		}
	}
}
