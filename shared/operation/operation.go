// Package operation is the domain of operations: what one is, which moves it
// may make, how a request becomes a plan, what it locks, and what its end means.
//
// It is pure: no storage, no HTTP, no clock of its own. Adapters load a State,
// call Apply, and commit what it returns together with the journal entries.
package operation

import (
	"encoding/json"
	"slices"
	"time"
)

// ContractVersion is the version of the request contract that admission
// applied; it stays on the operation.
const ContractVersion = "2026-11-01"

// Actor is who asked for something, or which part of the plane did it.
type Actor struct {
	ID   string `json:"id"`
	Kind string `json:"kind"` // token, oidc, agent, plane
	Name string `json:"name,omitempty"`
}

// Parts of the plane that appear as actors.
var (
	Relay = Actor{ID: "relay", Kind: "plane"}
	Sweep = Actor{ID: "sweep", Kind: "plane"}
	Plane = Actor{ID: "plane", Kind: "plane"}
)

// Lock modes.
const (
	Exclusive = "exclusive"
	Shared    = "shared"
)

// Lock is a right that the operation takes on a resource.
type Lock struct {
	Resource string `json:"resource"`
	Mode     string `json:"mode"` // Exclusive or Shared
}

// Decision records one gate of admission: who decided what, by which rule.
type Decision struct {
	Gate   string `json:"gate"` // authn, authz, validation, target, locks, force, capability
	Result string `json:"result"`
	Rule   string `json:"rule"`
	By     string `json:"by"`
	Detail string `json:"detail,omitempty"`
}

// Request is a request for an operation as it was accepted.
type Request struct {
	Type              string          `json:"type"`
	Target            string          `json:"target"`
	Cluster           string          `json:"cluster,omitempty"`
	Reason            string          `json:"reason"`
	Deadline          *time.Time      `json:"deadline,omitempty"`
	Payload           json.RawMessage `json:"payload,omitempty"`
	RequestedRevision *int64          `json:"requested_revision,omitempty"`
}

// PlanStep is one ordered part of the plan, fixed at admission.
type PlanStep struct {
	ID            string   `json:"id"`
	Name          string   `json:"name"`
	Title         string   `json:"title"`
	Resources     []string `json:"resources"`
	Required      bool     `json:"required"`
	Interruptible bool     `json:"interruptible"`
	// ReplaySafe: running it again after it ran does no harm.
	ReplaySafe bool `json:"replay_safe"`
	// Effect: it changes the world, so the plane must know that it started
	// before it touches anything.
	Effect bool `json:"effect"`
	// Cleanup: it runs only before cancelled, failed or timed_out.
	Cleanup    bool   `json:"cleanup,omitempty"`
	Capability string `json:"capability"` // what the agent must be able to do
	MinVersion int    `json:"min_version"`
	Risk       string `json:"risk"` // none, low, medium, high
	// MaxAttempts bounds retries of transient failures by the agent itself.
	MaxAttempts int `json:"max_attempts"`
}

// Spec is the part of an operation that never changes after admission.
type Spec struct {
	ID              string     `json:"id"`
	Request         Request    `json:"request"`
	ContractVersion string     `json:"contract_version"`
	TargetID        string     `json:"target_id"`
	TargetName      string     `json:"target_name"`
	TargetUID       string     `json:"target_uid,omitempty"` // the object's own identity in its cluster
	NodeName        string     `json:"node_name,omitempty"`  // of a device target
	Cluster         string     `json:"cluster,omitempty"`
	Resources       []string   `json:"resources"`
	Locks           []Lock     `json:"locks"`
	Steps           []PlanStep `json:"steps"`
	Decisions       []Decision `json:"decisions"`
	Actor           Actor      `json:"actor"`
	Parent          string     `json:"parent,omitempty"`
	ChildIndex      int        `json:"child_index,omitempty"`
	RequestID       string     `json:"request_id"`
	CorrelationID   string     `json:"correlation_id"`
	CreatedAt       time.Time  `json:"created_at"`
	PlaneLocal      bool       `json:"plane_local,omitempty"`
	// Unsettled lists operations that left a resource of this one unsettled:
	// it is probed before anything is issued.
	Unsettled []string `json:"unsettled,omitempty"`
}

// StepPhase is where a step stands.
type StepPhase string

// The step phases.
const (
	StepPending   StepPhase = "pending"   // not started
	StepRunning   StepPhase = "running"   // an agent said that it starts it
	StepSucceeded StepPhase = "succeeded" // its end state was observed
	StepFailed    StepPhase = "failed"    // it ended without
	StepSkipped   StepPhase = "skipped"   // not needed, as a cleanup of nothing, or never begun
	StepUnknown   StepPhase = "unknown"   // issued, and nobody knows what it did
)

// Settled tells whether nothing more is to be learnt about the step.
func (p StepPhase) Settled() bool { return p == StepSucceeded || p == StepFailed || p == StepSkipped }

