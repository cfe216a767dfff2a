package operation

import "fmt"

// Expire: the deadline has passed and no agent can act on it any more.
type Expire struct{}

func (Expire) apply(tx *transaction) error {
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
	silent := tx.silent()
	switch {
	case silent != "":
		detail += fmt.Sprintf("; agent %s was not heard of any more, and no other took over", silent)
		next = NextAction{Code: ActRecoverAgent, Text: fmt.Sprintf("find out what became of agent %s, bring it or another one back%s, and ask again with a later deadline", silent, told)}
	case w != nil && w.Code == WaitNoAgent:
		next = NextAction{Code: ActRecoverAgent, Text: "bring an agent of the cluster back, and ask again with a later deadline"}
	}
	cause := Cause{ErrorCode: "deadline_exceeded", Detail: detail}
	if i := tx.firstOpen(); i >= 0 && tx.s.StartedAt != nil {
		cause.StepID = tx.spec.Steps[i].ID
	}
	tx.forget("the deadline passed and its agent was not heard of")
	tx.endLease("deadline")
	tx.finish(Result{Outcome: TimedOut, Message: detail, Cause: &cause, Residual: tx.left(), Cleanup: tx.abandoned(), NextAction: &next})
	return tx.move(TimedOut, ByDeadline, Sweep, "deadline_exceeded", detail)
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
