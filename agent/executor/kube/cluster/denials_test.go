package cluster

import (
	"context"
	"fmt"
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
		{executor.DeniedFor - 1, denied, operation.OutcomeWaiting},
		{executor.DeniedFor, denied, operation.OutcomePermanent},
		{executor.DeniedFor, denied, operation.OutcomeWaiting}, // of a later run
		{executor.DeniedFor + 1, executor.Done(""), operation.OutcomeDone},
		{3 * executor.DeniedFor, denied, operation.OutcomeWaiting},
		{3 * executor.DeniedFor, executor.Permanent("node_gone", ""), operation.OutcomePermanent},
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

// An operation that waits for hours may meet an API server that restarts several
// times: each of them is another occasion. One that lasts is believed, however often
// the step is tried meanwhile.
func TestDenialsOfSeveralOccasions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		runs []time.Duration // how long each try lasts until it is denied
		want string          // of the last; the others wait
		told int
	}{
		"restarts an hour apart":      {runs: []time.Duration{0, time.Hour, time.Hour}, want: operation.OutcomeWaiting, told: 3},
		"restarts minutes apart":      {runs: []time.Duration{0, 0, 3 * time.Minute, 0}, want: operation.OutcomeWaiting, told: 2},
		"within one restart":          {runs: []time.Duration{0, executor.DeniedFor - 2*deniedPause}, want: operation.OutcomeWaiting, told: 1},
		"it lasts":                    {runs: make([]time.Duration, executor.DeniedFor/deniedPause+1), want: operation.OutcomePermanent, told: 1},
		"it lasts, and a try is slow": {runs: []time.Duration{0, executor.DeniedFor}, want: operation.OutcomePermanent, told: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d Denials
			now, notes := time.Now(), 0
			tk := &executor.Task{Assignment: &protocol.Assignment{Operation: "op_1"}, Note: func(string, string) { notes++ }}
			for i, lasts := range tc.runs {
				step := d.Lenient(func() time.Time { return now }, func(context.Context, *executor.Task) executor.Outcome {
					now = now.Add(lasts)
					return executor.Permanent("forbidden", "cannot create pods/eviction")
				})
				want := operation.OutcomeWaiting
				if i == len(tc.runs)-1 {
					want = tc.want
				}
				o := step(t.Context(), tk)
				if o.Class != want {
					t.Fatalf("try %d: %+v", i+1, o)
				}
				now = now.Add(o.After)
			}
			if notes != tc.told {
				t.Errorf("told %d times", notes)
			}
		})
	}
}

// Where there are too many, the operation is forgotten that met it longest ago, and no other.
func TestDenialsThatAreTooMany(t *testing.T) {
	t.Parallel()
	var d Denials
	now := time.Now()
	met := func(i int, after time.Duration) (first bool) {
		_, first = d.Believed(now.Add(after), &protocol.Assignment{Operation: fmt.Sprint("op_", i)}, executor.Permanent("forbidden", ""))
		return first
	}
	for i := range maxDenied + 1 {
		met(i, time.Duration(i))
	}
	for i := 1; i <= maxDenied; i++ {
		if met(i, time.Microsecond) {
			t.Fatalf("%d was forgotten", i)
		}
	}
	if !met(0, time.Microsecond) {
		t.Error("the oldest is remembered")
	}
}
