package operation

import (
	"strings"
	"testing"
	"time"
)

// TestADeadAgentIsNamed: where the deadline finds no agent since the one that held the
// operation fell silent, that is what is to be mended, beside what it had waited for.
func TestADeadAgentIsNamed(t *testing.T) {
	t.Parallel()
	held := func() *history { return running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning)) }
	shown := func() *history {
		h := held()
		return h.after(t, Renew{Agent: "agt_a", Generation: h.s.Generation, Until: h.at, Progress: &Progress{Step: "evict", Message: "budget web allows none"}})
	}
	noAgent := &Waiting{Code: WaitNoAgent, Detail: "none online"}
	const dead = "agent agt_a was not heard of any more"
	for name, c := range map[string]struct {
		h              *history
		act            string
		says, mend, no string
	}{
		"it held the lease":      {held(), ActRecoverAgent, dead, "agent agt_a", "budget"},
		"it had lost the lease":  {held().after(t, LoseLease{}), ActRecoverAgent, dead, "agent agt_a", "budget"},
		"with a last word":       {shown().after(t, LoseLease{}), ActRecoverAgent, "budget web allows none; " + dead, "mend what it waited for", "journal"},
		"and no other is online": {held().after(t, LoseLease{}, Ring{noAgent}), ActRecoverAgent, "no_agent: none online; " + dead, "agent agt_a", "budget"},
		"no agent from the start": {admit(t, testSpec()).after(t, Dispatch{noAgent}), ActRecoverAgent, "no_agent: none online",
			"bring an agent of the cluster back", "agt_a"},
		"another took over, and gave it back": {held().after(t, LoseLease{}).claimed(t), ActEscalate, "the deadline passed", "journal", "agt_a"},
	} {
		h := c.h
		if c.act == ActEscalate {
			h.after(t, h.report(&Final{Outcome: FinalAmbiguous, Message: "the host does not answer"}))
		}
		r := h.after(t, Expire{}).wantPhase(t, TimedOut).s.Result
		if r.NextAction.Code != c.act || !strings.Contains(r.Cause.Detail, c.says) || !strings.Contains(r.NextAction.Text, c.mend) ||
			strings.Contains(r.NextAction.Text, c.no) || r.Message != r.Cause.Detail {
			t.Errorf("%s: %+v, cause %+v", name, r.NextAction, r.Cause)
		}
	}
}

// TestAnAbsentPlaneBlamesNoAgent: while the plane itself is away no agent can be heard of.
func TestAnAbsentPlaneBlamesNoAgent(t *testing.T) {
	t.Parallel()
	held := func() *history { return running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning)) }
	since := func(h *history) time.Time { return h.at.Add(-3 * time.Minute) }
	for name, c := range map[string]struct {
		h         *history
		act       string
		away      bool
		says, not string
	}{
		"an agent held it":               {held(), ActEscalate, true, "and could not hear of agent agt_a", "was not heard of"},
		"nobody had begun it":            {admit(t, testSpec()).after(t, Dispatch{}), ActEscalate, true, "the plane did not look after it", "agt_a"},
		"no agent was there before":      {admit(t, testSpec()).after(t, Dispatch{&Waiting{Code: WaitNoAgent, Detail: "none online"}}), ActRecoverAgent, true, "none online", "agt_a"},
		"its agent was silent before":    {held().after(t, LoseLease{}), ActRecoverAgent, true, "agent agt_a was not heard of any more", "could not hear"},
		"its agent's lease was lost now": {nearly(held()).after(t, LoseLease{}), ActEscalate, false, "too late for another to take over", "was not heard of"},
	} {
		var from time.Time
		if c.away {
			from = since(c.h)
		}
		r := c.h.after(t, Expire{Away: from}).wantPhase(t, TimedOut).s.Result
		if r.NextAction.Code != c.act || !strings.Contains(r.Cause.Detail, c.says) || strings.Contains(r.Cause.Detail, c.not) {
			t.Errorf("%s: %+v, cause %+v", name, r.NextAction, r.Cause)
		}
	}
	h := held()
	from := since(h)
	h.after(t, LoseLease{Away: from}).wantPhase(t, Reconciling)
	if last := h.entries[len(h.entries)-1]; !strings.Contains(last.Detail, "the plane did not look after it from "+from.UTC().Format(time.RFC3339)) || strings.Contains(last.Detail, "was not heard of") {
		t.Errorf("%+v", last)
	}
}

