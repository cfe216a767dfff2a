package operation

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Errors that Apply returns; match with errors.Is.
var (
	// ErrIllegal: the transition table has no such move.
	ErrIllegal = errors.New("illegal transition")
	// ErrLeaseLost: the caller does not hold the newest lease.
	ErrLeaseLost = errors.New("lease lost")
	// ErrNotCancelable: the running step cannot be interrupted.
	ErrNotCancelable = errors.New("not cancelable")
	// ErrTerminal: the operation has ended.
	ErrTerminal = errors.New("operation has ended")
	// ErrNotReplaySafe: a step that may have run must not run again by itself.
	ErrNotReplaySafe = errors.New("not replay-safe")
	// ErrNotRetryable: it ran too often, or its failure does not go away.
	ErrNotRetryable = errors.New("not retryable")
	// ErrInvalidReport: the report does not fit the plan.
	ErrInvalidReport = errors.New("invalid report")
	// ErrNoChange: the change is already in effect; nothing to commit.
	ErrNoChange = errors.New("no change")
)

// MaxRuns bounds the runs of one operation, the first included.
const MaxRuns = 5

// maxAttempts bounds the attempts kept on a step; earlier ones are in the
// journal.
const maxAttempts = 20

// maxAttemptDetail bounds an attempt's detail, in bytes; the journal has it
// whole. With the other bounds it keeps a state below what one item takes.
const maxAttemptDetail = 256

// maxAssignments bounds the assignments kept on an operation; earlier ones are
// in the journal.
const maxAssignments = 100

// Change is one thing that happens to an operation. Each is a type of this
// package; see Dispatch, Claim, Report and the others.
type Change interface{ apply(*transaction) error }

// transaction is one Apply under way.
type transaction struct {
	spec    *Spec
	s       State
	at      time.Time
	entries []Entry
	// shown: what a person sees changed without an entry that says so.
	shown bool
	// generation is the one before the change.
	generation int64
}

// Apply returns the state after the change and the journal entries that record
// it, sealed. It is pure. On an error nothing changed: ErrIllegal and the
// others say why.
func Apply(spec *Spec, s State, c Change, at time.Time) (State, []Entry, error) {
	tx := &transaction{spec: spec, s: s.Clone(), generation: s.Generation, at: at.UTC().Truncate(time.Millisecond)}
	if err := c.apply(tx); err != nil {
		return s, nil, err
	}
	head, err := Seal(s.Journal, tx.entries)
	if err != nil {
		return s, nil, err
	}
	tx.s.Journal = head
	if len(tx.entries) > 0 || tx.shown {
		tx.s.Revision++
		tx.s.UpdatedAt = tx.at
	}
	return tx.s, tx.entries, nil
}

// Admit returns the first state of an operation and its first entry.
func Admit(spec *Spec, deadline time.Time) (State, []Entry, error) {
	s := State{
		ID: spec.ID, Type: spec.Request.Type, Cluster: spec.Cluster, Parent: spec.Parent, ActorID: spec.Actor.ID,
		Phase: Pending, Run: 1, Revision: 1, Deadline: deadline, CreatedAt: spec.CreatedAt, UpdatedAt: spec.CreatedAt,
		PhaseSince: spec.CreatedAt, PlaneLocal: spec.PlaneLocal, Steps: make([]StepState, len(spec.Steps)),
	}
	for i := range s.Steps {
		s.Steps[i].Phase = StepPending
	}
	entries := []Entry{{
		At: spec.CreatedAt, Kind: EntryTransition, To: Pending, By: spec.Actor, Reason: spec.Request.Reason,
		After: jsonOf(map[string]any{"phase": Pending, "deadline": deadline, "resources": spec.Resources}),
	}}
	head, err := Seal(JournalHead{}, entries)
	if err != nil {
		return State{}, nil, err
	}
	s.Journal = head
	return s, entries, nil
}

// moved is what a transition's entry says of the operation before and after it.
type moved struct {
	Cause      *Cause `json:"cause,omitempty"`
	Generation int64  `json:"generation"`
	Phase      Phase  `json:"phase"`
}

// stepped is what a step's entry says of the step before and after it.
type stepped struct {
	Attempt *int      `json:"attempt,omitempty"` // afterwards, 0 when there was none
	Phase   StepPhase `json:"phase"`
}

// move is the only place that assigns a phase.
func (tx *transaction) move(to Phase, by Trigger, actor Actor, reason, detail string) error {
	from := tx.s.Phase
	if !Legal(from, to, by) {
		return fmt.Errorf("%w: %s to %s by %s", ErrIllegal, from, to, by)
	}
	before := moved{Phase: from, Generation: tx.generation}
	tx.s.Phase, tx.s.PhaseSince = to, tx.at
	if to != Reconciling {
		tx.s.Probes = 0
	}
	if to != Pending && to != Dispatched && to != Reconciling {
		tx.setWaiting(nil)
	}
	if to.Terminal() {
		at := tx.at
		tx.s.FinishedAt = &at
	}
	after := moved{Phase: to, Generation: tx.s.Generation}
	if to.Terminal() && tx.s.Result != nil {
		after.Cause = tx.s.Result.Cause
	}
	tx.entries = append(tx.entries, Entry{
		At: tx.at, Kind: EntryTransition, From: from, To: to, By: actor, Reason: reason, Detail: detail,
		Generation: tx.s.Generation, Before: jsonOf(before), After: jsonOf(after),
	})
	return nil
}

// note adds an entry that is no transition.
func (tx *transaction) note(e Entry) {
	e.At, e.Generation = tx.at, tx.s.Generation
	tx.entries = append(tx.entries, e)
}

