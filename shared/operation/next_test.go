package operation

import (
	"testing"
	"time"
)

// TestNextActionIsOneThatWorks: nobody is told to retry what /retry refuses, whoever
// worded the advice.
func TestNextActionIsOneThatWorks(t *testing.T) {
	t.Parallel()
	evicting := func() *history { return running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning)) }
	resetting := func() *history {
		return running(t).told(t, is("look", StepSucceeded), is("evict", StepSucceeded), is("reset", StepRunning))
	}
	ends := func(h *history, outcome, text string, steps ...StepReport) *history {
		if outcome == FinalTimedOut {
			h.at = h.s.Deadline
		}
		return h.after(t, h.report(&Final{Outcome: outcome, Retryable: true, NextAction: &NextAction{Code: ActRestoreDependency, Text: text}}, steps...))
	}
	last := func() *history {
		h := running(t)
		for range MaxRuns - 1 {
			ends(h, FinalFailed, "x", is("look", StepFailed))
			h.after(t, Retry{By: person, Deadline: h.at.Add(time.Hour)}, Dispatch{}).claimed(t)
		}
		return h
	}
	resolved := func(h *history, step string) *history {
		return h.after(t, LoseLease{}, Resolve{StepID: "stp_" + step, Outcome: ResolveFailed, By: person, Evidence: "saw it"})
	}
	const mend, later = "ask its owner, then retry", "ask its owner, then ask again with a later deadline"
	for name, c := range map[string]struct {
		h         *history
		retryable bool
		act, text string
	}{
		"failed":                         {ends(evicting(), FinalFailed, mend, is("evict", StepFailed)), true, ActRestoreDependency, mend},
		"timed out":                      {ends(evicting(), FinalTimedOut, mend, is("evict", StepFailed)), false, ActRestoreDependency, later},
		"timed out, nothing to mend":     {ends(evicting(), FinalTimedOut, "retry"), false, ActRestoreDependency, "ask again with a later deadline"},
		"timed out, in words of its own": {ends(evicting(), FinalTimedOut, "drain again"), false, ActRestoreDependency, "drain again"},
		"not to be run twice": {ends(resetting(), FinalFailed, mend, is("reset", StepFailed)), false, ActRestoreDependency,
			"ask its owner, then ask for a new operation"},
		"not to be run twice, left running": {ends(resetting(), FinalFailed, "retry"), false, ActRestoreDependency, "ask for a new operation"},
		"ran as often as it may":            {ends(last(), FinalFailed, mend, is("look", StepFailed)), false, ActRestoreDependency, "ask its owner, then ask for a new operation"},
		"settled by hand":                   {resolved(evicting(), "evict"), true, ActRetry, "see that nothing of it is under way any more and mend what failed, then retry"},
		"settled by hand, not to be run twice": {resolved(resetting(), "reset"), false, ActEscalate,
			"bring what the step left into order, and ask for a new operation: it probes first"},
	} {
		r := c.h.s.Result
		if r.Retryable != c.retryable || r.NextAction.Code != c.act || r.NextAction.Text != c.text {
			t.Errorf("%s: retryable %v, next %+v", name, r.Retryable, r.NextAction)
		}
		if err := c.h.try(Retry{By: person, Deadline: c.h.at.Add(time.Hour)}); (err == nil) != c.retryable {
			t.Errorf("%s: a retry says %v, and the result says %v", name, err, c.retryable)
		}
	}
}
