package loop

import (
	"cmp"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// codeUnreadable is the code of a finding that gives none.
const codeUnreadable = "unreadable"

// noteWaiting has the journal say what the step waits for, once.
func (r *run) noteWaiting(s *stepState, w *settling, since time.Duration, said executor.Outcome) {
	if w.noted == said.ErrorCode {
		return
	}
	w.noted, w.since = said.ErrorCode, since
	r.out.note(protocol.Note{Code: said.ErrorCode, Detail: said.Detail, StepID: s.ID})
}

// noteAnswer has the journal say that the wait is over: all that was asked for is read.
func (r *run) noteAnswer(w *settling) {
	if w.noted == "" {
		return
	}
	r.out.note(protocol.Note{Code: codeAnswered,
		Detail: fmt.Sprintf("the steps could be read, after %s of %s", (r.agent.mono() - w.since).Round(time.Second), w.noted)})
}

// unanswered tells whether the finding of a probe that was made at that time is none:
// nothing answered. An API server that has just started denies every right until it has
// read its roles, so that a denial counts as silence until steps believe it as well,
// also where this lease has met no silence: it may have begun after that. And a step
// that was never begun is not unknown, so that there is nothing for a person to say of
// it: it waits until it has the right, and until whatever else keeps it is over. So does any
// step whose probe has to make something that tells, which admission lets nobody make.
func (w *settling) unanswered(s *stepState, f executor.Finding, asked time.Duration) bool {
	if f.Phase != operation.StepUnknown {
		return false
	}
	switch f.ErrorCode {
	case codeSilent, codeUnconverted:
		if w.silent == nil {
			w.silent = &asked
		}
		w.denied, w.kept = nil, nil
		return true
	case codeForbidden:
		w.kept = nil
		if w.denied == nil {
			w.denied = &asked
		}
		if w.believed(asked) { // an answer, after all
			w.silent = nil
		}
		return !s.begun && !w.restored || !w.believed(asked)
	}
	if (s.begun || w.restored) && f.ErrorCode != codeAdmission {
		return false
	}
	w.silent, w.denied = nil, nil
	by := cmp.Or(cut(clean(f.ErrorCode), 128), codeUnreadable)
	if w.kept == nil || w.keptBy != by {
		w.kept, w.keptBy = &asked, by
	}
	return true
}

// kept shows what keeps a step that never began: what the probe names, or that it could
// not tell.
func (r *run) kept(s *stepState, since time.Time, said executor.Outcome, named *protocol.Blocker) {
	b := protocol.Blocker{Resource: "step/" + s.Name}
	if named != nil {
		b = *named
	}
	b.Code, b.Detail = said.ErrorCode, said.Detail
	if since = r.dated(since); b.Since == nil || since.Before(*b.Since) {
		b.Since = &since
	}
	r.progressed(s.Name, func(p *operation.Progress) {
		p.Blockers = r.obstacles.now(r.dated(r.agent.now()), []protocol.Blocker{b})
	})
}

// heldFor is how long the lease has been held for want of an answer.
func (w *settling) heldFor(now time.Duration) time.Duration {
	switch {
	case w.silent != nil:
		return now - *w.silent
	case w.denied != nil:
		return now - *w.denied
	case w.kept != nil:
		return now - *w.kept
	}
	return 0
}

// faulty tells whether it is this agent's own fault that the probe has no answer: another
// agent, of another version say, may have one.
func (w *settling) faulty() bool {
	return w.kept != nil && (w.keptBy == codePanic || w.keptBy == codeNoAnswer)
}

// believed tells whether a right is missing for good, as far as can be told.
func (w *settling) believed(asked time.Duration) bool {
	return w.denied != nil && asked-*w.denied >= executor.DeniedFor
}
