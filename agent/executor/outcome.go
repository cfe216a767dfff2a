package executor

import (
	"context"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// retryAfter is when a step that gave no other time is tried again.
const retryAfter = 200 * time.Millisecond

// Permanent is the outcome of a step that no further attempt would bring to its
// end. What a person can do about the code is filled in.
func Permanent(code, detail string) Outcome {
	o := Outcome{Class: operation.OutcomePermanent, ErrorCode: code, Detail: detail}
	o.Retryable, o.ActionCode, o.ActionText = Action(code)
	return o
}

// Transient is the outcome of an attempt that may come through next time, within
// the step's budget.
func Transient(code, detail string) Outcome {
	o := Outcome{Class: operation.OutcomeTransient, After: retryAfter, ErrorCode: code, Detail: detail}
	_, o.ActionCode, o.ActionText = Action(code)
	o.Retryable = true
	return o
}

// Waiting is the outcome of a step that stopped at a consistent boundary, with
// what it waits for: nothing went wrong, and it costs no attempt.
func Waiting(code, detail string) Outcome {
	o := Transient(code, detail)
	o.Class = operation.OutcomeWaiting
	return o
}

// Ambiguous is the outcome of an effect whose answer never came.
func Ambiguous(detail string) Outcome {
	return Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: "answer_lost", Detail: detail, Retryable: true,
		ActionCode: operation.ActRetry, ActionText: "wait until the cluster was read"}
}

// HandBack is the outcome of a step that another agent should go on with:
// nothing is in flight. The loop gives the lease back and leaves the operation
// to others for HandBackFor; a lone agent takes it up again after that.
func HandBack(code, detail string) Outcome {
	return Outcome{Class: ClassHandBack, ErrorCode: code, Detail: detail, Retryable: true}
}

// ClassHandBack is the class of HandBack; it never leaves the agent.
const ClassHandBack = "hand_back"

// HandBackFor is how long an agent leaves an operation that it handed back to
// the other agents of its cluster.
const HandBackFor = 20 * time.Second

// DeniedFor is how long an API server must keep saying that a right is missing until
// that is believed: one that has just started says so of every right, until it has read
// its roles.
const DeniedFor = 5 * time.Second

// Nothing is the outcome of a cleanup step that had nothing to clean up.
func Nothing(detail string) Outcome {
	o := Done(detail)
	o.Nothing = true
	return o
}

// Found is the finding that the step's end state holds.
func Found(detail string) Finding {
	return Finding{Phase: operation.StepSucceeded, Detail: detail}
}

// FoundNothing is the finding that there is nothing for a cleanup step to clean up.
func FoundNothing(detail string) Finding {
	f := Found(detail)
	f.Nothing = true
	return f
}

// ToRun is the finding that the step is not done, or half done, with nothing in
// flight: it may be executed.
func ToRun(detail string) Finding { return Finding{Phase: operation.StepPending, Detail: detail} }

// Lost is the finding that the step failed for good.
func Lost(code, detail string) Finding {
	return Finding{Phase: operation.StepFailed, ErrorCode: code, Detail: detail}
}

// Unknown is the finding that nobody can tell what became of the step.
func Unknown(code, detail string) Finding {
	return Finding{Phase: operation.StepUnknown, ErrorCode: code, Detail: detail}
}

// Halted tells whether a step has to stop before its next effect: "interrupted"
// when ctx has ended, "cancelled" on a cancel, else "". A cleanup step is what a
// cancel calls for, so a cancel does not stop it.
func Halted(ctx context.Context, t *Task) string {
	if ctx.Err() != nil {
		return "interrupted"
	}
	if t.Step.Cleanup || t.Cancelled == nil {
		return ""
	}
	select {
	case <-t.Cancelled:
		return "cancelled"
	default:
		return ""
	}
}

// Wait waits for at most d, and tells as Halted does whether the step has to
// stop.
func Wait(ctx context.Context, t *Task, d time.Duration) string {
	timer := time.NewTimer(d)
	defer timer.Stop()
	cancelled := t.Cancelled
	if t.Step.Cleanup {
		cancelled = nil
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-cancelled:
	}
	return Halted(ctx, t)
}
