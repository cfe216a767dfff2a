package operation

import "slices"

// Phase is where an operation stands on its way.
type Phase string

// The phases. Each comment says who moves it out.
const (
	// Pending: accepted, not started. Left by relay (dispatch), the plane
	// (start), a cancel, the deadline; failed when it cannot ever go.
	Pending Phase = "pending"
	// Dispatched: a doorbell is due to the cluster's queue. Left by a claim, a
	// cancel, the deadline; failed when it is dead-lettered or its target went.
	Dispatched Phase = "dispatched"
	// Running: an agent (or the plane) holds the lease. Left by its report, a
	// hand-back, a cancel request, the loss of the lease, the deadline.
	Running Phase = "running"
	// Reconciling: an answer never came, so what an issued step did is unknown.
	// Left by a claim whose probes settle it, a person's resolve, the deadline.
	Reconciling Phase = "reconciling"
	// Cancelling: a cancel was accepted and cleanup runs. Left by the outcome
	// report, the loss of the lease, the deadline.
	Cancelling Phase = "cancelling"

	// Succeeded is terminal: the wanted end state was observed.
	Succeeded Phase = "succeeded"
	// Failed is terminal; a retry moves it to pending.
	Failed Phase = "failed"
	// Cancelled is terminal.
	Cancelled Phase = "cancelled"
	// TimedOut is terminal.
	TimedOut Phase = "timed_out"
)

// Phases lists all phases in the order of the way.
var Phases = []Phase{Pending, Dispatched, Running, Reconciling, Cancelling, Succeeded, Failed, Cancelled, TimedOut}

// Terminal tells whether nothing but a retry leaves the phase.
func (p Phase) Terminal() bool {
	return p == Succeeded || p == Failed || p == Cancelled || p == TimedOut
}

// Valid tells whether p is one of Phases.
func (p Phase) Valid() bool { return slices.Contains(Phases, p) }

// Leasable tells whether an agent may hold a lease in the phase.
func (p Phase) Leasable() bool { return p == Running || p == Reconciling || p == Cancelling }

// Trigger names what asks for a transition.
type Trigger string

// The triggers.
const (
	ByRelay    Trigger = "relay"        // the doorbell becomes due
	ByPlane    Trigger = "plane"        // the plane starts what never reaches a cluster
	ByClaim    Trigger = "claim"        // an agent takes the lease
	BySettled  Trigger = "settled"      // a claimant's probes settled what was unknown
	ByReport   Trigger = "report"       // the holder reports an outcome
	ByHandBack Trigger = "hand_back"    // the holder gives the work back untouched
	ByCancel   Trigger = "cancel"       // a person or program cancels
	ByLoss     Trigger = "lease_lost"   // the lease ended without an outcome
	ByDeadline Trigger = "deadline"     // the deadline passed
	ByDead     Trigger = "cannot_start" // dead letter, or its target is gone
	ByResolve  Trigger = "resolve"      // a person settled a step by evidence
	ByRetry    Trigger = "retry"        // a person or program asks for another run
)

// Transition is one legal move.
type Transition struct {
	From, To Phase
	By       Trigger
}

// Transitions is the one table of legal moves. Apply refuses every other, and
// the diagram in the docs is generated from it.
var Transitions = []Transition{
	{Pending, Dispatched, ByRelay},
	{Pending, Running, ByPlane},
	{Pending, Cancelled, ByCancel},
	{Pending, TimedOut, ByDeadline},
	{Pending, Failed, ByDead},

	{Dispatched, Running, ByClaim},
	{Dispatched, Cancelled, ByCancel},
	{Dispatched, TimedOut, ByDeadline},
	{Dispatched, Failed, ByDead},

	{Running, Succeeded, ByReport},
	{Running, Failed, ByReport},
	{Running, TimedOut, ByReport},
	{Running, Reconciling, ByReport},
	{Running, Dispatched, ByHandBack},
	{Running, Cancelling, ByCancel},
	{Running, Reconciling, ByLoss},
	{Running, TimedOut, ByDeadline},

	{Reconciling, Running, BySettled},
	{Reconciling, Cancelling, BySettled},
	{Reconciling, Succeeded, ByReport},
	{Reconciling, Failed, ByReport},
	{Reconciling, Cancelled, ByReport},
	{Reconciling, TimedOut, ByReport},
	{Reconciling, Dispatched, ByResolve},
	{Reconciling, Succeeded, ByResolve},
	{Reconciling, Failed, ByResolve},
	{Reconciling, Cancelled, ByResolve},
	{Reconciling, TimedOut, ByDeadline},

	{Cancelling, Succeeded, ByReport},
	{Cancelling, Failed, ByReport},
	{Cancelling, Cancelled, ByReport},
	{Cancelling, TimedOut, ByReport},
	{Cancelling, Reconciling, ByReport},
	{Cancelling, Reconciling, ByLoss},
	{Cancelling, TimedOut, ByDeadline},

	{Failed, Pending, ByRetry},
}

// Legal tells whether the table has the move.
func Legal(from, to Phase, by Trigger) bool {
	return slices.Contains(Transitions, Transition{From: from, To: to, By: by})
}