// TestAFailureOutlivesTheDeadline: what a step failed of is the cause, where only the
// cleanup was left to do when the deadline passed. What a cancel or the deadline cut short
// has failed of nothing.
func TestAFailureOutlivesTheDeadline(t *testing.T) {
	t.Parallel()
	evicted := func(code string) *history {
		return running(t).told(t, is("look", StepRunning), StepReport{StepID: "stp_look", Phase: StepSucceeded, Outcome: OutcomeDone}, is("evict", StepRunning),
			StepReport{StepID: "stp_evict", Phase: StepFailed, Outcome: OutcomePermanent, ErrorCode: code, Detail: "budget web allows none", CommandID: "cmd_1"})
	}
	left := func(h *history) *history { return h.after(t, h.report(&Final{Outcome: FinalHandBack})) }
	const dead = "agent agt_a was not heard of any more"
	for name, c := range map[string]struct {
		h          *history
		code, act  string
		says, text string
	}{
		"handed back":                  {left(evicted("pdb_blocked")), "pdb_blocked", ActEscalate, "evict failed: budget web allows none; then the deadline passed", "mend what failed, bring"},
		"its agent is gone":            {evicted("pdb_blocked").after(t, LoseLease{}), "pdb_blocked", ActRecoverAgent, dead, "agent of the cluster back, mend what failed"},
		"its agent held it, cancelled": {evicted("pdb_blocked").after(t, RequestCancel{By: person}), "pdb_blocked", ActRecoverAgent, dead, "ask for a new operation"},
		"without a code":               {left(evicted("")), "step_failed", ActEscalate, "budget web allows none", "ask for a new operation"},
	} {
		r := c.h.after(t, Expire{}).wantPhase(t, TimedOut).s.Result
		if r.Cause.ErrorCode != c.code || r.Cause.StepID != "stp_evict" || r.NextAction.Code != c.act || !strings.Contains(r.NextAction.Text, c.text) || !strings.Contains(r.Message, c.says) ||
			r.Cleanup.State != CleanupAbandoned || len(r.Residual) == 0 || r.Retryable {
			t.Errorf("%s: %+v, cause %+v, next %+v", name, r, r.Cause, r.NextAction)
		}
	}
	for _, code := range []string{CodeCancelled, CodeDeadline} {
		if r := left(evicted(code)).after(t, Expire{}).wantPhase(t, TimedOut).s.Result; r.Cause.ErrorCode != CodeDeadline {
			t.Errorf("%s: cause %+v", code, r.Cause)
		}
	}
}

// TestCleanupThatWasOver: where the plane ends what its agent could not, the cleanup is what
// that agent had told of it.
func TestCleanupThatWasOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		told StepReport
		want Cleanup
	}{
		"done":      {StepReport{Phase: StepSucceeded, Outcome: OutcomeDone}, Cleanup{State: CleanupDone}},
		"nothing":   {StepReport{Phase: StepSkipped, Outcome: OutcomeDone, Detail: "no cordon"}, Cleanup{State: CleanupNone, Detail: "restore: no cordon"}},
		"failed":    {StepReport{Phase: StepFailed, Outcome: OutcomePermanent, ErrorCode: "admission_refused", Detail: "refused"}, Cleanup{State: CleanupFailed, Detail: "restore: refused"}},
		"under way": {StepReport{Phase: StepRunning}, Cleanup{State: CleanupAbandoned, Detail: "no agent held the operation when it ended"}},
	} {
		c.told.StepID = "stp_restore"
		h := running(t).told(t, is("look", StepRunning), is("look", StepSucceeded), is("evict", StepRunning),
			StepReport{StepID: "stp_evict", Phase: StepFailed, Outcome: OutcomePermanent, ErrorCode: "pdb_blocked"}, is("restore", StepRunning), c.told)
		if r := h.after(t, LoseLease{}, Expire{}).wantPhase(t, TimedOut).s.Result; r.Cleanup != c.want {
			t.Errorf("%s: %+v, want %+v", name, r.Cleanup, c.want)
		}
	}
}

// nearly is ten seconds before the deadline.
func nearly(h *history) *history {
	h.at = h.s.Deadline.Add(-10 * time.Second)
	return h
}
