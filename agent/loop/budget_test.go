package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// A step that must not be replayed has one budget, however many leases there
// are; waiting takes nothing from it.
func TestBudgetOverLeases(t *testing.T) {
	const (
		waits   = operation.OutcomeWaiting
		again   = operation.OutcomeTransient
		unknown = operation.OutcomeAmbiguous // ends the lease; the probe finds it pending
		done    = operation.OutcomeDone
	)
	once := func(s *operation.PlanStep) { s.ReplaySafe, s.MaxAttempts = false, 2 }
	safe := func(s *operation.PlanStep) { s.MaxAttempts = 2 }
	for _, tc := range []struct {
		name     string
		kind     func(*operation.PlanStep)
		outcomes []string // of each call, in order
		want     operation.Phase
		calls    int
		attempts int
		code     string
	}{
		{"the claim's attempt counts once", once, []string{again, done}, operation.Succeeded, 2, 2, ""},
		{"used up in one lease", once, []string{again, again, done}, operation.Failed, 2, 2, "busy"},
		{"used up in two", once, []string{unknown, again, done}, operation.Failed, 2, 2, "busy"},
		{"nothing left for the second", once, []string{again, unknown, done}, operation.Failed, 2, 2, "busy"},
		{"nothing left for the third", once, []string{unknown, unknown, done}, operation.Failed, 2, 2, "busy"},
		{"the last one works", once, []string{unknown, done}, operation.Succeeded, 2, 2, ""},
		{"waiting is no failure", once, []string{waits, waits, unknown, waits, waits, done}, operation.Succeeded, 6, 2, ""},
		{"safe to replay: by the lease", safe, []string{unknown, again, done}, operation.Succeeded, 3, 3, ""},
		{"safe to replay: used up", safe, []string{unknown, again, again, done}, operation.Failed, 3, 3, "busy"},
	} {
		for _, first := range []bool{true, false} { // the claim starts it, or the run
			t.Run(fmt.Sprintf("%s, first=%v", tc.name, first), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *bench) {
					calls := 0
					b.exec.execute["reset"] = func(context.Context, *executor.Task) executor.Outcome {
						calls++
						return executor.Outcome{Class: tc.outcomes[calls-1], ErrorCode: "busy"}
					}
					plan := []operation.PlanStep{step("reset", effect, firm, tc.kind), step("verify")}
					if !first {
						plan = slices.Insert(plan, 0, step("preflight"))
					}
					b.start()
					op := b.plane.submit("budget", time.Hour, plan...)
					s := b.plane.ended(t, op, 10*time.Minute)
					attempts := len(s.Steps[len(plan)-2].Attempts)
					if s.Phase != tc.want || calls != tc.calls || attempts != tc.attempts {
						t.Fatalf("ended %s after %d calls in %d attempts: %+v", s.Phase, calls, attempts, s.Result)
					}
					if tc.want != operation.Failed {
						return
					}
					if s.Result.Cause.ErrorCode != tc.code || s.Result.Cause.StepID == "" || s.Result.Retryable != plan[len(plan)-2].ReplaySafe {
						t.Errorf("cause %+v, retryable %v", s.Result.Cause, s.Result.Retryable)
					}
					if s.Result.NextAction.Text == "" {
						t.Errorf("next %+v", s.Result.NextAction)
					}
					phases := b.plane.phases(op)
					if diff := cmp.Diff([]string{"reset:failed", "verify:skipped"}, phases[len(phases)-2:]); diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}

// TestUsedUpNamesWhatItMet: where no attempt is left, what the last one met is the cause,
// though a probe has found since that it may be tried again, and somebody is told what to
// do about it.
func TestUsedUpNamesWhatItMet(t *testing.T) {
	for name, tc := range map[string]struct {
		out       executor.Outcome
		untold    bool // the plane does not tell what it met
		code, act string
	}{
		"a lost answer":  {out: executor.Ambiguous("create job: failed calling webhook gate"), code: "answer_lost", act: operation.ActEscalate},
		"a known code":   {out: executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: "no_pod", Detail: "failed calling webhook gate"}, code: "no_pod", act: operation.ActRestoreDependency},
		"an older plane": {out: executor.Ambiguous("create job: failed calling webhook gate"), untold: true, code: codeExhausted, act: operation.ActEscalate},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.exec.execute["reset"] = func(context.Context, *executor.Task) executor.Outcome { return tc.out }
				b.plane.locked(func() { b.plane.untold = tc.untold })
				b.start()
				op := b.plane.submit("budget", time.Hour, step("reset", effect, firm, func(s *operation.PlanStep) { s.ReplaySafe, s.MaxAttempts = false, 2 }))
				s := b.plane.ended(t, op, 10*time.Minute)
				if s.Phase != operation.Failed || len(s.Steps[0].Attempts) != 2 {
					t.Fatalf("ended %s after %d attempts", s.Phase, len(s.Steps[0].Attempts))
				}
				c, next := s.Result.Cause, s.Result.NextAction
				if c.ErrorCode != tc.code || !strings.Contains(c.Detail, "its 2 attempts were used up") || strings.Contains(c.Detail, "webhook gate") == tc.untold {
					t.Errorf("cause %+v", c)
				}
				if s.Result.Retryable || next.Code != tc.act || !strings.HasSuffix(next.Text, "ask for a new operation") {
					t.Errorf("retryable %v, next %+v", s.Result.Retryable, next)
				}
			})
		})
	}
}
