package operation

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Report is what the lease holder tells since its last report.
type Report struct {
	Agent      string
	Generation int64
	// N counts up from 1 under one lease; a resend changes nothing.
	N        int64
	Steps    []StepReport
	Notes    []ReportNote
	Progress *Progress
	Settled  bool
	Final    *Final
}

// StepReport tells where one step stands.
type StepReport struct {
	StepID    string
	Phase     StepPhase
	Outcome   string
	ErrorCode string
	Detail    string
	CommandID string
}

// ReportNote is an observation for the journal.
type ReportNote struct{ Code, Detail, StepID string }

// Final outcomes of a report; see package protocol for their meaning on the
// wire.
const (
	FinalSucceeded = "succeeded"
	FinalFailed    = "failed"
	FinalCancelled = "cancelled"
	FinalTimedOut  = "timed_out"
	FinalAmbiguous = "ambiguous"
	FinalHandBack  = "hand_back"
)

// Final ends the lease.
type Final struct {
	Outcome     string
	Message     string
	Cause       *Cause
	Retryable   bool
	NextAction  *NextAction
	Verified    []string
	NotVerified []string
	Residual    []Residual
	Cleanup     *Cleanup
	Details     json.RawMessage
	// Observed: the agent read the target at the end. What it saw left behind is
	// Residual then, and what it does not name is not.
	Observed bool
}

func (c Report) apply(tx *transaction) error {
	if err := tx.holds(c.Agent, c.Generation); err != nil {
		return err
	}
	if c.N <= tx.s.Lease.LastReport {
		return ErrNoChange
	}
	tx.s.Lease.LastReport = c.N
	for _, r := range c.Steps {
		i := tx.spec.StepIndex(r.StepID)
		if i < 0 {
			return fmt.Errorf("%w: step %q is not of this plan", ErrInvalidReport, r.StepID)
		}
		switch r.Phase {
		case StepPending, StepRunning, StepSucceeded, StepFailed, StepSkipped, StepUnknown:
		default:
			return fmt.Errorf("%w: step phase %q", ErrInvalidReport, r.Phase)
		}
		if tx.spec.Bars(&tx.s, i, r.Phase) {
			tx.note(Entry{Kind: EntryNote, By: Plane, Reason: CodeCancelled, StepID: r.StepID, Step: tx.spec.Steps[i].Name,
				Detail: "the step is not begun: a cancel was accepted before"})
			continue
		}
		tx.setStep(i, r.Phase, r.Outcome, r.ErrorCode, r.Detail, r.CommandID)
	}
	for _, n := range c.Notes {
		tx.note(Entry{Kind: EntryNote, By: tx.holder(), Reason: n.Code, Detail: n.Detail, StepID: n.StepID})
	}
	tx.setProgress(c.Progress)
	if c.Settled && tx.s.Phase == Reconciling {
		if err := tx.settle(); err != nil {
			return err
		}
	}
	if c.Final == nil {
		return nil
	}
	return tx.end(*c.Final)
}

// Bars tells whether step i must not come to the phase, since a cancel was accepted before
// it began and nothing interrupts it once it has.
func (s *Spec) Bars(st *State, i int, phase StepPhase) bool {
	p := s.Steps[i]
	return phase == StepRunning && st.Cancel != nil && st.Steps[i].Phase != StepRunning && p.outlasts() && !p.Cleanup
}

// unknown returns the index of the first step that nobody knows the outcome of,
// or -1.
func (tx *transaction) unknown() int {
	return slices.IndexFunc(tx.s.Steps, func(st StepState) bool { return st.Phase == StepUnknown })
}

// settle leaves reconciling when no step is unknown any more.
func (tx *transaction) settle() error {
	if i := tx.unknown(); i >= 0 {
		return fmt.Errorf("%w: step %s is still unknown", ErrInvalidReport, tx.spec.Steps[i].Name)
	}
	to := Running
	if tx.s.Cancel != nil {
		to = Cancelling
	}
	return tx.move(to, BySettled, tx.holder(), "", "its agent read the state of every unfinished step")
}

