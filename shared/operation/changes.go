package operation

import (
	"fmt"
	"slices"
	"time"
)

// Dispatch: relay says that a doorbell is due. Pending to dispatched. Waiting
// says why nobody is going to answer it yet.
type Dispatch struct{ Waiting *Waiting }

func (c Dispatch) apply(tx *transaction) error {
	if tx.s.PlaneLocal {
		return fmt.Errorf("%w: it never reaches a cluster", ErrIllegal)
	}
	if err := tx.move(Dispatched, ByRelay, Relay, "", ""); err != nil {
		return err
	}
	at := tx.at
	tx.s.RungAt, tx.s.Rings = &at, 1
	tx.setWaiting(c.Waiting)
	return nil
}

// Ring: the doorbell is due once more. No entry: nothing but time passed.
type Ring struct{ Waiting *Waiting }

func (c Ring) apply(tx *transaction) error {
	if tx.s.Phase.Terminal() || tx.s.Lease != nil || (!tx.s.PlaneLocal && tx.s.Phase != Dispatched && tx.s.Phase != Reconciling) {
		return ErrNoChange
	}
	at := tx.at
	tx.s.RungAt = &at
	tx.s.Rings++
	if !tx.s.PlaneLocal && (tx.s.Waiting == nil || tx.s.Waiting.Code != WaitResolve) {
		tx.setWaiting(c.Waiting)
	}
	return nil
}

// NotRung: the doorbell that was due could not be sent. It is due again, and
// does not count for the back-off.
type NotRung struct{}

func (NotRung) apply(tx *transaction) error {
	if tx.s.Phase.Terminal() || tx.s.Lease != nil || tx.s.Rings == 0 {
		return ErrNoChange
	}
	tx.s.Rings = 0
	return nil
}

// Wait sets or clears (nil) why the operation does not go on.
type Wait struct{ Waiting *Waiting }

func (c Wait) apply(tx *transaction) error {
	if tx.s.Lease != nil || (tx.s.Phase != Pending && tx.s.Phase != Dispatched && tx.s.Phase != Reconciling) {
		return ErrNoChange
	}
	if (c.Waiting == nil && tx.s.Waiting == nil) ||
		(c.Waiting != nil && tx.s.Waiting != nil && c.Waiting.Code == tx.s.Waiting.Code && c.Waiting.Detail == tx.s.Waiting.Detail) {
		return ErrNoChange
	}
	tx.setWaiting(c.Waiting)
	return nil
}

// Claim: an agent takes the lease. Dispatched to running; in reconciling the
// phase stays until its probes have settled what is unknown.
type Claim struct {
	Agent, Boot string
	Until       time.Time
}

func (c Claim) apply(tx *transaction) error {
	if tx.s.Lease != nil {
		return fmt.Errorf("%w: held by %s", ErrLeaseLost, tx.s.Lease.Agent)
	}
	actor := Actor{ID: c.Agent, Kind: "agent"}
	tx.s.Generation++
	tx.keepStood()
	tx.s.Lease = &Lease{Agent: c.Agent, Boot: c.Boot, Generation: tx.s.Generation, From: tx.at, Until: recorded(c.Until)}
	tx.s.Assignments = append(tx.s.Assignments, Assignment{Agent: c.Agent, Generation: tx.s.Generation, From: tx.at})
	if n := len(tx.s.Assignments) - maxAssignments; n > 0 {
		tx.s.Assignments = tx.s.Assignments[n:]
	}
	at := tx.at
	if tx.s.StartedAt == nil {
		tx.s.StartedAt = &at
	}
	tx.s.RungAt, tx.s.Rings = nil, 0
	switch tx.s.Phase {
	case Dispatched:
		if err := tx.move(Running, ByClaim, actor, "", ""); err != nil {
			return err
		}
	case Reconciling:
		if tx.s.Waiting != nil && tx.s.Waiting.Code != WaitResolve { // that lasts until a probe can tell
			tx.setWaiting(nil)
		}
		tx.note(Entry{Kind: EntryLeaseClaimed, By: actor, Detail: "to probe what is unknown"})
	default:
		return fmt.Errorf("%w: claim in %s", ErrIllegal, tx.s.Phase)
	}
	if !NeedsProbe(tx.spec, &tx.s) {
		if i := tx.firstOpen(); i >= 0 {
			tx.setStep(i, StepRunning, "", "", "", "")
		}
	}
	return nil
}

