package loop

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	// executeGrace is how long an executor may take to return after its context
	// ended; what it did is unknown then.
	executeGrace = 700 * time.Millisecond

	retryBase   = 500 * time.Millisecond
	retryMost   = 30 * time.Second
	defaultWait = time.Second
)

// task is the step as the executor sees it. The returned function ends its
// rights: an executor that was given up on cannot act any more.
func (r *run) task(s *stepState, attempt int, fenced bool, boundary <-chan struct{}) (*executor.Task, func()) {
	var over atomic.Bool
	over.Store(fenced)
	return &executor.Task{
		Assignment: r.a,
		Step:       s.Step,
		Attempt:    attempt,
		Cancelled:  boundary,
		Remaining:  r.lease.remaining,
		Fence: func(ctx context.Context) (context.Context, context.CancelFunc, error) {
			if over.Load() {
				return nil, func() {}, executor.ErrFenced
			}
			fctx, cancel, err := r.lease.fence(ctx)
			if err != nil {
				r.agent.metrics.Fenced.Add(1)
			}
			return fctx, cancel, err
		},
		Progress: func(done, total int, unit, message string) {
			r.heard(message)
			r.progressed(s.Name, func(p *operation.Progress) { p.Done, p.Total, p.Unit, p.Message = done, total, unit, message })
		},
		Blocked: func(now []protocol.Blocker) {
			r.progressed(s.Name, func(p *operation.Progress) { p.Blockers = r.obstacles.now(r.dated(r.agent.now()), now) })
		},
		Begin: func(name, resource string) (string, func(string, string)) {
			c := r.out.begin(protocol.Command{
				ID: id.New(id.Command, r.agent.now()), StepID: s.ID, Attempt: attempt,
				Name: redact(name, 512), Resource: redact(resource, 512),
			})
			return c.ID, func(category, output string) {
				r.agent.metrics.Effects.Add(category)
				if category == "ok" || category == "already" || category == "conflict" || category == "throttled" {
					r.answered(s) // whoever was silent is not any more
				}
				if category != "ok" && category != "already" {
					r.mu.Lock()
					r.lastFailed = c.ID
					r.mu.Unlock()
				}
				r.out.end(c, category, output)
			}
		},
		Note: func(code, text string) {
			if code == noteBlocker {
				r.heard(text)
			}
			r.out.note(protocol.Note{Code: cut(clean(code), 128), Detail: text, StepID: s.ID})
		},
	}, func() { over.Store(true) }
}

func (r *run) probe(ctx context.Context, s *stepState) executor.Finding {
	t, over := r.task(s, max(s.Attempts, 1), true, nil)
	defer over()
	ctx, cancel := context.WithTimeout(ctx, r.lease.call)
	defer cancel()
	got := make(chan executor.Finding, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				r.log.Error("a probe panicked", slog.String("step", s.Name), slog.Any("panic", p))
				got <- executor.Finding{Phase: operation.StepUnknown, ErrorCode: codePanic, Detail: "the probe panicked"}
			}
		}()
		got <- r.agent.cfg.Executor.Probe(ctx, t)
	}()
	f, ok := await(ctx, got)
	if !ok {
		f = executor.Finding{Phase: operation.StepUnknown, ErrorCode: codeNoAnswer, Detail: "the probe did not return"}
	}
	switch f.Phase {
	case operation.StepSucceeded, operation.StepPending, operation.StepFailed:
	default:
		f.Phase = operation.StepUnknown
	}
	if s.begun && f.Phase == operation.StepPending { // half done: what holds it up still does
		r.heard(f.Detail)
	}
	return f
}

// await returns what comes, or false when ctx has ended and nothing came within
// the grace.
func await[T any](ctx context.Context, c <-chan T) (v T, ok bool) {
	select {
	case v = <-c:
		return v, true
	case <-ctx.Done():
	}
	t := time.NewTimer(executeGrace)
	defer t.Stop()
	select {
	case v = <-c:
		return v, true
	case <-t.C:
		return v, false
	}
}

// execute calls the executor once.
func (r *run) execute(ctx context.Context, s *stepState, attempt int, boundary <-chan struct{}) executor.Outcome {
	t, over := r.task(s, attempt, false, boundary)
	defer over()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan executor.Outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				r.log.Error("an executor panicked", slog.String("step", s.Name), slog.Any("panic", p))
				got <- executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: codePanic, Detail: "the executor panicked"}
			}
		}()
		got <- r.agent.cfg.Executor.Execute(ctx, t)
	}()
	out, ok := await(ctx, got)
	if !ok {
		return executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: codeNoAnswer,
			Detail: "the executor did not return after it was stopped"}
	}
	return out
}

