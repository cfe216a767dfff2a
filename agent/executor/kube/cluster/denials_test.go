package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestDenialsAreBelievedWhenTheyLast(t *testing.T) {
	t.Parallel()
	var d Denials
	now, notes := time.Now(), 0
	tk := &executor.Task{Assignment: &protocol.Assignment{Operation: "op_1"}, Note: func(string, string) { notes++ }}
	denied := executor.Permanent("forbidden", "cannot patch nodes")
	denied.CommandID = "cmd_1"
	for _, tc := range []struct {
		after time.Duration
		o     executor.Outcome
		want  string
	}{
		{0, denied, operation.OutcomeWaiting},
		{DeniedFor - 1, denied, operation.OutcomeWaiting},
		{DeniedFor, denied, operation.OutcomePermanent},
		{DeniedFor, denied, operation.OutcomeWaiting}, // of a later run
		{DeniedFor + 1, executor.Done(""), operation.OutcomeDone},
		{3 * DeniedFor, denied, operation.OutcomeWaiting},
		{3 * DeniedFor, executor.Permanent("node_gone", ""), operation.OutcomePermanent},
	} {
		step := d.Lenient(func() time.Time { return now.Add(tc.after) }, func(context.Context, *executor.Task) executor.Outcome { return tc.o })
		got := step(t.Context(), tk)
		if got.Class != tc.want || got.ErrorCode != tc.o.ErrorCode || got.CommandID != tc.o.CommandID || (got.Class == operation.OutcomeWaiting) != (got.After > 0) {
			t.Errorf("after %s: %+v", tc.after, got)
		}
	}
	if notes != 3 {
		t.Errorf("told %d times", notes)
	}
}
