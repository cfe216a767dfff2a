package loop

import (
	"context"
	"slices"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// holdUnknown is how long a lease is held while nothing answers. Another agent may reach
// what is silent here; and as long as the lease is held a person is refused who knows
// what became of a step that nobody else can tell the outcome of.
const holdUnknown = time.Minute

// deniedMost is the longest between two probes of a step that wait for a right, give
// or take a fifth: a person has to give it, and looks for what happens then. What else
// keeps a step that never began is asked for at the same pace.
const deniedMost = 10 * time.Second

// settling is what a run has met while it reads what became of its steps.
type settling struct {
	// foreign: a probe has something to say of a step that was never begun.
	foreign bool
	// restored: the record is from a backup, and may lack that a step was begun.
	restored bool
	silent   *time.Duration // since when nothing answered first
	denied   *time.Duration // since when a right is missing, after any silence
	kept     *time.Duration // since when anything else keeps what never began, after both
	keptBy   string         // the code of what does, or did last
	noted    string         // the code of what the journal says it waits for; "": nothing
	since    time.Duration  // when that began
}

// settle reads what became of the unfinished steps before anything is issued.
// It returns the end if they cannot be told.
func (r *run) settle(ctx context.Context, inherited bool) *end {
	if !r.a.Probe {
		return nil
	}
	var unknown *end
	reached := true // every step before has succeeded
	untold := false // nothing answers what is asked of a step that was never begun
	w := settling{foreign: r.foreign(), restored: operation.FromBackup(r.a.Generation)}
	w.noted, w.since = r.agent.aside.waitedFor(r.a.Operation) // this agent's last lease has said it
	for _, s := range r.steps {
		if s.Phase.Settled() {
			reached = reached && s.Phase != operation.StepFailed
			continue
		}
		if !s.begun && (s.Cleanup || untold) {
			continue
		}
		if s.Phase == operation.StepUnknown && w.foreign && !w.restored {
			// No attempt of it is on record: that what an earlier operation has under way
			// could not be told was taken for an outcome of this one's, once.
			s.begun = false
			r.found(s, executor.ToRun("it was never begun"))
		}
		var f executor.Finding
		var e *end
		if s.Resolved && (!w.foreign || w.restored) { // a person knows better than a probe could
			f, e = executor.ToRun("a person settled that it never took effect"), r.interrupted(ctx, false)
		} else {
			f, e = r.ask(ctx, s, &w)
		}
		if e != nil {
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
		if !s.begun && f.Phase == operation.StepUnknown && !w.foreign {
			reached, untold = false, tellsNothing(f.ErrorCode)
			continue
		}
		reached = reached && f.Phase == operation.StepSucceeded
		r.found(s, f)
		if f.Phase == operation.StepUnknown && unknown == nil {
			unknown = &end{outcome: protocol.FinalAmbiguous, step: s,
				out: executor.Outcome{ErrorCode: f.ErrorCode, Detail: f.Detail}}
		}
	}
	r.noteAnswer(&w)
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
// record that was restored from a backup may lack that a step was begun. What a probe
// found of a step is no attempt of it.
func (r *run) foreign() bool {
	return operation.FromBackup(r.a.Generation) ||
		!slices.ContainsFunc(r.steps, func(s *stepState) bool { return s.Attempts > 0 })
}

// ask probes a step, again and again while nothing answers, and shows that. Nothing is
// known of the step meanwhile, so that its phase stays. It returns how the run ends if
// no answer came in time.
func (r *run) ask(ctx context.Context, s *stepState, w *settling) (executor.Finding, *end) {
	var said executor.Outcome
	for try, steady := 1, 0; ; try++ {
		if e := r.needless(ctx, w); e != nil {
			return executor.Finding{}, because(e, s, said)
		}
		began, asked := r.agent.now(), r.agent.mono()
		f := r.probeNeeded(ctx, s, w)
		if e := r.needless(ctx, w); e != nil {
			return f, because(e, s, said)
		}
		if !s.begun && !w.foreign || !w.unanswered(s, f, asked) {
			r.lifted(s, codeSilent, codeUnconverted, codeForbidden, w.keptBy)
			return f, because(r.interrupted(ctx, false), s, said)
		}
		wait := jitter(retryBase)
		switch {
		case tellsNothing(f.ErrorCode):
			steady = 0
			said, wait = executor.Waiting(f.ErrorCode, f.Detail), backoff(try, retryBase, unansweredMost)
			r.silent(s, began, said)
			r.noteWaiting(s, w, asked, said)
		case w.believed(asked):
			steady++
			said, wait = executor.Waiting(f.ErrorCode, f.Detail), backoff(steady, time.Second, deniedMost)
			r.denied(s, began.Add(*w.denied-asked), said)
			r.noteWaiting(s, w, *w.denied, said)
		case w.kept != nil:
			steady++
			said, wait = executor.Waiting(w.keptBy, f.Detail), backoff(steady, time.Second, deniedMost)
			r.kept(s, began.Add(*w.kept-asked), said, f.Blocker)
			r.noteWaiting(s, w, *w.kept, said)
		}
		wake := r.agent.stopping // most cancels do not: what they call for must be read first as well
		if r.needsNoAnswer(w) {
			wake = r.boundary
		}
		pause(ctx, wait, wake)
		if e := r.unheard(ctx, s, w, said); e != nil {
			return f, because(e, s, said)
		}
	}
}

// probeNeeded probes a step for as long as the run needs the answer.
func (r *run) probeNeeded(ctx context.Context, s *stepState, w *settling) executor.Finding {
	if r.needsNoAnswer(w) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-r.boundary:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return r.probe(ctx, s)
}

// unheard tells how a run ends that waits for an answer; nil: it waits on. It gives the
// lease back after a while, and leaves the operation to others, unless the deadline would
// find nobody then to say what it waited for. Where a right is missing, or a webhook or
// another's work keeps it, that is of no use to another agent, and it waits to the deadline
// unless a step is unknown: that a person can settle while nobody holds the lease. A cancel
// ends it if nothing is unknown and nothing is to be cleaned up.
func (r *run) unheard(ctx context.Context, s *stepState, w *settling, said executor.Outcome) *end {
	if e := r.interrupted(ctx, false); e != nil {
		return e
	}
	r.mu.Lock()
	cancelled := r.cancelled
	r.mu.Unlock()
	unknown := slices.ContainsFunc(r.steps, func(s *stepState) bool { return s.Phase == operation.StepUnknown })
	switch now := r.agent.mono(); {
	case closed(r.agent.stopping):
		return &end{outcome: protocol.FinalHandBack}
	case cancelled && !unknown && !w.restored && !r.needsCleanup():
		return &end{outcome: protocol.FinalCancelled}
	case (unknown || w.silent != nil || w.faulty()) && w.heldFor(now) >= holdUnknown && r.mayLeave():
		r.leave(s.ID, said.ErrorCode, said.Detail, w.since)
		return &end{outcome: protocol.FinalHandBack}
	}
	return nil
}

// needsNoAnswer tells whether a cancel may end the run whatever the probes have to say:
// nothing is unknown, and no step with an effect was ever begun. What an earlier
// operation has under way on the resource stays on record as that one's.
func (r *run) needsNoAnswer(w *settling) bool {
	return !w.restored && !slices.ContainsFunc(r.steps, func(s *stepState) bool {
		return s.Phase == operation.StepUnknown || s.begun && s.Effect
	})
}

// needless tells how a run ends that waits for answers which it does not need: with a
// cancel, or a stop.
func (r *run) needless(ctx context.Context, w *settling) *end {
	if !closed(r.boundary) || !r.needsNoAnswer(w) {
		return nil
	}
	return r.interrupted(ctx, true)
}

// because names the step that was waited for, and what was silent, in an end that says
// nothing else of its cause.
func because(e *end, s *stepState, said executor.Outcome) *end {
	if e != nil && e.out.ErrorCode == "" && said.ErrorCode != "" {
		e.step, e.out = s, said
	}
	return e
}

// found reports what a probe read.
func (r *run) found(s *stepState, f executor.Finding) {
	phase := f.Phase
	if phase == operation.StepSucceeded {
		phase = s.doneAs(f.Nothing)
	}
	report := protocol.StepReport{StepID: s.ID, Phase: phase, ErrorCode: f.ErrorCode, Detail: f.Detail}
	if s.begun {
		report.Outcome = map[operation.StepPhase]string{
			operation.StepSucceeded: operation.OutcomeDone,
			operation.StepFailed:    operation.OutcomePermanent,
			operation.StepPending:   operation.OutcomeTransient,
			operation.StepUnknown:   operation.OutcomeAmbiguous,
		}[f.Phase]
	}
	s.Phase, s.said = phase, detail(f.Detail)
	if f.Phase == operation.StepFailed { // why it failed is what the probe says; other words of the last lease stand
		s.ErrorCode, s.Detail = cut(clean(f.ErrorCode), 128), s.said
	}
	r.out.step(false, report)
}
