package operation

import (
	"cmp"
	"fmt"
	"time"
)

// Codes that an agent gives to a step which the end of its operation cut short; no
// failure of the step's own.
const (
	CodeDeadline  = "deadline_exceeded"
	CodeCancelled = "cancelled"
)

// FailedItself tells whether the step, in this phase with this code, is one that success
// needs and that failed, and was not cut short.
func (p PlanStep) FailedItself(phase StepPhase, code string) bool {
	return p.Required && !p.Cleanup && phase == StepFailed && code != CodeCancelled && code != CodeDeadline
}

// Expire: the deadline has passed and no agent can act on it any more. Where a step had
// failed before, that is the cause: the first one stands.
type Expire struct {
	// Away is since when, at the latest, the plane itself did not look after the
	// operation: it was not running, or far behind. Zero: it did.
	Away time.Time
}

// takesOver is how long a lost lease may be without a holder though other agents are
// there: a doorbell is on its way to them, or they wait to try the plane again.
const takesOver = 20 * time.Second

func (c Expire) apply(tx *transaction) error {
	if tx.s.Phase.Terminal() {
		return ErrTerminal
	}
	detail := "the deadline passed"
	next := NextAction{Code: ActEscalate, Text: "look at the journal for what it waited for, mend that, and ask again with a later deadline"}
	w, told := tx.s.Waiting, ""
	switch p := tx.s.Progress; {
	case w != nil:
		detail += " while it waited: " + w.Code + ": " + w.Detail
	case p != nil && p.Message != "":
		detail += " in step " + p.Step + ": " + p.Message
		told = ", mend what it waited for"
	}
	silent, gone := tx.silent(), "the deadline passed and its agent was not heard of"
	switch {
	case tx.s.Lease != nil && !c.Away.IsZero():
		gone = fmt.Sprintf("%s, and could not hear of agent %s", tx.away(c.Away), silent)
		detail += "; " + gone
		next = NextAction{Code: ActEscalate, Text: fmt.Sprintf("find out why the plane was away then%s, and ask again with a later deadline: agent %s may be well", told, silent)}
	case silent != "" && tx.s.Lease == nil && tx.sinceLost() < takesOver:
		detail += fmt.Sprintf("; the lease of agent %s was lost %s before that, too late for another to take over", silent, tx.sinceLost().Round(time.Second))
		next = NextAction{Code: ActEscalate, Text: fmt.Sprintf("see whether agent %s is online%s, and ask again with a later deadline", silent, told)}
	case silent != "":
		detail += fmt.Sprintf("; agent %s was not heard of any more, and no other took over", silent)
		next = NextAction{Code: ActRecoverAgent, Text: fmt.Sprintf("find out what became of agent %s, bring it or another one back%s, and ask again with a later deadline", silent, told)}
	case w != nil && w.Code == WaitNoAgent:
		next = NextAction{Code: ActRecoverAgent, Text: "bring an agent of the cluster back, and ask again with a later deadline"}
	case !c.Away.IsZero():
		detail += "; " + tx.away(c.Away)
		next = NextAction{Code: ActEscalate, Text: "find out why the plane was away then" + told + ", and ask again with a later deadline"}
	}
	cause := Cause{ErrorCode: CodeDeadline, Detail: detail}
	if i := tx.firstOpen(); i >= 0 && tx.s.StartedAt != nil {
		cause.StepID = tx.spec.Steps[i].ID
	}
	tx.forget(gone)
	tx.endLease("deadline")
	if i := tx.failedItself(); i >= 0 {
		cause, next = tx.failure(i, detail, next)
		detail = cause.Detail
	}
	tx.finish(Result{Outcome: TimedOut, Message: detail, Cause: &cause, Residual: tx.left(), Cleanup: tx.abandoned(), NextAction: &next})
	return tx.move(TimedOut, ByDeadline, Sweep, CodeDeadline, detail)
}

// failedItself returns the index of the first step that failed by itself, or -1.
func (tx *transaction) failedItself() int {
	for i, st := range tx.s.Steps {
		if tx.spec.Steps[i].FailedItself(st.Phase, st.ErrorCode) {
			return i
		}
	}
	return -1
}

// failure is the cause and what to do where a step had failed and only its cleanup was
// waited for. The advice of the step's code is its agent's to give, and the plane's is
// general; late says how the deadline passed, and next what that alone asks for.
func (tx *transaction) failure(step int, late string, next NextAction) (Cause, NextAction) {
	st, said := tx.s.Steps[step], tx.spec.Steps[step].Name+" failed"
	if st.Detail != "" {
		said += ": " + st.Detail
	}
	text := "mend what failed, bring what it left into order, and ask for a new operation"
	if next.Code == ActRecoverAgent {
		text = "bring an agent of the cluster back, " + text
	}
	return Cause{ErrorCode: cmp.Or(st.ErrorCode, "step_failed"), StepID: tx.spec.Steps[step].ID, CommandID: st.CommandID, Detail: said + "; then " + late},
		NextAction{Code: next.Code, Text: text}
}

// silent is the agent that held the operation last and was not heard of any more; ""
// where its lease ended otherwise.
func (tx *transaction) silent() string {
	if tx.s.Lease != nil {
		return tx.s.Lease.Agent
	}
	if n := len(tx.s.Assignments); n > 0 && tx.s.Assignments[n-1].Ended == "lease_lost" {
		return tx.s.Assignments[n-1].Agent
	}
	return ""
}

// sinceLost is how long before the deadline the last lease was lost.
func (tx *transaction) sinceLost() time.Duration {
	return max(0, tx.s.Deadline.Sub(*tx.s.Assignments[len(tx.s.Assignments)-1].Until))
}

// away says when the plane did not look after the operation: no agent could tell it
// anything then.
func (tx *transaction) away(since time.Time) string {
	return fmt.Sprintf("the plane did not look after it from %s to %s", since.UTC().Format(time.RFC3339), tx.at.Format(time.RFC3339))
}