// end ends the lease with an outcome. What the report claims is checked against
// the plan: success needs every required step.
func (tx *transaction) end(f Final) error {
	actor := tx.holder()
	r := Result{Message: f.Message, Cause: f.Cause, Retryable: f.Retryable, NextAction: f.NextAction,
		Verified: f.Verified, NotVerified: f.NotVerified, Residual: f.Residual, Details: f.Details}
	if f.Cleanup != nil {
		r.Cleanup = *f.Cleanup
	}
	switch f.Outcome {
	case FinalHandBack:
		for i := range tx.s.Steps {
			if tx.s.Steps[i].Phase == StepRunning {
				tx.setStep(i, StepPending, OutcomeWaiting, "hand_back", "handed back", "")
			}
		}
		// What failed is being cleaned up: a cancel in between must not end that.
		probe := tx.s.Phase != Running || tx.unknown() >= 0 || tx.firstFailed() >= 0
		if probe {
			tx.forget("handed back")
		}
		tx.endLease("handed_back")
		at := tx.at
		tx.s.RungAt, tx.s.Rings = &at, 0
		if probe { // the next holder reads the world first
			return tx.reconcile(actor, "hand_back", f.Message, Waiting{Code: WaitProbe, Detail: "handed back; an agent is to read the state of every unfinished step"})
		}
		return tx.move(Dispatched, ByHandBack, actor, "hand_back", f.Message)
	case FinalAmbiguous:
		return tx.ambiguous(actor, f.Message)
	case FinalSucceeded:
		for i, p := range tx.spec.Steps {
			if p.Required && !p.Cleanup && tx.s.Steps[i].Phase != StepSucceeded {
				return fmt.Errorf("%w: succeeded, but required step %s is %s", ErrInvalidReport, p.Name, tx.s.Steps[i].Phase)
			}
		}
		r.Outcome, r.Cause, r.NextAction, r.Retryable = Succeeded, nil, nil, false
	case FinalFailed:
		r.Outcome = Failed
		if r.Cause == nil {
			r.Cause = &Cause{ErrorCode: "unspecified", Detail: "the agent named no cause"}
		}
		if r.NextAction == nil {
			r.NextAction = &NextAction{Code: ActEscalate, Text: "read the cause and the journal"}
		}
	case FinalCancelled:
		if tx.s.Cancel == nil {
			return fmt.Errorf("%w: cancelled, but nobody asked for it", ErrInvalidReport)
		}
		r.Outcome = Cancelled
	case FinalTimedOut:
		if tx.at.Add(deadlineSlack).Before(tx.s.Deadline) {
			return fmt.Errorf("%w: timed_out %s before the deadline", ErrInvalidReport, tx.s.Deadline.Sub(tx.at))
		}
		r.Outcome = TimedOut
		if r.Cause == nil {
			r.Cause = &Cause{ErrorCode: "deadline_exceeded", Detail: "the deadline passed"}
		}
		if r.NextAction == nil {
			r.NextAction = &NextAction{Code: ActEscalate, Text: "mend what the cause names and ask again with a later deadline"}
		}
	default:
		return fmt.Errorf("%w: outcome %q", ErrInvalidReport, f.Outcome)
	}
	if n := r.NextAction; n != nil && n.Text == "" { // whoever gave the code had no words for it
		text := "read the cause and the journal"
		if n.Code == ActRetry {
			text = "retry"
		}
		r.NextAction = &NextAction{Code: n.Code, Text: text}
	}
	again := "ask for a new operation"
	if r.Outcome == TimedOut {
		again = "ask again with a later deadline"
	}
	if r.Retryable = r.Retryable && r.Outcome == Failed && tx.runsAgain(); !r.Retryable && r.NextAction != nil {
		r.NextAction = &NextAction{Code: r.NextAction.Code, Text: notRetry(r.NextAction.Text, again)}
	}
	left := tx.residual()
	if !f.Observed && (r.Outcome == TimedOut || r.Outcome == Cancelled || r.Cleanup.State == CleanupAbandoned) {
		left = tx.left()
	}
	r.Residual = tx.besides(tx.ownResidual(r.Residual), left)
	r.NotVerified = append(slices.Clone(r.NotVerified), tx.onTrust()...)
	tx.endLease("reported")
	tx.finish(r)
	reason := ""
	if r.Cause != nil {
		reason = r.Cause.ErrorCode
	}
	return tx.move(r.Outcome, ByReport, actor, reason, r.Message)
}

// deadlineSlack is how early an agent's own clock may call the deadline: the
// durations it was told were rounded to milliseconds, and its clock may drift.
const deadlineSlack = 2 * time.Second

// ambiguous ends the lease without an outcome. The first probe is rung for at
// once; while probes cannot tell, further ones come with back-off, and between
// them a person can resolve.
func (tx *transaction) ambiguous(actor Actor, detail string) error {
	tx.forget(detail)
	tx.endLease("ambiguous")
	w := Waiting{Code: WaitProbe, Detail: "an agent is to read what became of it: " + detail}
	if tx.s.Phase == Reconciling {
		tx.s.Probes++
		w = Waiting{Code: WaitResolve, Detail: "no probe could tell: " + detail, Need: "a later probe, or a person's resolve with evidence"}
	}
	at := tx.at
	tx.s.RungAt, tx.s.Rings = &at, tx.s.Probes
	return tx.reconcile(actor, "ambiguous", detail, w)
}