// step brings one step to its end: nil when it succeeded, or failed without
// being required; else how the run ends.
func (r *run) step(ctx context.Context, s *stepState, interruptible bool) *end {
	var boundary <-chan struct{}
	if interruptible {
		boundary = r.boundary
	}
	most, spent := max(s.MaxAttempts, 1), s.spent()
	if spent >= most {
		return r.exhausted(s, usedUp(s, most))
	}
	for try := 1; ; try++ {
		if e := r.begin(ctx, s, interruptible); e != nil {
			return e
		}
		out := r.executeWaiting(ctx, s, boundary)
		out.Detail, out.ErrorCode = detail(out.Detail), cut(clean(out.ErrorCode), 128)
		r.agent.metrics.Steps.Add(out.Class)
		switch out.Class {
		case operation.OutcomeDone: // also when time ran out meanwhile: it was observed
			r.close(s, s.doneAs(out.Nothing), out)
			return nil
		case operation.OutcomePermanent:
			if e := r.interrupted(ctx, interruptible); e != nil && out.ErrorCode == codeCancelled {
				return r.interrupt(s, e, out)
			}
			r.close(s, operation.StepFailed, out)
			if !s.Required && !s.Cleanup {
				return nil
			}
			return &end{outcome: protocol.FinalFailed, out: out}
		case operation.OutcomeTransient, operation.OutcomeWaiting:
			if e := r.interrupted(ctx, interruptible); e != nil {
				return r.interrupt(s, e, out)
			}
		case operation.OutcomeAmbiguous:
			return r.ambiguous(ctx, s, out)
		case executor.ClassHandBack:
			return r.handOver(s, out)
		default:
			out = executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: codeBadOutcome,
				Detail: fmt.Sprintf("the executor returned an unknown outcome %q", detail(out.Class))}
			return r.ambiguous(ctx, s, out)
		}
		// Transient: try again within the budget.
		r.heard(out.Detail)
		if spent+try >= most {
			return r.exhausted(s, out)
		}
		r.close(s, operation.StepPending, out)
		wait := backoff(try, retryBase, retryMost)
		if out.After > 0 {
			wait = jitter(out.After)
		}
		between := r.boundary // nothing is in flight: whatever the step, it can end here
		if s.Cleanup {
			between = nil
		}
		pause(ctx, wait, between)
		if e := r.interrupted(ctx, !s.Cleanup); e != nil {
			return r.interrupt(s, e, out)
		}
	}
}

// spent is how much of the step's budget earlier leases used. The plane tells how
// many attempts there were, not what they came to: one that was handed back or
// never reached the executor is no failure. So they count only where running the
// step once more can do harm.
func (s *stepState) spent() int {
	switch {
	case s.ReplaySafe:
		return 0
	case s.started: // the last of them is the one that begins now
		return max(s.Attempts-1, 0)
	}
	return s.Attempts
}

// usedUp is the outcome of a step whose budget earlier leases used up: what the last of
// its attempts met is the cause, with the advice of its code.
func usedUp(s *stepState, most int) executor.Outcome {
	code, why := codeExhausted, fmt.Sprintf("its %d attempts were used up under earlier leases", most)
	if f := s.Failure; f != nil { // else a plane of before does not tell
		code, why = f.ErrorCode, fmt.Sprintf("%s (%s)", cmp.Or(f.Detail, f.ErrorCode), why)
	}
	out := executor.Permanent(code, why)
	if !executor.Advised(code) { // what is said instead, to retry, is what cannot be done
		out.ActionCode, out.ActionText = operation.ActEscalate, "read the cause and the journal, mend what its attempts met, then ask for a new operation"
	}
	return out
}

// exhausted fails a step whose budget is used up. A person's retry is of use
// only where the plane would let the step run again.
func (r *run) exhausted(s *stepState, out executor.Outcome) *end {
	r.close(s, operation.StepFailed, out)
	if !s.Required && !s.Cleanup {
		return nil
	}
	out.Retryable = s.ReplaySafe
	return &end{outcome: protocol.FinalFailed, out: out}
}

// begin tells the plane that the step starts. A step with an effect waits until
// the plane has it: "started" before anything is touched. What is shown of progress
// is of this step from then on: it goes with the same report.
func (r *run) begin(ctx context.Context, s *stepState, interruptible bool) *end {
	r.progressed(s.Name, func(*operation.Progress) {})
	if s.started { // the claim did it
		s.started, s.begun, s.Phase = false, true, operation.StepRunning
		s.Attempts = max(s.Attempts, 1)
		return nil
	}
	s.Attempts++
	s.Phase = operation.StepRunning
	seq := r.out.step(s.Effect, protocol.StepReport{StepID: s.ID, Phase: operation.StepRunning})
	if !s.Effect {
		s.begun = true
		return nil
	}
	err := r.out.wait(ctx, seq)
	e := r.interrupted(ctx, interruptible)
	if e == nil && err != nil {
		e = &end{outcome: protocol.FinalAmbiguous, out: executor.Outcome{ErrorCode: codeLeaseLost, Detail: err.Error()}}
	}
	if e == nil && r.isCancelled() && !s.Cleanup { // accepted before the plane had it that the step starts
		e = &end{outcome: protocol.FinalCancelled}
	}
	if e != nil {
		return r.interrupt(s, e, executor.Outcome{Class: operation.OutcomeTransient})
	}
	s.begun = true
	return nil
}

