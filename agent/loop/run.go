package loop

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Codes in causes, attempts and notes that the agent itself gives.
const (
	codeDeadline   = "deadline_exceeded"
	codeStopped    = "agent_stopped"
	codeCancelled  = "cancelled"
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
	nothing bool // a cleanup step that had nothing to clean up
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
	obstacles  obstacles // of progress, over all steps
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
		r.steps = append(r.steps, st)
	}
	if as.Cancel {
		r.requestCancel()
	}
	return r, held, work
}

func (r *run) requestCancel() { r.request(&r.cancelled) }
func (r *run) requestStop()   { r.request(&r.stopped) }

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

// settle reads what became of the unfinished steps before anything is issued.
// It returns the end if they cannot be told.
func (r *run) settle(ctx context.Context, inherited bool) *end {
	if !r.a.Probe {
		return nil
	}
	var unknown *end
	reached := true // every step before has succeeded
	foreign := r.foreign()
	for _, s := range r.steps {
		if s.Phase.Settled() {
			reached = reached && s.Phase != operation.StepFailed
			continue
		}
		if s.Cleanup && !s.begun {
			continue
		}
		var f executor.Finding
		if s.Resolved { // a person knows better than a probe could
			f = executor.Finding{Phase: operation.StepPending, Detail: "a person settled that it never took effect"}
		} else {
			f = r.probe(ctx, s)
		}
		if e := r.interrupted(ctx, false); e != nil {
			return e
		}
		// Of a step that was never begun a probe can only say that its end state
		// happens to hold. That counts while all before it are done; later work
		// could undo it. And it cannot have failed.
		if !s.begun && (f.Phase == operation.StepFailed || f.Phase == operation.StepSucceeded && !reached) {
			f.Phase = operation.StepPending
		}
		// Nor can it be unknown what became of it: nothing is issued before the plane
		// has it that the step starts. What cannot be read now, its execution reads.
		if !s.begun && f.Phase == operation.StepUnknown && !foreign {
			reached = false
			continue
		}
		reached = reached && f.Phase == operation.StepSucceeded
		r.found(s, f)
		if f.Phase == operation.StepUnknown && unknown == nil {
			unknown = &end{outcome: protocol.FinalAmbiguous, step: s,
				out: executor.Outcome{ErrorCode: f.ErrorCode, Detail: f.Detail}}
		}
	}
	if unknown != nil {
		return unknown
	}
	seq := r.out.add(true, func(d *draft) { d.settled = true })
	if err := r.out.wait(ctx, seq); err != nil {
		if e := r.interrupted(ctx, false); e != nil {
			return e
		}
		return &end{outcome: protocol.FinalAmbiguous, out: executor.Outcome{ErrorCode: codeLeaseLost, Detail: err.Error()}}
	}
	if inherited {
		r.agent.kept.dropBefore(r.a.Operation, r.a.Generation)
	}
	return nil
}

// foreign tells whether the steps are probed for more than what earlier leases of this
// operation did, so that a probe has something to say of a step that was never begun. An
// operation of which no step was ever begun is probed since an earlier one left its
// resource unsettled: whatever that one has under way there may be under way still. And a
// record that was restored from a backup may lack that a step was begun.
func (r *run) foreign() bool {
	return operation.FromBackup(r.a.Generation) ||
		!slices.ContainsFunc(r.steps, func(s *stepState) bool { return s.begun || s.Phase.Settled() })
}

// found reports what a probe read.
func (r *run) found(s *stepState, f executor.Finding) {
	report := protocol.StepReport{StepID: s.ID, Phase: f.Phase, ErrorCode: f.ErrorCode, Detail: f.Detail}
	if s.begun {
		report.Outcome = map[operation.StepPhase]string{
			operation.StepSucceeded: operation.OutcomeDone,
			operation.StepFailed:    operation.OutcomePermanent,
			operation.StepPending:   operation.OutcomeTransient,
			operation.StepUnknown:   operation.OutcomeAmbiguous,
		}[f.Phase]
	}
	s.Phase, s.said = f.Phase, detail(f.Detail)
	if f.Phase == operation.StepFailed { // why it failed is what the probe says; other words of the last lease stand
		s.ErrorCode, s.Detail = cut(clean(f.ErrorCode), 128), s.said
	}
	r.out.step(false, report)
}

// work carries the steps out in order.
func (r *run) work(ctx context.Context) end {
	for _, s := range r.steps {
		if s.Cleanup || s.Phase == operation.StepSucceeded || s.Phase == operation.StepSkipped && !s.Required {
			continue
		}
		if s.Phase == operation.StepFailed {
			if s.Required { // a predecessor got this far and no further
				return end{outcome: protocol.FinalFailed, step: s,
					out: failedBefore(s)}
			}
			continue
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
	r.mu.Lock()
	cancelled, stopped := r.cancelled, r.stopped
	r.mu.Unlock()
	switch {
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