// reconcile moves to reconciling, or stays there, and says what it waits for.
func (tx *transaction) reconcile(actor Actor, reason, detail string, w Waiting) error {
	if tx.s.Phase != Reconciling {
		if err := tx.move(Reconciling, ByReport, actor, reason, detail); err != nil {
			return err
		}
	}
	w.Since = tx.at
	tx.setWaiting(&w)
	return nil
}

// Resolve outcomes: what a person knows of a step.
const (
	ResolveDone    = "succeeded"
	ResolveFailed  = "failed"
	ResolveNotDone = "not_done" // it never took effect: it may be issued
)

// Resolve settles by evidence what no probe could.
type Resolve struct {
	StepID   string
	Outcome  string
	By       Actor
	Evidence string
	Reason   string
}

func (c Resolve) apply(tx *transaction) error {
	if tx.s.Phase != Reconciling || tx.s.Lease != nil {
		return fmt.Errorf("%w: resolve in %s", ErrIllegal, tx.s.Phase)
	}
	i := tx.spec.StepIndex(c.StepID)
	if i < 0 || tx.s.Steps[i].Phase != StepUnknown {
		return fmt.Errorf("%w: step %q is not one whose outcome is unknown", ErrInvalidReport, c.StepID)
	}
	phase := map[string]StepPhase{ResolveDone: StepSucceeded, ResolveFailed: StepFailed, ResolveNotDone: StepPending}[c.Outcome]
	if phase == "" {
		return fmt.Errorf("%w: outcome %q", ErrInvalidReport, c.Outcome)
	}
	tx.note(Entry{Kind: EntryResolve, By: c.By, Reason: c.Reason, Detail: c.Evidence, StepID: c.StepID, Step: tx.spec.Steps[i].Name,
		Before: jsonOf(map[string]any{"phase": tx.s.Steps[i].Phase}), After: jsonOf(map[string]any{"phase": phase})})
	tx.setStep(i, phase, OutcomeDone, "resolved", c.Evidence, "")
	tx.s.Steps[i].Resolved = &Resolution{By: c.By, Outcome: c.Outcome, Evidence: c.Evidence, At: tx.at}
	at := tx.at
	tx.s.RungAt, tx.s.Rings = &at, 0
	if tx.unknown() >= 0 {
		return nil // more to settle first
	}
	tx.setWaiting(nil)
	failed := tx.firstFailed()
	switch {
	case failed >= 0:
		retryable := tx.runsAgain()
		next := NextAction{Code: ActRetry, Text: "see that nothing of it is under way any more and mend what failed" + ThenRetry}
		if !retryable {
			next = NextAction{Code: ActEscalate, Text: "bring what the step left into order, and ask for a new operation: it probes first"}
		}
		tx.finish(Result{Outcome: Failed, Message: "settled by " + c.By.ID + ": " + c.Evidence,
			Cause:     &Cause{ErrorCode: "resolved_failed", StepID: tx.spec.Steps[failed].ID, Detail: tx.s.Steps[failed].Detail},
			Retryable: retryable, NextAction: &next, Residual: tx.left(), Cleanup: tx.abandoned()})
		return tx.move(Failed, ByResolve, c.By, c.Reason, c.Evidence)
	case tx.firstOpen() < 0:
		tx.finish(Result{Outcome: Succeeded, Message: "settled by " + c.By.ID, NotVerified: tx.onTrust(), Residual: tx.residual()})
		return tx.move(Succeeded, ByResolve, c.By, c.Reason, c.Evidence)
	case tx.s.Cancel != nil:
		tx.finish(Result{Outcome: Cancelled, Message: "cancelled; settled by " + c.By.ID, Residual: tx.left(), Cleanup: tx.abandoned()})
		return tx.move(Cancelled, ByResolve, c.By, c.Reason, c.Evidence)
	}
	return tx.move(Dispatched, ByResolve, c.By, c.Reason, c.Evidence)
}

// onTrust lists the steps that rest on a person's word.
func (tx *transaction) onTrust() []string {
	var out []string
	for i, st := range tx.s.Steps {
		if st.Resolved != nil {
			out = append(out, fmt.Sprintf("step %s, settled as %s by %s: %s", tx.spec.Steps[i].Name, st.Resolved.Outcome, st.Resolved.By.ID, st.Resolved.Evidence))
		}
	}
	return out
}

// firstFailed returns the index of the first required step that ended without
// its end state, or -1: the operation cannot succeed any more.
func (tx *transaction) firstFailed() int {
	for i, p := range tx.spec.Steps {
		if ph := tx.s.Steps[i].Phase; p.Required && !p.Cleanup && (ph == StepFailed || ph == StepSkipped) {
			return i
		}
	}
	return -1
}
