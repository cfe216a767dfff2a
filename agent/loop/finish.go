package loop

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// observeAtDeadline leaves the rest of the second to the report.
const observeAtDeadline = 200 * time.Millisecond

// conclude runs the cleanup that the end calls for and makes the final report.
func (r *run) conclude(held, work context.Context, e end) *protocol.Final {
	switch e.outcome {
	case protocol.FinalCancelled, protocol.FinalTimedOut, protocol.FinalHandBack:
		if r.requiredDone() { // the work was done first
			e = end{outcome: protocol.FinalSucceeded}
		}
	}
	f := &protocol.Final{Outcome: e.outcome}
	switch e.outcome {
	case protocol.FinalCancelled, protocol.FinalFailed:
		cleanup, cut := r.cleanUp(work)
		switch {
		case cut == nil:
		case cut.outcome == protocol.FinalTimedOut && e.outcome == protocol.FinalFailed: // the first cause stands
		default:
			e = *cut
			f.Outcome = e.outcome
		}
		if f.Outcome != protocol.FinalAmbiguous && f.Outcome != protocol.FinalHandBack {
			f.Cleanup = cleanup
		}
	case protocol.FinalTimedOut: // nothing may be issued any more
		for _, s := range r.steps { // a predecessor began it and there was no time to probe
			if s.begun && s.Effect && s.Phase == operation.StepRunning {
				r.close(s, operation.StepUnknown, executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: codeDeadline, Detail: "no time was left to probe it"})
			}
		}
		f.Cleanup = r.cleanedInTime()
		if s := r.failedFirst(e); s != nil { // the first cause stands, whichever lease met it
			e = end{outcome: protocol.FinalFailed, step: s, out: failedBefore(s)}
			f.Outcome = e.outcome
		}
	}
	r.explain(f, e)
	r.observe(held, f)
	return f
}

// failedFirst is the step that had failed by itself before the deadline ended the run; nil
// if none had.
func (r *run) failedFirst(e end) *stepState {
	for _, s := range r.steps {
		if s != e.step && s.FailedItself(s.Phase, s.ErrorCode) {
			return s
		}
	}
	return nil
}

// explain fills in the cause and what a person can do.
func (r *run) explain(f *protocol.Final, e end) {
	if f.Outcome != protocol.FinalHandBack {
		f.Residual = r.unknown()
	}
	if f.Outcome == protocol.FinalSucceeded || f.Outcome == protocol.FinalHandBack || f.Outcome == protocol.FinalCancelled {
		return
	}
	c := &operation.Cause{ErrorCode: e.out.ErrorCode, CommandID: e.out.CommandID, Detail: e.out.Detail}
	r.mu.Lock()
	why, lastFailed := r.why, r.lastFailed
	r.mu.Unlock()
	if e.step != nil {
		c.StepID = e.step.ID
	}
	if c.CommandID == "" && f.Outcome == protocol.FinalFailed {
		c.CommandID = lastFailed
	}
	if f.Outcome == protocol.FinalTimedOut {
		c.ErrorCode = codeDeadline
		switch {
		case c.Detail == "":
			c.Detail = why
		case !strings.Contains(c.Detail, why): // else it is said already
			c.Detail = why + "; " + c.Detail
		}
		if c.Detail == "" {
			c.Detail = "the deadline passed"
		}
	}
	c.Detail = detail(c.Detail)
	f.Cause, f.Message = c, c.Detail
	f.Retryable = f.Outcome == protocol.FinalFailed && e.out.Retryable
	f.ActionCode, f.ActionText = e.out.ActionCode, detail(e.out.ActionText)
	if f.ActionCode == "" && f.Outcome == protocol.FinalFailed {
		f.ActionCode = operation.ActEscalate
		if f.Retryable {
			f.ActionCode = operation.ActRetry
		}
	}
}

// unknown lists the steps that nobody knows the outcome of.
func (r *run) unknown() []operation.Residual {
	var list []operation.Residual
	for _, s := range r.steps {
		if s.Phase != operation.StepUnknown {
			continue // settled, or nothing in flight
		}
		for _, resource := range s.Resources { // in the plane's own words, or it would list them twice
			list = append(list, operation.Residual{StepID: s.ID, Step: s.Name, Resource: resource,
				Detail: detail("its outcome is unknown: " + s.said)})
		}
	}
	return list
}

// asLeft is the assignment with its steps in the phases that the run left them in.
func (r *run) asLeft() *protocol.Assignment {
	a := *r.a
	a.Steps = make([]protocol.Step, len(r.steps))
	for i, s := range r.steps {
		a.Steps[i] = s.Step
	}
	return &a
}

// observe adds what is known of the world. It reads only, so it may go on past
// the deadline, briefly.
func (r *run) observe(ctx context.Context, f *protocol.Final) {
	within := r.lease.call
	switch f.Outcome {
	case protocol.FinalAmbiguous, protocol.FinalHandBack:
		return
	case protocol.FinalTimedOut:
		within = observeAtDeadline
	case protocol.FinalFailed:
		if r.lease.remaining() == 0 { // its cleanup took until then, or was waited for
			within = observeAtDeadline
		}
	case protocol.FinalCancelled:
		if r.untouched() {
			within = observeUntouched
		}
	}
	if ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	got, left := make(chan executor.Ending, 1), r.asLeft()
	go func() {
		defer func() {
			if p := recover(); p != nil {
				r.log.Error("an observation panicked", slog.Any("panic", p))
			}
		}()
		got <- r.agent.cfg.Executor.Observe(ctx, left)
	}()
	var seen executor.Ending
	select {
	case seen = <-got:
	case <-ctx.Done():
		select {
		case seen = <-got:
		default:
			r.out.note(protocol.Note{Code: "not_observed", Detail: "the target could not be observed in time"})
			return
		}
	}
	f.Observed = seen.Observed
	f.Verified, f.NotVerified = texts(seen.Verified), texts(seen.NotVerified)
	f.Details = redactJSON(seen.Details, protocol.MaxDetailsBytes)
	if seen.Message != "" {
		f.Message = detail(seen.Message)
	}
	for _, x := range seen.Residual {
		x.Detail = detail(x.Detail)
		if !slices.ContainsFunc(f.Residual, func(o operation.Residual) bool { return o.StepID == x.StepID && o.Resource == x.Resource }) {
			f.Residual = append(f.Residual, x)
		}
	}
}

