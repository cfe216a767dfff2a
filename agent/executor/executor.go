// Package executor is the interface between the agent's loops and what carries
// work out: the simulated fleet (sim), Kubernetes (kube) or a GPU host (host).
//
// The loops own leases, deadlines, reports and retries; an executor owns the
// world. It reads it (Probe), changes it (Execute) and describes it (Observe,
// Watch, Preview), and it asks the fence before each single effect.
package executor

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// ErrFenced: the lease or the deadline has run out, or the generation is no
// longer the newest. Nothing more may be issued.
var ErrFenced = errors.New("fenced: the lease on this operation is over")

// Task is one step of one assignment, as an executor sees it.
type Task struct {
	Assignment *protocol.Assignment
	Step       protocol.Step
	// Attempt counts from 1 over all generations.
	Attempt int

	// Fence must be called directly before each effect. It returns nil, or
	// ErrFenced; the context it returns ends before the lease does, and every
	// call that changes the world uses it. One that does no harm when it lands late
	// may use the context that Execute was given instead, which ends with the lease
	// as it is renewed.
	Fence func(ctx context.Context) (context.Context, context.CancelFunc, error)
	// Progress tells how far the step is. It never blocks.
	Progress func(done, total int, unit, message string)
	// Blocked tells what stands in the way now, the worst first; empty: nothing.
	// It is shown in the operation with the time since when, so it is called
	// whenever the set changes. It never blocks.
	Blocked func(now []protocol.Blocker)
	// Begin records a command that is about to be issued and returns its id and
	// the function that records the response: category and output (which is
	// redacted and bounded on the way).
	Begin func(name, resource string) (id string, end func(category, output string))
	// Note puts an observation in the journal.
	Note func(code, detail string)
	// Cancelled is closed when a cancel is requested; an interruptible step
	// comes to a consistent boundary and returns.
	Cancelled <-chan struct{}
	// Remaining is the time left until the operation's deadline.
	Remaining func() time.Duration
}

// Finding is what a probe read: StepSucceeded (it is done), StepPending (not
// done, nothing in flight: it may be executed), StepFailed (it failed for good)
// or StepUnknown (cannot be told: it stays with a person or a later probe).
// Half done is StepPending with a detail: Execute takes it from there.
type Finding struct {
	Phase     operation.StepPhase
	ErrorCode string
	Detail    string
	// Nothing: this cleanup step is done since there is nothing for it to clean up, and
	// no earlier lease of it has cleaned up either.
	Nothing bool
	// Blocker is what keeps it from being told, where that is one thing; nil: nothing
	// that is to be named beside ErrorCode and Detail.
	Blocker *protocol.Blocker
}

// Outcome is how an attempt of a step ended.
type Outcome struct {
	Class     string        // operation.Outcome*
	After     time.Duration // for waiting and transient: when to try again
	ErrorCode string
	Detail    string
	CommandID string // the command that failed
	// Nothing: this cleanup step is done since there was nothing for it to clean up.
	Nothing bool
	// Retryable: a new run of the operation may succeed without other input.
	Retryable  bool
	ActionCode string // operation.Act*
	ActionText string
}

// Done is the outcome of a step whose end state was observed.
func Done(detail string) Outcome { return Outcome{Class: operation.OutcomeDone, Detail: detail} }

// Ending is what is known of the world at the end of an operation.
type Ending struct {
	Observed    *protocol.Inventory
	Verified    []string
	NotVerified []string
	Details     json.RawMessage
	Residual    []operation.Residual
	Message     string
}

// Delta is a change of the inventory or something that happened.
type Delta struct {
	Objects protocol.Inventory
	Gone    []string
	Events  []protocol.Event // N is left to the loop
	// Whole: what a snapshot could not tell is read now, and so another is due.
	Whole bool
}

// Executor carries operations out in one cluster. All methods may be called
// from several goroutines.
type Executor interface {
	Capabilities() []protocol.Capability
	// Probe reads the world and changes nothing.
	Probe(ctx context.Context, t *Task) Finding
	// Execute brings the step to its end state. It returns within a second of
	// ctx ending, and never lies: an effect whose answer did not come is
	// ambiguous.
	Execute(ctx context.Context, t *Task) Outcome
	// Observe describes the target at the end, whatever the outcome. The
	// assignment's steps carry the phases that the run left them in. What is
	// left behind is Residual: one entry for a step and resource of the plan.
	// Verified claims nothing that a residual doubts, or a step that is unknown.
	Observe(ctx context.Context, a *protocol.Assignment) Ending
	// Preview tells what an operation would meet, changing nothing.
	Preview(ctx context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error)
	// Snapshot returns the whole inventory.
	Snapshot(ctx context.Context) (protocol.Inventory, error)
	// Watch calls f with changes until ctx ends.
	Watch(ctx context.Context, f func(Delta)) error
}