// executeWaiting executes until the outcome is another than waiting, all in one
// attempt: nothing has gone wrong.
func (r *run) executeWaiting(ctx context.Context, s *stepState, boundary <-chan struct{}) executor.Outcome {
	ctx, over := r.outwaits(ctx, s, boundary)
	defer over()
	for try := 1; ; try++ {
		began := r.agent.now()
		out := asCut(ctx, r.execute(ctx, s, s.Attempts, boundary))
		if unanswered(out) {
			r.silent(s, began, out)
			if out.Class == operation.OutcomeTransient && !s.Effect { // it only reads: the deadline alone bounds it
				out.Class = operation.OutcomeWaiting
				out.After = max(out.After, backoff(try, retryBase, unansweredMost))
			}
		} else {
			if !r.gaveBack(ctx, out, boundary != nil) {
				r.answered(s)
			}
			try = 0
		}
		if out.Class != operation.OutcomeWaiting || r.interrupted(ctx, boundary != nil) != nil {
			return out
		}
		r.heard(out.Detail)
		wait := out.After
		if wait <= 0 {
			wait = defaultWait
		}
		pause(ctx, wait, boundary)
		if r.interrupted(ctx, boundary != nil) != nil {
			return out
		}
	}
}

// doneAs is the phase of a step that is done. A cleanup step that had nothing to clean up was
// not needed: so whoever ends the operation knows, whichever lease found that.
func (s *stepState) doneAs(nothing bool) operation.StepPhase {
	if s.nothing = s.Cleanup && nothing; s.nothing {
		return operation.StepSkipped
	}
	return operation.StepSucceeded
}

// gaveBack tells whether a step came to its boundary since the lease is given back: what
// was silent may be so still, and another lease goes on to say since when.
func (r *run) gaveBack(ctx context.Context, out executor.Outcome, interruptible bool) bool {
	e := r.interrupted(ctx, interruptible)
	return e != nil && e.outcome == protocol.FinalHandBack && out.Class == operation.OutcomeWaiting
}

// close reports how an attempt ended.
func (r *run) close(s *stepState, phase operation.StepPhase, out executor.Outcome) {
	s.Phase, s.said = phase, detail(out.Detail)
	r.out.step(false, protocol.StepReport{
		StepID: s.ID, Phase: phase, Outcome: out.Class, ErrorCode: out.ErrorCode,
		Detail: out.Detail, CommandID: out.CommandID,
	})
}

// interrupt closes a step that the run's end cut short with nothing in flight.
func (r *run) interrupt(s *stepState, e *end, out executor.Outcome) *end {
	if s.Phase == operation.StepPending { // between two attempts, the last is closed
		if e.out.Detail == "" {
			e.out.Detail = out.Detail
		}
		return e
	}
	phase := operation.StepPending // another lease goes on with it
	switch e.outcome {
	case protocol.FinalTimedOut:
		phase, out.ErrorCode = operation.StepFailed, codeDeadline
	case protocol.FinalCancelled:
		phase, out.ErrorCode = operation.StepFailed, codeCancelled
	}
	if phase == operation.StepFailed && !s.begun {
		phase = operation.StepSkipped
	}
	r.close(s, phase, out)
	if e.out.ErrorCode == "" {
		e.out = out
	}
	return e
}

// handOver ends the run for another agent to go on with: nothing is in flight,
// and this one leaves the operation alone for a while.
func (r *run) handOver(s *stepState, out executor.Outcome) *end {
	r.agent.aside.put(r.a.Operation, r.agent.mono()+executor.HandBackFor)
	out.Class = operation.OutcomeTransient
	r.close(s, operation.StepPending, out)
	r.out.note(protocol.Note{Code: cut(clean(out.ErrorCode), 128), Detail: out.Detail, StepID: s.ID})
	return &end{outcome: protocol.FinalHandBack, out: out}
}

// ambiguous ends the run with a step whose effect nobody knows.
func (r *run) ambiguous(ctx context.Context, s *stepState, out executor.Outcome) *end {
	r.close(s, operation.StepUnknown, out)
	if e := r.interrupted(ctx, false); e != nil && e.outcome == protocol.FinalTimedOut {
		e.out = out
		return e
	}
	return &end{outcome: protocol.FinalAmbiguous, out: out}
}