func texts(in []string) []string {
	var out []string
	for _, s := range in {
		out = append(out, detail(s))
	}
	return out
}

// needsCleanup tells whether there is cleanup to do: nothing was touched before
// the first step with an effect. What failed under an earlier lease is tried once more.
func (r *run) needsCleanup() bool {
	return r.touched() && slices.ContainsFunc(r.steps, func(s *stepState) bool {
		return s.Cleanup && s.Phase != operation.StepSucceeded && s.Phase != operation.StepSkipped
	})
}

// touched tells whether there is something that cleanup steps may have to clean up.
func (r *run) touched() bool {
	return slices.ContainsFunc(r.steps, func(s *stepState) bool {
		return !s.Cleanup && s.Effect && s.begun && s.Phase != operation.StepSkipped
	})
}

// cleanUp runs the cleanup steps, all of them, whatever one comes to. It returns
// how the run ends instead when it cannot be brought to its end.
func (r *run) cleanUp(ctx context.Context) (*operation.Cleanup, *end) {
	if !r.needsCleanup() {
		return r.cleaned(), nil
	}
	var failed *operation.Cleanup
	for _, s := range r.steps {
		if !s.Cleanup || s.Phase == operation.StepSucceeded || s.Phase == operation.StepSkipped {
			continue
		}
		e := r.interrupted(ctx, false)
		if e != nil && e.outcome == protocol.FinalTimedOut {
			return r.cleanedInTime(), e
		}
		if e == nil {
			e = r.step(ctx, s, false)
		}
		if e == nil {
			continue
		}
		e.step = s
		if e.outcome == protocol.FinalFailed {
			failed = &operation.Cleanup{State: operation.CleanupFailed, Detail: detail(s.Name + ": " + e.out.Detail)}
			continue
		}
		if e.outcome == protocol.FinalHandBack && !r.leftCleanup() { // half cleaned up: whoever goes on must probe
			e.outcome, e.out.ErrorCode = protocol.FinalAmbiguous, codeStopped
		}
		return &operation.Cleanup{State: operation.CleanupAbandoned, Detail: detail(e.out.Detail)}, e
	}
	if failed != nil {
		return failed, nil
	}
	return r.cleaned(), nil
}

// cleaned is what the cleanup steps came to that are over, under whichever lease.
func (r *run) cleaned() *operation.Cleanup {
	c := &operation.Cleanup{State: operation.CleanupNone}
	for _, s := range r.steps {
		switch {
		case !s.Cleanup:
		case s.Phase == operation.StepFailed:
			return &operation.Cleanup{State: operation.CleanupFailed, Detail: detail(s.Name + ": " + cmp.Or(s.said, s.Detail))}
		case s.Phase == operation.StepSucceeded:
			c = &operation.Cleanup{State: operation.CleanupDone}
		case s.nothing && c.State == operation.CleanupNone:
			c.Detail = detail(s.Name + ": " + s.said)
		}
	}
	return c
}

// cleanedInTime is the same once the deadline has passed: what is not over is left as it
// is, and what failed before has failed.
func (r *run) cleanedInTime() *operation.Cleanup {
	due := func(s *stepState) bool { return s.Cleanup && !s.Phase.Settled() }
	if r.touched() && slices.ContainsFunc(r.steps, due) {
		return &operation.Cleanup{State: operation.CleanupAbandoned, Detail: "the deadline has passed"}
	}
	return r.cleaned()
}

// finish tells the end until the plane has it, or keeps it when the lease is
// over first.
func (r *run) finish(held context.Context, f *protocol.Final) {
	op, generation := r.a.Operation, r.a.Generation
	seq := r.out.add(true, func(d *draft) { d.final = f })
	r.agent.metrics.Ended.Add(f.Outcome)
	err := r.out.wait(held, seq)
	if err != nil && !errors.Is(err, errRefused) { // its answer may be on its way
		ctx, cancel := context.WithTimeout(context.WithoutCancel(held), callTimeout)
		if r.out.landed(ctx, seq) {
			err = nil
		}
		cancel()
	}
	switch {
	case err == nil:
		r.agent.metrics.Finished.Add(1)
		r.agent.kept.drop(op, generation)
		r.agent.kept.dropBefore(op, generation)
		r.out.close(errLeaseOver)
		r.log.Info("operation finished", slog.String("outcome", f.Outcome))
	case errors.Is(err, errRefused):
		r.agent.runs.spoil(op, generation)
		r.agent.kept.drop(op, generation)
		r.log.Error("the plane will not hear of the operation's end", slog.String("outcome", f.Outcome), slog.Any("err", err))
	default:
		r.agent.metrics.Kept.Add(1)
		if errors.Is(err, errLeaseLost) {
			r.agent.metrics.LeasesLost.Add(1)
		}
		r.log.Warn("the lease is over before the end was told; the report is kept",
			slog.String("outcome", f.Outcome), slog.Any("err", err))
		r.agent.kept.release(r.out.undelivered(), r.a.CorrelationID, r.out.wasTold())
	}
}
