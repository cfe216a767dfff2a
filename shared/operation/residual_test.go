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
	again := []StepReport{is("reset", StepRunning), is("reset", StepSucceeded)}
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
		"not done, issued again and done":  {says: ResolveNotDone, then: agent(FinalSucceeded, again...), phase: Succeeded, left: true},
		"not done, issued again, fails":    {says: ResolveNotDone, then: agent(FinalFailed, again[0], is("reset", StepFailed)), phase: Failed, left: true},
		"not done, issued again and lost, which a probe could tell": {says: ResolveNotDone, then: func(h *history) Change {
			h.claimed(t).told(t, again[0]).after(t, LoseLease{})
			return h.claimed(t).report(&Final{Outcome: FinalSucceeded}, again[1])
		}, phase: Succeeded},
		"not done, issued again and lost, done": {says: ResolveNotDone, then: func(h *history) Change {
			h.claimed(t).told(t, again[0]).after(t, LoseLease{}, say(ResolveDone))
			return h.claimed(t).report(&Final{Outcome: FinalSucceeded}, is("extra", StepSkipped))
		}, phase: Succeeded, left: true},
	} {
		h := unsure()
		if c.cancel {
			h.after(t, RequestCancel{By: person})
		}
		if h.after(t, say(c.says)); c.then != nil {
			h.after(t, c.then(h))
		}
		h.wantPhase(t, c.phase)
		if got := h.left("reset"); c.left != (got != "") || c.left && (!strings.Contains(got, "settled as ") || !strings.Contains(got, " by "+person.ID)) {
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

// TestWhatNobodyLookedAtIsNamed: an operation that ends without anybody looking names
// what its steps began and nothing undid. Who looked says for itself what is left.
func TestWhatNobodyLookedAtIsNamed(t *testing.T) {
	t.Parallel()
	drain := func() *history {
		spec := testSpec()
		d, _ := Lookup("node.drain")
		_, spec.Steps, _ = BuildPlan(d, spec.ID, Target{Kind: KindNode, ID: "nod_1"}, []byte(`{"on_cancel":"restore"}`))
		for i := range spec.Steps {
			spec.Steps[i].ID = "stp_" + spec.Steps[i].Name
		}
		return admit(t, spec).after(t, Dispatch{}).claimed(t)
	}
	ran := func(steps ...string) (rs []StepReport) {
		for _, s := range steps {
			done := is(s, StepSucceeded)
			done.Outcome = OutcomeDone
			rs = append(rs, is(s, StepRunning), done)
		}
		return rs
	}
	cordoned := func() *history { return drain().told(t, ran("preflight", "cordon")...) }
	waiting := func() *history {
		return cordoned().told(t, ran("evict")...).told(t, is("wait", StepRunning))
	}
	late := func(h *history) *history { h.at = h.s.Deadline; return h }
	const cordon, evict = `"Mark the node unschedulable" was carried out`, `"Evict the planned pods" was `
	for name, c := range map[string]struct {
		h    *history
		end  func(h *history) Change
		want map[string]string
	}{
		"dead at the deadline": {waiting(), func(*history) Change { return Expire{} },
			map[string]string{"cordon": cordon, "evict": evict + "carried out"}},
		"dead in the eviction": {cordoned().told(t, is("evict", StepRunning)), func(*history) Change { return Expire{} },
			map[string]string{"cordon": cordon, "evict": "its outcome is unknown"}},
		"nothing was begun":     {drain().told(t, is("preflight", StepRunning)), func(*history) Change { return Expire{} }, nil},
		"found done, not begun": {drain().told(t, is("preflight", StepSucceeded), is("cordon", StepSucceeded)), func(*history) Change { return Expire{} }, nil},
		"the agent could not look": {late(waiting()), func(h *history) Change { return h.report(&Final{Outcome: FinalTimedOut}) },
			map[string]string{"cordon": cordon, "evict": evict + "carried out"}},
		"the agent looked": {late(waiting()), func(h *history) Change {
			return h.report(&Final{Outcome: FinalTimedOut, Observed: true, Residual: []Residual{{StepID: "stp_wait", Step: "wait", Resource: "nod_1", Detail: "a pod"}}})
		}, map[string]string{"wait": "a pod"}},
		"its own words stand": {late(waiting()), func(h *history) Change {
			return h.report(&Final{Outcome: FinalTimedOut, Residual: []Residual{{StepID: "stp_cordon", Step: "cordon", Resource: "nod_1", Detail: "left cordoned"}}})
		}, map[string]string{"cordon": "left cordoned", "evict": evict + "carried out"}},
		"handed back, refused before, cancelled": {cordoned().told(t, is("evict", StepRunning),
			StepReport{StepID: "stp_evict", Phase: StepPending, Outcome: OutcomeWaiting, Detail: "budget web allows none"}), func(h *history) Change {
			h.after(t, h.report(&Final{Outcome: FinalHandBack}))
			return RequestCancel{By: person}
		}, map[string]string{"cordon": cordon, "evict": evict + "begun (budget web allows none)"}},
		"failed, and no time to clean up": {cordoned().told(t, is("evict", StepRunning), StepReport{StepID: "stp_evict", Phase: StepFailed, Detail: "budget web allows none"}),
			func(h *history) Change {
				return h.report(&Final{Outcome: FinalFailed, Cleanup: &Cleanup{State: CleanupAbandoned}})
			}, map[string]string{"cordon": cordon, "evict": evict + "begun (budget web allows none)"}},
		"cleaned up, and could not look": {cordoned().after(t, RequestCancel{By: person}).told(t, ran("restore")...),
			func(h *history) Change { return h.report(&Final{Outcome: FinalCancelled}) }, nil},
		"failed by hand": {cordoned().told(t, is("evict", StepRunning)).after(t, LoseLease{}),
			func(*history) Change {
				return Resolve{StepID: "stp_evict", Outcome: ResolveFailed, By: person, Evidence: "saw it"}
			},
			map[string]string{"cordon": cordon, "evict": evict + "settled as failed by " + person.ID}},
		"it never took effect": {cordoned().told(t, is("evict", StepRunning)).after(t, LoseLease{}, RequestCancel{By: person}),
			func(*history) Change {
				return Resolve{StepID: "stp_evict", Outcome: ResolveNotDone, By: person, Evidence: "saw it"}
			},
			map[string]string{"cordon": cordon}},
	} {
		h := c.h.after(t, c.end(c.h))
		if !h.s.Phase.Terminal() || len(h.s.Result.Residual) != len(c.want) {
			t.Errorf("%s: %s, residual %+v", name, h.s.Phase, h.s.Result.Residual)
		}
		for step, want := range c.want {
			if got := h.left(step); !strings.Contains(got, want) || strings.HasPrefix(want, `"`) && !strings.HasSuffix(got, "not verified") {
				t.Errorf("%s: %s is left as %q, want %q", name, step, got, want)
			}
		}
	}
}
