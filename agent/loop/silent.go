package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// codeSilent is what executors say when whatever they work on does not answer,
// codeUnconverted when it answers and cannot read what it is asked for, codeForbidden when
// a right is missing, codeAdmission when admission lets nothing through.
const (
	codeSilent      = "api_unavailable"
	codeUnconverted = "conversion_failed"
	codeForbidden   = "forbidden"
	codeAdmission   = "admission_refused"
)

// codeAnswered is the code of the note that either is over.
const codeAnswered = "answered"

// unansweredMost is the longest between two tries of a step that only reads, while
// nothing answers.
const unansweredMost = 5 * time.Second

// errLeft ends a cleanup step that another agent is to carry out.
var errLeft = errors.New("it is left to other agents: nothing answers this one")

// unanswered tells whether an attempt came to nothing for want of an answer.
func unanswered(out executor.Outcome) bool {
	return out.ErrorCode == codeSilent && (out.Class == operation.OutcomeTransient || out.Class == operation.OutcomeWaiting)
}

// tellsNothing tells whether the code of a finding says that nothing told of what was asked for:
// whoever asks later may be told.
func tellsNothing(code string) bool { return code == codeSilent || code == codeUnconverted }

// silent shows that nothing answers, since the attempt that found it began. What the
// executor itself says of it goes before.
func (r *run) silent(s *stepState, began time.Time, out executor.Outcome) {
	rule := "api_server"
	if out.ErrorCode == codeUnconverted {
		rule = "conversion_webhook"
	}
	r.stands(s, began, protocol.Blocker{Code: out.ErrorCode, Resource: "cluster", Rule: rule, Detail: out.Detail})
}

// denied shows that a right is missing, since it was denied first.
func (r *run) denied(s *stepState, since time.Time, out executor.Outcome) {
	r.stands(s, since, protocol.Blocker{Code: codeForbidden, Resource: "cluster", Rule: "rbac", Detail: out.Detail})
}

// stands shows what a step waits for, unless that is shown.
func (r *run) stands(s *stepState, since time.Time, b protocol.Blocker) {
	if r.shows(s, b.Code) {
		return
	}
	since = r.dated(since)
	b.Since = &since
	r.progressed(s.Name, func(p *operation.Progress) {
		p.Blockers = r.obstacles.now(since, []protocol.Blocker{b})
	})
}

// mayLeave tells whether another lease is sure to come before the deadline does.
func (r *run) mayLeave() bool { return r.lease.remaining() > 2*executor.HandBackFor }

// leave leaves the operation to other agents for a while, and says why, and since when
// that is so.
func (r *run) leave(step, code, why string, since time.Duration) {
	now := r.agent.mono()
	r.agent.aside.putWaiting(r.a.Operation, code, now+executor.HandBackFor, since)
	r.out.note(protocol.Note{Code: code, StepID: step,
		Detail: fmt.Sprintf("left to other agents for %s, after %s: %s", executor.HandBackFor, (now - since).Round(time.Second), why)})
}

// outwaits gives the lease back, at the next boundary, once a step that is carried out
// has shown for holdUnknown that nothing answers: another agent may reach what is silent
// here. It does so until stop is called. A step that must not be cut short, or whose
// attempts count whatever they came to, is carried out where it began. A cleanup step
// knows no boundary: the context that it is carried out in ends.
func (r *run) outwaits(ctx context.Context, s *stepState, boundary <-chan struct{}) (within context.Context, stop func()) {
	if boundary == nil && !s.Cleanup || !s.ReplaySafe {
		return ctx, func() {}
	}
	within, cut := context.WithCancelCause(ctx)
	r.cutsShort(within, cut, s, boundary)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outwaiting, r.cut = s, cut
	return within, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outwaiting, r.cut = nil, nil
		cut(nil)
	}
}

// watchSilence takes what is shown to stand in the way now. The caller holds r.mu.
func (r *run) watchSilence(blockers []protocol.Blocker) {
	silent := slices.ContainsFunc(blockers, func(b protocol.Blocker) bool { return b.Code == codeSilent })
	switch {
	case !silent && r.silence != nil:
		r.silence.Stop()
		r.silence = nil
	case silent && r.silence == nil:
		r.silences++
		n := r.silences
		r.silence = time.AfterFunc(holdUnknown, func() { r.outwaited(n) })
	}
}

// outwaited: nothing has answered for holdUnknown, the nth silence of the run.
func (r *run) outwaited(n int) {
	r.mu.Lock()
	s, cut, silent, over := r.outwaiting, r.cut, r.silence != nil && r.silences == n, r.cancelled || r.stopped
	why := ""
	for _, b := range r.progress.Blockers {
		if b.Code == codeSilent {
			why = b.Detail
		}
	}
	r.mu.Unlock()
	if s == nil || !silent || over && !s.Cleanup || !r.mayLeave() {
		return
	}
	if s.Cleanup && !r.leaveCleanup(s) {
		return
	}
	r.leave(s.ID, codeSilent, why, r.agent.mono()-holdUnknown)
	if s.Cleanup {
		cut(errLeft)
	} else {
		r.requestStop()
	}
}

// leaveCleanup has the run end with what is to be cleaned up, unless the step just ended.
func (r *run) leaveCleanup(s *stepState) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = r.outwaiting == s
	return r.left
}

// leftCleanup tells whether the run ends so.
func (r *run) leftCleanup() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// answered takes back that nothing answers.
func (r *run) answered(s *stepState) { r.lifted(s, codeSilent) }

// lifted takes back what a step is shown to wait for.
func (r *run) lifted(s *stepState, codes ...string) {
	if !r.shows(s, codes...) {
		return
	}
	r.progressed(s.Name, func(p *operation.Progress) {
		left := slices.DeleteFunc(slices.Clone(p.Blockers), func(b protocol.Blocker) bool { return slices.Contains(codes, b.Code) })
		// Also when nothing is left: the next silence has a time of its own.
		if p.Blockers = r.obstacles.now(r.dated(r.agent.now()), left); len(left) == 0 {
			p.Blockers = nil
		}
	})
}

// shows tells whether a step is shown to wait for any of these.
func (r *run) shows(s *stepState, codes ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress.Step == s.Name && slices.ContainsFunc(r.progress.Blockers, func(b protocol.Blocker) bool { return slices.Contains(codes, b.Code) })
}
