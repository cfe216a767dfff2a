package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Codes in causes, attempts and notes that the agent itself gives.
const (
	codeDeadline   = operation.CodeDeadline
	codeStopped    = "agent_stopped"
	codeCancelled  = operation.CodeCancelled
	codeBadOutcome = "bad_outcome"
	codeNoAnswer   = "executor_no_answer"
	codePanic      = "executor_panic"
	codeStepFailed = "step_failed"
	codeExhausted  = "attempts_exhausted"
)

// noteBlocker is the code of a note that says what holds the operation up.
const noteBlocker = "blocker"

// stepState is a step and where it stands.
type stepState struct {
	protocol.Step
	started bool // the claim told the plane that it starts
	begun   bool // something may have been done for it, now or by a predecessor
	said    string
	nothing bool // a cleanup step that had nothing to clean up, whichever lease found that
}

// end is how a run came to its end.
type end struct {
	outcome string // protocol.Final*
	step    *stepState
	out     executor.Outcome
}

// run is the life of one assignment.
type run struct {
	agent *Agent
	a     *protocol.Assignment
	lease *lease
	out   *outbox
	steps []*stepState
	log   *slog.Logger

	boundary   chan struct{} // closed on a cancel or a stop
	mu         sync.Mutex
	cancelled  bool
	stopped    bool
	why        string // the last that was heard of what keeps it
	lastFailed string // the command that failed last
	progress   operation.Progress
	obstacles  obstacles               // of progress, over all steps
	outwaiting *stepState              // is given back when nothing answers for long; nil: none is
	cut        context.CancelCauseFunc // ends that step
	left       bool                    // what is to be cleaned up is left to other agents
	silence    *time.Timer             // runs while progress shows that nothing answers
	silences   int                     // how often it did
}

func (a *Agent) newRun(ctx context.Context, as *protocol.Assignment, sent time.Duration) (*run, context.Context, context.Context) {
	l, held, work := newLease(ctx, a.mono, sent, as.LeaseMS, as.DeadlineMS, a.session.get().CallDeadlineMS)
	r := &run{
		agent: a, a: as, lease: l,
		out:      newOutbox(as, a.mono, func() pace { return paceOf(a.session.get()) }, func(o *outbox) { a.outgoing.push(o) }),
		boundary: make(chan struct{}),
		log: a.log.With(slog.String("operation", as.Operation), slog.Int64("generation", as.Generation),
			slog.String("correlation_id", as.CorrelationID)),
	}
	for _, s := range as.Steps {
		st := &stepState{Step: s, started: s.ID == as.StartedStep && !as.Probe}
		st.begun = s.Phase != operation.StepPending || s.Attempts > 0
		if st.started { // the attempt that the claim opened is not a begun one yet
			st.begun = s.Attempts > 1
		}
		st.nothing = s.Cleanup && s.Phase == operation.StepSkipped && s.ErrorCode == "" // else it was cut short
		if s.Phase == operation.StepUnknown || st.nothing {                             // until a probe says more, or for good
			st.said = s.Detail
		}
		r.steps = append(r.steps, st)
	}
	if as.Cancel {
		r.requestCancel()
	}
	return r, held, work
}

func (r *run) requestCancel() { r.request(&r.cancelled) }
func (r *run) isCancelled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancelled
}

func (r *run) requestStop() { r.request(&r.stopped) }

func (r *run) request(flag *bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cancelled && !r.stopped {
		close(r.boundary)
	}
	*flag = true
}

// main carries the assignment out and tells its end. held ends with the lease,
// work also at the deadline.
func (r *run) main(held, work context.Context) {
	before := r.agent.kept.before(r.a.Operation, r.a.Generation)
	r.inherit(before)
	e := r.settle(work, len(before) > 0)
	if e == nil {
		x := r.work(work)
		e = &x
	}
	r.finish(held, r.conclude(held, work, *e))
}