// Outcome classes: how an attempt ended.
const (
	OutcomeDone      = "done"
	OutcomeWaiting   = "waiting"   // try again after a while; nothing is wrong
	OutcomeTransient = "transient" // may go away by itself
	OutcomePermanent = "permanent" // will not
	OutcomeAmbiguous = "ambiguous" // nobody knows
)

// Attempt is one try at a step.
type Attempt struct {
	N          int        `json:"n"`
	Run        int        `json:"run"` // which run of the operation (retries count up from 1)
	Generation int64      `json:"generation"`
	StartedAt  time.Time  `json:"started_at"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	Outcome    string     `json:"outcome,omitempty"`
	ErrorCode  string     `json:"error_code,omitempty"`
	Detail     string     `json:"detail,omitempty"`
}

// StepState is the part of a step that changes.
type StepState struct {
	Phase      StepPhase  `json:"phase"`
	StartedAt  *time.Time `json:"started_at,omitempty"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
	Attempts   []Attempt  `json:"attempts,omitempty"`
	Progress   *Progress  `json:"progress,omitempty"`
	ErrorCode  string     `json:"error_code,omitempty"`
	Detail     string     `json:"detail,omitempty"`
	CommandID  string     `json:"command_id,omitempty"` // the command that caused a failure
	// Resolved is who settled the step, when a person did and it was not issued
	// since: no probe overrules them.
	Resolved *Resolution `json:"resolved,omitempty"`
	// Reissued is on whose word the step was issued again, until its outcome is unknown
	// once more and a probe can tell it. What else a probe finds leaves it: listed for
	// too long is better than forgotten.
	Reissued *Resolution `json:"reissued,omitempty"`
}

// Resolution is a person's word on a step, with the evidence.
type Resolution struct {
	By       Actor     `json:"by"`
	Outcome  string    `json:"outcome"`
	Evidence string    `json:"evidence"`
	At       time.Time `json:"at"`
}

// LastAttempt is the number of the step's last attempt, 0 before the first.
// Attempts holds only the latest ones.
func (st StepState) LastAttempt() int {
	if n := len(st.Attempts); n > 0 {
		return st.Attempts[n-1].N
	}
	return 0
}

// Waiting says why a pending or dispatched operation does not go on.
type Waiting struct {
	Code   string    `json:"code"`
	Since  time.Time `json:"since"`
	Detail string    `json:"detail"`
	Need   string    `json:"need,omitempty"`
	Have   string    `json:"have,omitempty"`
	Holder string    `json:"holder,omitempty"`
}

// The registry of waiting codes (open: later types add theirs).
const (
	WaitNoAgent      = "no_agent"           // no agent of the cluster is online
	WaitIncompatible = "agent_incompatible" // no online agent has what the plan needs
	WaitConflict     = "conflict"           // another operation holds a resource
	WaitResolve      = "resolve"            // no probe can settle it: a person must
	WaitProbe        = "probe"              // waiting for an agent to probe
	WaitQuota        = "quota"
	WaitCapacity     = "capacity"
	WaitParent       = "parent"
	WaitWindow       = "window"
)

// CancelRequest is who asked for the cancel, and why.
type CancelRequest struct {
	By          Actor     `json:"by"`
	Reason      string    `json:"reason,omitempty"`
	RequestedAt time.Time `json:"requested_at"`
}

// Lease is an agent's time-limited right to the operation.
type Lease struct {
	Agent      string    `json:"agent"`
	Boot       string    `json:"boot"`
	Generation int64     `json:"generation"`
	From       time.Time `json:"from"`
	Until      time.Time `json:"until"`
	// LastReport is the highest report number taken under this lease; a resend
	// of it or of a lower one is dropped.
	LastReport int64 `json:"last_report"`
}

// Assignment is the record of a lease.
type Assignment struct {
	Agent      string     `json:"agent"`
	Generation int64      `json:"generation"`
	From       time.Time  `json:"from"`
	Until      *time.Time `json:"until"`
	Ended      string     `json:"ended,omitempty"` // reported, handed_back, lease_lost, deadline, ambiguous
	// Late: its holder reported an outcome after it had ended; kept once.
	Late bool `json:"late,omitempty"`
}

// Cause is the first causal failure.
type Cause struct {
	ErrorCode string `json:"error_code"`
	StepID    string `json:"step_id,omitempty"`
	CommandID string `json:"command_id,omitempty"`
	Detail    string `json:"detail"`
}

// NextAction says what a person can do about a failure.
type NextAction struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// The codes of NextAction.
const (
	ActCorrectInput      = "correct_input"
	ActRestoreDependency = "restore_dependency"
	ActRecoverAgent      = "recover_agent"
	ActRetry             = "retry"
	ActCancel            = "cancel"
	ActEscalate          = "escalate"
)

// Residual is something left behind that nobody proved the state of.
type Residual struct {
	StepID   string `json:"step_id"`
	Step     string `json:"step"`
	Resource string `json:"resource"`
	Detail   string `json:"detail"`
}

