package operation

import (
	"strings"
	"testing"
	"time"
)

// left tells what the result says of a step's resource; "": nothing.
func (h *history) left(step string) string {
	for _, r := range h.s.Result.Residual {
		if r.Step == step && r.Resource == "nod_1" {
			return r.Detail
		}
	}
	return ""
}

// TestAPersonsWordProvesNothing: a step that cannot be interrupted goes on without its
// agent. Whatever a person says became of it, its resource is left unproven until a
// probe has read it, however the operation ends then.
func TestAPersonsWordProvesNothing(t *testing.T) {
	t.Parallel()
	unsure := func() *history { // the reset's agent is gone
		return running(t).told(t, is("look", StepSucceeded), is("evict", StepSucceeded), is("reset", StepRunning)).after(t, LoseLease{})
	}
	say := func(outcome string) Resolve {
		return Resolve{StepID: "stp_reset", Outcome: outcome, By: person, Evidence: "saw it"}
	}
	agent := func(outcome string, steps ...StepReport) func(h *history) Change {
		return func(h *history) Change {
			return h.claimed(t).report(&Final{Outcome: outcome, Retryable: true}, steps...)
		}
	}
	for name, c := range map[string]struct {
		says   string
		cancel bool
		then   func(h *history) Change
		phase  Phase
		left   bool
	}{
		"failed":                           {says: ResolveFailed, phase: Failed, left: true},
		"cancelled, not done":              {says: ResolveNotDone, cancel: true, phase: Cancelled, left: true},
		"cancelled, done":                  {says: ResolveDone, cancel: true, phase: Cancelled, left: true},
		"done, and its agent ends it well": {says: ResolveDone, then: agent(FinalSucceeded, is("extra", StepSkipped)), phase: Succeeded, left: true},
		"done, and its agent fails":        {says: ResolveDone, then: agent(FinalFailed, is("extra", StepFailed)), phase: Failed, left: true},
		"done, and nobody goes on":         {says: ResolveDone, then: func(*history) Change { return Expire{} }, phase: TimedOut, left: true},
		"not done, issued again and done":  {says: ResolveNotDone, then: agent(FinalSucceeded, is("reset", StepRunning), is("reset", StepSucceeded)), phase: Succeeded},
	} {
		h := unsure()
		if c.cancel {
			h.after(t, RequestCancel{By: person})
		}
		if h.after(t, say(c.says)); c.then != nil {
			h.after(t, c.then(h))
		}
		h.wantPhase(t, c.phase)
		if got := h.left("reset"); c.left != (got != "") || c.left && !strings.Contains(got, "settled as "+c.says+" by "+person.ID) {
			t.Errorf("%s: the reset is left as %q", name, got)
		}
		if want := c.phase == Succeeded && !c.left; h.s.Settles() != want {
			t.Errorf("%s: it settles what others left: %v", name, !want)
		}
	}

	// All on a person's word: that settles nothing for anybody else either.
	h := running(t).told(t, is("look", StepSucceeded), is("reset", StepSucceeded), is("extra", StepSkipped), is("evict", StepRunning)).after(t, LoseLease{})
	h.after(t, Resolve{StepID: "stp_evict", Outcome: ResolveDone, By: person, Evidence: "saw it"}).wantPhase(t, Succeeded)
	if h.s.Settles() || len(h.s.Result.Residual) != 0 {
		t.Errorf("settles %v, residual %+v", h.s.Settles(), h.s.Result.Residual)
	}
}

// TestARetryProbesWhatAPersonSettled: what a person said of a step in one run keeps
// nobody from reading it in the next.
func TestARetryProbesWhatAPersonSettled(t *testing.T) {
	t.Parallel()
	h := unsure(t).after(t, Resolve{StepID: "stp_evict", Outcome: ResolveFailed, By: person, Evidence: "saw it"}).wantPhase(t, Failed)
	h.after(t, Retry{By: person, Deadline: t0.Add(2 * time.Hour)}, Dispatch{}).claimed(t)
	if st := h.step("evict"); st.Phase != StepPending || st.Resolved != nil || !NeedsProbe(h.spec, &h.s) {
		t.Errorf("step %+v", st)
	}
}

// TestAMarkStays: one operation's runs leave one mark, beside those of others, and a
// good end that leaves something takes none of them away.
func TestAMarkStays(t *testing.T) {
	t.Parallel()
	l := LockState{Unsettled: []string{"op_0", "op_1"}}
	for _, op := range []string{"op_1", "op_2"} {
		l = l.Release(op, true, true)
	}
	if got := strings.Join(l.Unsettled, " "); got != "op_0 op_1 op_2" {
		t.Errorf("unsettled by %s", got)
	}
}