func (tx *transaction) setWaiting(w *Waiting) {
	old := tx.s.Waiting
	if old == nil && w == nil {
		return
	}
	if old != nil && w != nil && old.Code == w.Code {
		same := *w // the change is not ours to write to
		same.Since = old.Since
		tx.shown = tx.shown || same != *old
		tx.s.Waiting = &same
		return
	}
	if w != nil {
		own := *w
		own.Since = recorded(w.Since)
		w = &own
	}
	tx.s.Waiting = w
	e := Entry{Kind: EntryWaiting, By: Plane, Before: jsonOf(old), After: jsonOf(w)}
	if w != nil {
		e.Reason, e.Detail = w.Code, w.Detail
	}
	tx.note(e)
}

// endLease closes the open assignment.
func (tx *transaction) endLease(how string) {
	if tx.s.Lease == nil {
		return
	}
	at := tx.at
	if n := len(tx.s.Assignments); n > 0 {
		a := &tx.s.Assignments[n-1]
		a.Until, a.Ended = &at, how
	}
	tx.note(Entry{Kind: EntryLeaseEnded, By: Actor{ID: tx.s.Lease.Agent, Kind: "agent"}, Reason: how})
	tx.s.Lease = nil
}

// holds checks that agent and generation are the lease's.
func (tx *transaction) holds(agent string, generation int64) error {
	l := tx.s.Lease
	if l == nil || l.Agent != agent || l.Generation != generation || tx.s.Generation != generation {
		return fmt.Errorf("%w: generation %d of %s", ErrLeaseLost, generation, agent)
	}
	return nil
}

// forget turns running steps to unknown: their holder is gone.
func (tx *transaction) forget(detail string) {
	for i := range tx.s.Steps {
		st := &tx.s.Steps[i]
		if st.Phase == StepRunning {
			phase := StepUnknown
			if !tx.spec.Steps[i].Effect {
				phase = StepPending // it only reads: nothing can be left behind
			}
			tx.setStep(i, phase, OutcomeAmbiguous, codeLeaseLost, detail, "")
		}
	}
}

// setStep moves a step, opening or closing its attempt, and journals it.
func (tx *transaction) setStep(i int, phase StepPhase, outcome, code, detail, command string) {
	st := &tx.s.Steps[i]
	before := st.Phase
	at := tx.at
	open := len(st.Attempts) > 0 && st.Attempts[len(st.Attempts)-1].EndedAt == nil
	if open && (phase != StepRunning || outcome != "") {
		a := &st.Attempts[len(st.Attempts)-1]
		a.EndedAt, a.Outcome, a.ErrorCode, a.Detail = &at, outcome, code, cut(detail, maxAttemptDetail)
		open = false
	}
	switch {
	case phase == StepRunning && st.Resolved != nil:
		st.Resolved, st.Reissued = nil, st.Resolved
	case before == StepUnknown && phase != StepRunning && phase != StepUnknown: // a probe could tell; a person sets Resolved next
		st.Reissued = nil
	}
	if phase == StepRunning && !open {
		n := 1
		if len(st.Attempts) > 0 {
			n = st.Attempts[len(st.Attempts)-1].N + 1
		}
		st.Attempts = append(st.Attempts, Attempt{N: n, Run: tx.s.Run, Generation: tx.s.Generation, StartedAt: at})
		if len(st.Attempts) > maxAttempts {
			st.Attempts = st.Attempts[len(st.Attempts)-maxAttempts:]
		}
		if st.StartedAt == nil {
			st.StartedAt = &at
		}
	}
	st.Phase = phase
	st.ErrorCode, st.Detail, st.CommandID = code, detail, command
	st.FinishedAt = nil
	if phase.Settled() {
		st.FinishedAt = &at
	}
	tx.note(Entry{
		Kind: EntryStep, By: tx.holder(), StepID: tx.spec.Steps[i].ID, Step: tx.spec.Steps[i].Name, Reason: code, Detail: detail,
		Before: jsonOf(stepped{Phase: before}), After: jsonOf(stepped{Phase: phase, Attempt: new(st.LastAttempt())}),
	})
}

// holder is the agent with the lease, or the plane.
func (tx *transaction) holder() Actor {
	if tx.s.Lease != nil {
		return Actor{ID: tx.s.Lease.Agent, Kind: "agent"}
	}
	return Plane
}

// firstOpen returns the index of the first step of the main line that is not
// settled, or -1.
func (tx *transaction) firstOpen() int {
	for i, p := range tx.spec.Steps {
		if !p.Cleanup && !tx.s.Steps[i].Phase.Settled() {
			return i
		}
	}
	return -1
}

// Cancelable tells whether a cancel would be accepted now.
func Cancelable(spec *Spec, s *State) bool {
	if s.Phase.Terminal() {
		return false
	}
	if s.Phase != Running {
		return true
	}
	for i := range s.Steps {
		if s.Steps[i].Phase == StepRunning && !spec.Steps[i].Interruptible {
			return false
		}
	}
	return true
}

// NeedsProbe tells whether a claimant must probe before it issues anything.
// A later run probes even under its first lease: others may have worked on the
// resources since the operation failed.
func NeedsProbe(spec *Spec, s *State) bool {
	return s.Generation > 1 || s.Run > 1 || s.Phase == Reconciling || len(spec.Unsettled) > 0
}

// recorded is an instant as it reads back from the record: without the reading of
// the process's own monotonic clock.
func recorded(t time.Time) time.Time { return t.UTC().Round(0) }

func jsonOf(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