// inherit takes over what an earlier generation of this agent could not tell:
// its commands are evidence, its findings are not.
func (r *run) inherit(before []protocol.Report) {
	if len(before) == 0 {
		return
	}
	now := r.agent.mono()
	before = newest(before, 3)
	for _, b := range before {
		for _, n := range b.Notes {
			if n.Code == noteBlocker {
				r.heard(n.Detail)
			}
		}
		if b.Progress != nil {
			r.heard(b.Progress.Message)
		}
	}
	r.out.add(false, func(d *draft) {
		for _, b := range before {
			for _, c := range newest(b.Commands, reportCommands) {
				d.commands = append(d.commands, &commandAt{Command: c, start: now - ms(c.StartAgoMS), end: now - ms(c.EndAgoMS)})
			}
			d.notes = append(d.notes, newest(b.Notes, 10)...)
			if f := b.Final; f != nil {
				d.notes = append(d.notes, protocol.Note{Code: "late_report",
					Detail: detail("an earlier lease of this agent ended as " + f.Outcome + " untold: " + f.Message)})
			}
		}
	})
}

// work carries the steps out in order.
func (r *run) work(ctx context.Context) end {
	for _, s := range r.steps {
		if s.Cleanup || s.Phase == operation.StepSucceeded || s.Phase == operation.StepSkipped && !s.Required {
			continue
		}
		if s.Phase == operation.StepFailed {
			if !s.Required {
				continue
			}
			if e := r.interrupted(ctx, true); e != nil && s.ErrorCode == codeCancelled { // a cancel ended it, no failure
				e.step = s
				return *e
			}
			return end{outcome: protocol.FinalFailed, step: s, out: failedBefore(s)} // a predecessor got this far and no further
		}
		if e := r.interrupted(ctx, true); e != nil {
			if s.started { // told by the claim, and never done
				s.started, s.Phase = false, operation.StepRunning
				e = r.interrupt(s, e, executor.Outcome{Class: operation.OutcomeTransient})
			}
			e.step = s
			return *e
		}
		if e := r.step(ctx, s, s.Interruptible); e != nil {
			e.step = s
			return *e
		}
	}
	return end{outcome: protocol.FinalSucceeded}
}

// failedBefore is the outcome of a step that failed under an earlier lease, in that
// lease's words or in its probe's where they are known, with the advice that the code
// has when a step fails in execution.
func failedBefore(s *stepState) executor.Outcome {
	if s.ErrorCode == "" {
		return executor.Permanent(codeStepFailed, "step "+s.Name+" failed under an earlier lease")
	}
	return executor.Permanent(s.ErrorCode, s.Detail)
}

// requiredDone tells whether the operation has what success needs.
func (r *run) requiredDone() bool {
	for _, s := range r.steps {
		if s.Required && !s.Cleanup && s.Phase != operation.StepSucceeded {
			return false
		}
	}
	return true
}

// interrupted tells whether the run must not go on, and how it ends then. A
// cancel and a stop count only where the work may be interrupted.
func (r *run) interrupted(ctx context.Context, interruptible bool) *end {
	err := r.lease.check()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errCut) { // by what is asked for below
		err = nil
	}
	r.mu.Lock()
	cancelled, stopped, left := r.cancelled, r.stopped, r.left
	r.mu.Unlock()
	switch {
	case left && (err == nil || errors.Is(err, errLeft)):
		return &end{outcome: protocol.FinalHandBack, out: executor.Outcome{ErrorCode: codeSilent, Detail: errLeft.Error()}}
	case errors.Is(err, errDeadline):
		return &end{outcome: protocol.FinalTimedOut}
	case errors.Is(err, errForced) && cancelled: // a cancel cannot be handed back
		return &end{outcome: protocol.FinalAmbiguous, out: executor.Outcome{ErrorCode: codeStopped, Detail: "the agent stopped while it cancelled"}}
	case errors.Is(err, errForced):
		return &end{outcome: protocol.FinalHandBack}
	case err != nil:
		return &end{outcome: protocol.FinalAmbiguous, out: executor.Outcome{ErrorCode: codeLeaseLost, Detail: err.Error()}}
	case !interruptible:
		return nil
	case cancelled:
		return &end{outcome: protocol.FinalCancelled}
	case stopped:
		return &end{outcome: protocol.FinalHandBack}
	}
	return nil
}

// heard keeps the last word on what holds the operation up.
func (r *run) heard(text string) {
	if text == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = text
}
