package loop

import "github.com/opsplane/opsplane/shared/protocol"

// undelivered closes the outbox and returns, as one report, everything that the
// plane did not acknowledge. A report under way that says it all keeps its
// number, so that the plane can tell a resend.
func (o *outbox) undelivered() protocol.Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = errLeaseOver
		o.notify()
	}
	f := &frozen{draft: o.draft}
	if o.frozen != nil {
		if o.draft.empty() {
			f = o.frozen
		} else {
			was := o.frozen.draft
			f.draft.steps = append(append([]stepAt(nil), was.steps...), o.draft.steps...)
			f.draft.commands = append(append([]*commandAt(nil), was.commands...), o.draft.commands...)
			f.draft.notes = append(append([]protocol.Note(nil), was.notes...), o.draft.notes...)
		}
	}
	if f.n == 0 {
		o.lastN++
		f.n = o.lastN
	}
	f.draft.commands = newest(f.draft.commands, reportCommands)
	f.draft.steps = newest(f.draft.steps, reportSteps)
	f.draft.notes = newest(f.draft.notes, draftNotes)
	f.draft.settled = false
	return o.render(f, o.mono())
}

// newest returns the last n of s: they tell most.
func newest[T any](s []T, n int) []T { return s[max(len(s)-n, 0):] }

func (o *outbox) wasTold() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.told
}

// strip makes a refused final report a plain one, once: the outcome and its
// cause are what must not be lost.
func (o *outbox) strip() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frozen == nil || o.frozen.draft.final == nil || o.stripped {
		return false
	}
	o.stripped = true
	f := *o.frozen.draft.final
	f.Observed, f.Details, f.Verified, f.NotVerified, f.Residual = nil, nil, nil, nil, nil
	o.lastN++
	o.frozen = &frozen{n: o.lastN, covers: o.frozen.covers, draft: draft{
		steps: o.frozen.draft.steps, final: &f,
		notes: []protocol.Note{{Code: "report_stripped", Detail: "the plane refused the full report"}},
	}}
	o.state = queued
	o.push(o)
	return true
}

// lost is the answer that the lease is over; told: the plane has heard its end,
// as a late one.
func (o *outbox) lost(told bool) { o.shut(errLeaseLost, told) }

// shut closes the outbox with the end of its call: no answer is on its way.
func (o *outbox) shut(err error, told bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	o.told = o.told || told
	o.rest()
}