// Renew: the holder's lease goes on. No entry.
type Renew struct {
	Agent      string
	Generation int64
	Until      time.Time
	Progress   *Progress
}

func (c Renew) apply(tx *transaction) error {
	if err := tx.holds(c.Agent, c.Generation); err != nil {
		return err
	}
	tx.s.Lease.Until = recorded(c.Until)
	tx.setProgress(c.Progress)
	return nil
}

func (tx *transaction) setProgress(p *Progress) {
	if p == nil {
		return
	}
	p = tx.since(p)
	tx.shown = tx.shown || !tx.s.Progress.Equal(p)
	tx.s.Progress = p
	for i, st := range tx.spec.Steps {
		if st.Name == p.Step {
			own := *p
			own.Blockers = nil // the operation shows them; once is enough
			tx.s.Steps[i].Progress = &own
		}
	}
}

// RequestCancel: a person or program asks for the end. It ends what nobody
// holds, and asks the holder otherwise.
type RequestCancel struct {
	By     Actor
	Reason string
}

func (c RequestCancel) apply(tx *transaction) error {
	if tx.s.Phase.Terminal() {
		return ErrTerminal
	}
	if tx.s.Phase == Running && !Cancelable(tx.spec, &tx.s) {
		return ErrNotCancelable
	}
	if tx.s.Cancel != nil {
		return ErrNoChange
	}
	tx.s.Cancel = &CancelRequest{By: c.By, Reason: c.Reason, RequestedAt: tx.at}
	tx.note(Entry{Kind: EntryCancelRequest, By: c.By, Reason: c.Reason, After: jsonOf(tx.s.Cancel)})
	switch tx.s.Phase {
	case Pending, Dispatched:
		message := "cancelled before it started"
		if tx.s.StartedAt != nil {
			message = "cancelled while no agent held it"
		}
		tx.finish(Result{Outcome: Cancelled, Message: message, Residual: tx.left(), Cleanup: tx.abandoned()})
		return tx.move(Cancelled, ByCancel, c.By, c.Reason, "")
	case Running:
		return tx.move(Cancelling, ByCancel, c.By, c.Reason, "")
	}
	return nil // reconciling records the request; cancelling has one already
}

// LoseLease: the lease and one call deadline have run out and no outcome came.
type LoseLease struct {
	// Away is since when, at the latest, the plane itself did not look after the
	// operation. Zero: it did.
	Away time.Time
}

func (c LoseLease) apply(tx *transaction) error {
	if tx.s.Lease == nil || !tx.s.Phase.Leasable() {
		return ErrNoChange
	}
	detail := fmt.Sprintf("agent %s was not heard of", tx.s.Lease.Agent)
	if !c.Away.IsZero() {
		detail = fmt.Sprintf("%s, and could not hear of agent %s", tx.away(c.Away), tx.s.Lease.Agent)
	}
	tx.forget(detail)
	tx.endLease("lease_lost")
	at := tx.at
	tx.s.RungAt, tx.s.Rings = &at, 0
	if tx.s.Phase == Reconciling {
		return nil
	}
	return tx.move(Reconciling, ByLoss, Sweep, "lease_lost", detail)
}

// CannotStart: it cannot ever go. Pending or dispatched to failed.
type CannotStart struct {
	Cause      Cause
	Retryable  bool
	NextAction NextAction
}

func (c CannotStart) apply(tx *transaction) error {
	cause, next := c.Cause, c.NextAction
	tx.finish(Result{Outcome: Failed, Message: cause.Detail, Cause: &cause, Retryable: c.Retryable, NextAction: &next,
		Residual: tx.left(), Cleanup: tx.abandoned()})
	return tx.move(Failed, ByDead, Plane, cause.ErrorCode, cause.Detail)
}

// StartLocal: the plane starts what never reaches a cluster.
type StartLocal struct{}

func (StartLocal) apply(tx *transaction) error {
	if !tx.s.PlaneLocal {
		return fmt.Errorf("%w: it is for a cluster", ErrIllegal)
	}
	at := tx.at
	if tx.s.StartedAt == nil {
		tx.s.StartedAt = &at
	}
	return tx.move(Running, ByPlane, Plane, "", "")
}