// Cleanup states.
const (
	CleanupNone      = "none"
	CleanupDone      = "done"
	CleanupFailed    = "failed"
	CleanupAbandoned = "abandoned"
)

// Cleanup says how the cleanup steps ended.
type Cleanup struct {
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// Result is how the operation ended.
type Result struct {
	Outcome     Phase           `json:"outcome"`
	Message     string          `json:"message"`
	Cause       *Cause          `json:"cause"`
	Retryable   bool            `json:"retryable"`
	NextAction  *NextAction     `json:"next_action"`
	Completed   []string        `json:"completed"`
	Residual    []Residual      `json:"residual"`
	Verified    []string        `json:"verified"`
	NotVerified []string        `json:"not_verified"`
	Cleanup     Cleanup         `json:"cleanup"`
	Details     json.RawMessage `json:"details,omitempty"` // the type's own findings, such as per-pod outcomes
}

// ChildCounts sums up a plan's children.
type ChildCounts struct {
	Total     int `json:"total"`
	Waiting   int `json:"waiting"` // not admitted yet
	Active    int `json:"active"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"` // failed or timed out
	Cancelled int `json:"cancelled"`
	Skipped   int `json:"skipped"` // never admitted
}

// JournalHead is the end of the operation's hash chain.
type JournalHead struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// State is the part of an operation that changes. A few fields of the spec are
// repeated so that lists and sweeps need not read it.
type State struct {
	// Format is the store's, of what it wrote; see package record, StateFormat.
	Format  int    `json:"format,omitempty"`
	ID      string `json:"id"`
	Type    string `json:"type"`
	Cluster string `json:"cluster,omitempty"`
	Parent  string `json:"parent,omitempty"`
	ActorID string `json:"actor_id"`
	Phase   Phase  `json:"phase"`
	Run     int    `json:"run"` // 1, and one more for each retry
	// Revision counts what a person can see of it, from 1: entries, progress,
	// counts. A renewal that brings nothing else keeps it, and UpdatedAt too.
	Revision    int64          `json:"revision"`
	Generation  int64          `json:"generation"`
	Lease       *Lease         `json:"lease,omitempty"`
	Assignments []Assignment   `json:"assignments,omitempty"`
	Steps       []StepState    `json:"steps"`
	Waiting     *Waiting       `json:"waiting,omitempty"`
	Cancel      *CancelRequest `json:"cancel,omitempty"`
	Progress    *Progress      `json:"progress,omitempty"`
	Stood       []Stood        `json:"stood,omitempty"` // what Progress showed before this lease
	Deadline    time.Time      `json:"deadline"`
	CreatedAt   time.Time      `json:"created_at"`
	UpdatedAt   time.Time      `json:"updated_at"`
	StartedAt   *time.Time     `json:"started_at,omitempty"`
	FinishedAt  *time.Time     `json:"finished_at,omitempty"`
	PhaseSince  time.Time      `json:"phase_since"`
	Result      *Result        `json:"result,omitempty"`
	Children    *ChildCounts   `json:"children,omitempty"`
	Journal     JournalHead    `json:"journal"`
	// Tail are the journal's newest entries, up to its head, while they are few;
	// the store keeps them here and moves them on.
	Tail []Entry `json:"tail,omitempty"`
	// DueAt is when the sweep will look at the operation: at what is due next, or
	// earlier. The store keeps it; zero once the operation ended.
	DueAt time.Time `json:"due_at,omitzero"`
	// RungAt is when a doorbell was last due; sweep rings again from it.
	RungAt *time.Time `json:"rung_at,omitempty"`
	// Rings counts doorbells of this generation, for back-off. Zero beside a
	// RungAt: relay rings when the record of the change comes to it. Whoever
	// counts one up has rung itself.
	Rings int `json:"rings,omitempty"`
	// Probes counts claims in a row whose probes could not tell, for back-off.
	Probes int `json:"probes,omitempty"`
	// PlaneLocal operations never reach a cluster.
	PlaneLocal bool `json:"plane_local,omitempty"`
}

// Operation is both parts, as adapters pass it about.
type Operation struct {
	Spec  Spec
	State State
	// Version is the ledger's version of the state, for conditional writes. What
	// people go by is the state's Revision.
	Version int64
}

// Clone returns a copy of the state that shares nothing that Apply writes to.
func (s State) Clone() State {
	c := s
	c.Steps = make([]StepState, len(s.Steps))
	for i, st := range s.Steps {
		st.Attempts = append([]Attempt(nil), st.Attempts...)
		c.Steps[i] = st
	}
	c.Assignments = append([]Assignment(nil), s.Assignments...)
	if s.Lease != nil {
		l := *s.Lease
		c.Lease = &l
	}
	return c
}

// StepIndex returns the index of the step with the id, or -1.
func (s Spec) StepIndex(stepID string) int {
	return slices.IndexFunc(s.Steps, func(st PlanStep) bool { return st.ID == stepID })
}
