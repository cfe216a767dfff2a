package operation

import (
	"strings"
	"testing"
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