// UpdateChildren records how a plan's children stand.
type UpdateChildren struct {
	Counts ChildCounts
	Detail string // journaled when not empty
}

func (c UpdateChildren) apply(tx *transaction) error {
	if tx.s.Children != nil && *tx.s.Children == c.Counts && c.Detail == "" {
		return ErrNoChange
	}
	tx.children(c.Counts)
	if c.Detail != "" {
		tx.note(Entry{Kind: EntryChild, By: Plane, Detail: c.Detail, After: jsonOf(c.Counts)})
	}
	return nil
}

// children sets how a plan's children stand, and the progress that says so.
func (tx *transaction) children(counts ChildCounts) {
	tx.shown = true
	tx.s.Children = &counts
	done := counts.Succeeded + counts.Failed + counts.Cancelled + counts.Skipped
	tx.s.Progress = &Progress{Step: "children", Done: done, Total: counts.Total, Unit: "operations",
		Message: fmt.Sprintf("%d of %d operations ended, %d active, %d failed", done, counts.Total, counts.Active, counts.Failed)}
}

// FinishLocal ends what the plane ran.
type FinishLocal struct {
	Counts ChildCounts
	Result Result
}

func (c FinishLocal) apply(tx *transaction) error {
	tx.children(c.Counts)
	tx.finish(c.Result)
	return tx.move(c.Result.Outcome, ByReport, Plane, "", c.Result.Message)
}

// LateReport keeps what an old lease holder said, once, and changes nothing
// else.
type LateReport struct {
	Agent      string
	Generation int64
	Detail     string
}

func (c LateReport) apply(tx *transaction) error {
	i := slices.IndexFunc(tx.s.Assignments, func(a Assignment) bool { return a.Agent == c.Agent && a.Generation == c.Generation })
	if i < 0 || tx.s.Assignments[i].Late {
		return ErrNoChange
	}
	tx.s.Assignments[i].Late = true
	tx.note(Entry{Kind: EntryLateReport, By: Actor{ID: c.Agent, Kind: "agent"}, Detail: c.Detail,
		After: jsonOf(map[string]any{"report_generation": c.Generation})})
	return nil
}

// finish sets the result; the caller moves the phase.
func (tx *transaction) finish(r Result) {
	for i, p := range tx.spec.Steps {
		st := &tx.s.Steps[i]
		switch st.Phase {
		case StepSucceeded:
			if !p.Cleanup {
				r.Completed = append(r.Completed, p.Name)
			}
		case StepPending:
			at := tx.at
			st.Phase, st.FinishedAt = StepSkipped, &at
		case StepRunning:
			at := tx.at
			st.Phase, st.FinishedAt = StepFailed, &at
			if n := len(st.Attempts); n > 0 && st.Attempts[n-1].EndedAt == nil {
				st.Attempts[n-1].EndedAt = &at
			}
		}
	}
	if r.Completed == nil {
		r.Completed = []string{}
	}
	if r.Residual == nil {
		r.Residual = []Residual{}
	}
	if r.Verified == nil {
		r.Verified = []string{}
	}
	if r.NotVerified == nil {
		r.NotVerified = []string{}
	}
	if r.Cleanup.State == "" {
		r.Cleanup.State = CleanupNone
	}
	tx.s.Result = &r
}

// abandoned is the state of the cleanup when the plane ends what an agent had
// begun: nobody is there to run what is left of it.
func (tx *transaction) abandoned() Cleanup {
	begun, due, c := false, false, Cleanup{State: CleanupNone}
	for i, p := range tx.spec.Steps {
		switch st := tx.s.Steps[i]; {
		case !p.Cleanup:
			begun = begun || (p.Effect && len(st.Attempts) > 0)
		case !st.Phase.Settled():
			due = true
		case st.Phase == StepFailed:
			c = Cleanup{State: CleanupFailed, Detail: p.Name + ": " + st.Detail}
		case c.State != CleanupNone:
		case st.Phase == StepSucceeded:
			c = Cleanup{State: CleanupDone}
		case len(st.Attempts) > 0: // it had nothing to clean up
			c.Detail = p.Name + ": " + st.Detail
		}
	}
	if begun && due {
		return Cleanup{State: CleanupAbandoned, Detail: "no agent held the operation when it ended"}
	}
	return c
}
