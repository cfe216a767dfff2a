package operation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// ThenRetry ends the text of a next action after which the failed operation may be
// retried. Whoever words one need not know whether this one may: the plane says what to
// do instead where it may not.
const ThenRetry = ", then retry"

// Retry runs a failed operation again: failed steps once more, done ones not.
type Retry struct {
	By       Actor
	Reason   string
	Deadline time.Time
}

func (c Retry) apply(tx *transaction) error {
	if tx.s.Phase != Failed {
		return fmt.Errorf("%w: retry in %s", ErrIllegal, tx.s.Phase)
	}
	if err := Retryable(tx.spec, &tx.s); err != nil {
		return err
	}
	tx.s.Run++
	tx.s.Result, tx.s.FinishedAt, tx.s.Cancel, tx.s.Progress, tx.s.Stood = nil, nil, nil, nil, nil
	tx.s.Deadline = recorded(c.Deadline)
	if err := tx.move(Pending, ByRetry, c.By, c.Reason, fmt.Sprintf("run %d", tx.s.Run)); err != nil {
		return err
	}
	undone := tx.cleanupBegun()
	for i := range tx.s.Steps {
		if tx.s.Steps[i].Phase != StepSucceeded || undone || tx.spec.Steps[i].Cleanup {
			tx.s.Steps[i].Phase = StepPending
			tx.s.Steps[i].Resolved, tx.s.Steps[i].Reissued = nil, nil // of the run before: this one is probed
			tx.s.Steps[i].FinishedAt = nil
			tx.s.Steps[i].Progress = nil
			tx.s.Steps[i].ErrorCode, tx.s.Steps[i].Detail, tx.s.Steps[i].CommandID = "", "", ""
		}
	}
	return nil
}

// cleanupBegun tells whether a cleanup step ran, so that what earlier steps
// achieved may have been undone: the next run begins anew, by probes.
func (tx *transaction) cleanupBegun() bool {
	for i, p := range tx.spec.Steps {
		if p.Cleanup && len(tx.s.Steps[i].Attempts) > 0 {
			return true
		}
	}
	return false
}

// Retryable tells why a failed operation may not run again, or nil.
func Retryable(spec *Spec, s *State) error {
	if s.Run >= MaxRuns {
		return fmt.Errorf("%w: it ran %d times, the limit is %d", ErrNotRetryable, s.Run, MaxRuns)
	}
	for i, st := range s.Steps {
		if (st.Phase == StepFailed || st.Phase == StepUnknown) && len(st.Attempts) > 0 && !spec.Steps[i].ReplaySafe {
			return fmt.Errorf("%w: step %s was started and running it twice is not safe", ErrNotReplaySafe, spec.Steps[i].Name)
		}
	}
	if s.Result != nil && !s.Result.Retryable {
		why := ""
		if c := s.Result.Cause; c != nil {
			why = fmt.Sprintf(" (%s: %s)", c.ErrorCode, c.Detail)
		}
		return fmt.Errorf("%w: its failure%s does not go away by running it again", ErrNotRetryable, why)
	}
	return nil
}

// runsAgain tells whether the operation could be retried if it failed now: a step that
// is under way fails with it.
func (tx *transaction) runsAgain() bool {
	s := State{Run: tx.s.Run, Steps: slices.Clone(tx.s.Steps)}
	for i := range s.Steps {
		if s.Steps[i].Phase == StepRunning {
			s.Steps[i].Phase = StepFailed
		}
	}
	return Retryable(tx.spec, &s) == nil
}

// notRetry words what to do where the operation may not be retried.
func notRetry(text, instead string) string {
	if text == "retry" {
		return instead
	}
	if mend, ok := strings.CutSuffix(text, ThenRetry); ok {
		return mend + ", then " + instead
	}
	return text
}
