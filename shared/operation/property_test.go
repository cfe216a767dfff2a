package operation

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// anyChange draws a change: mostly one that makes sense, often one that is late,
// foreign or wrong.
func anyChange(rt *rapid.T, h *history) Change {
	agent := rapid.SampledFrom([]string{"agt_a", "agt_a", "agt_b"}).Draw(rt, "agent")
	gen := h.s.Generation + rapid.SampledFrom([]int64{0, 0, 0, -1, 1}).Draw(rt, "generation")
	waiting := rapid.SampledFrom([]*Waiting{nil, {Code: WaitNoAgent, Since: h.at}, {Code: WaitQuota, Since: h.at, Detail: "d"}})
	switch rapid.IntRange(0, 15).Draw(rt, "change") {
	case 0, 1:
		return Dispatch{waiting.Draw(rt, "waiting")}
	case 2:
		return Ring{waiting.Draw(rt, "waiting")}
	case 3:
		return Wait{waiting.Draw(rt, "waiting")}
	case 4, 5:
		return Claim{Agent: agent, Boot: "b", Until: h.at.Add(15 * time.Second)}
	case 6:
		return Renew{Agent: agent, Generation: gen, Until: h.at.Add(15 * time.Second), Progress: &Progress{Step: "evict"}}
	case 7:
		return RequestCancel{By: person, Reason: "r"}
	case 8:
		return LoseLease{}
	case 9:
		if rapid.IntRange(0, 3).Draw(rt, "rarely") > 0 {
			return LoseLease{}
		}
		return Expire{}
	case 10:
		return Retry{By: person, Reason: "r", Deadline: h.at.Add(time.Hour)}
	case 11:
		return LateReport{Agent: agent, Generation: gen}
	case 12:
		return Resolve{StepID: rapid.SampledFrom(h.spec.Steps).Draw(rt, "step").ID, By: person, Evidence: "e",
			Outcome: rapid.SampledFrom([]string{ResolveDone, ResolveFailed, ResolveNotDone, "x"}).Draw(rt, "outcome")}
	case 13:
		return rapid.SampledFrom([]Change{StartLocal{}, CannotStart{Cause: Cause{ErrorCode: "x"}, Retryable: true}, UpdateChildren{}}).Draw(rt, "rare")
	}
	r := Report{Agent: agent, Generation: gen, N: rapid.Int64Range(1, 3).Draw(rt, "n"), Settled: rapid.Bool().Draw(rt, "settled")}
	if l := h.s.Lease; l != nil {
		r.N += max(l.LastReport-1, 0)
	}
	phases := []StepPhase{StepPending, StepRunning, StepRunning, StepSucceeded, StepSucceeded, StepSucceeded, StepFailed, StepSkipped, StepUnknown}
	for range rapid.IntRange(0, 5).Draw(rt, "steps") {
		id := rapid.SampledFrom(h.spec.Steps).Draw(rt, "step").ID
		if rapid.IntRange(0, 30).Draw(rt, "foreign") == 0 {
			id = "stp_foreign"
		}
		r.Steps = append(r.Steps, StepReport{StepID: id, Phase: rapid.SampledFrom(phases).Draw(rt, "phase"),
			Outcome: rapid.SampledFrom([]string{"", OutcomeDone, OutcomeTransient}).Draw(rt, "outcome")})
	}
	if rapid.Bool().Draw(rt, "final") {
		r.Final = &Final{Retryable: true, Message: "m", Outcome: rapid.SampledFrom(
			[]string{FinalSucceeded, FinalFailed, FinalCancelled, FinalTimedOut, FinalAmbiguous, FinalHandBack}).Draw(rt, "end")}
	}
	return r
}

// TestAnyHistory: whatever happens to an operation, in whatever order, it keeps
// its promises.
func TestAnyHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		h := admit(t, testSpec())
		for range rapid.IntRange(1, 60).Draw(rt, "length") {
			h.at = h.at.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 20, 900}).Draw(rt, "pause")) * time.Second)
			c := anyChange(rt, h)
			old := h.s
			given, _ := json.Marshal(old)
			err := h.try(c)
			if now, _ := json.Marshal(old); string(now) != string(given) {
				rt.Fatalf("%T wrote to what it was given", c)
			}
			if err != nil {
				continue
			}
			checkMove(rt, old, h.s, c)
			checkState(rt, h)
		}
	})
}

// checkMove checks one change.
func checkMove(rt *rapid.T, old, s State, c Change) {
	_, retry := c.(Retry)
	if old.Phase != s.Phase && !slices.ContainsFunc(Transitions, func(x Transition) bool { return x.From == old.Phase && x.To == s.Phase }) {
		rt.Fatalf("%T moved it from %s to %s", c, old.Phase, s.Phase)
	}
	if old.Phase.Terminal() && s.Phase != old.Phase && !(retry && old.Phase == Failed && s.Phase == Pending) {
		rt.Fatalf("%T moved what had ended: %s to %s", c, old.Phase, s.Phase)
	}
	if s.Generation < old.Generation || s.Generation > old.Generation+1 {
		rt.Fatalf("%T: generation %d after %d", c, s.Generation, old.Generation)
	}
	if old.Cancel != nil && s.Cancel == nil && !retry {
		rt.Fatalf("%T lost who asked for the cancel", c)
	}
	if s.Run != old.Run && !(retry && s.Run == old.Run+1) {
		rt.Fatalf("%T: run %d after %d", c, s.Run, old.Run)
	}
	if s.Journal.Seq < old.Journal.Seq {
		rt.Fatalf("%T: the journal shrank", c)
	}
	if s.Revision < old.Revision || s.Revision > old.Revision+1 || s.Journal.Seq != old.Journal.Seq && s.Revision == old.Revision {
		rt.Fatalf("%T: revision %d after %d", c, s.Revision, old.Revision)
	}
	if s.Revision == old.Revision {
		a, b := old, s
		for _, x := range []*State{&a, &b} { // what nobody is shown
			x.Lease, x.RungAt, x.Rings, x.Probes = nil, nil, 0, 0
		}
		was, _ := json.Marshal(a)
		is, _ := json.Marshal(b)
		if string(was) != string(is) {
			rt.Fatalf("%T changed what is shown under one revision:\n%s\n%s", c, was, is)
		}
	}
	for i := range s.Steps {
		was, is := old.Steps[i].Attempts, s.Steps[i].Attempts
		if len(is) < len(was) {
			rt.Fatalf("%T lost attempts of step %d", c, i)
		}
		for j := range min(len(was), len(is)) {
			if len(is) < maxAttempts && (was[j].N != is[j].N || was[j].Run != is[j].Run || was[j].Generation != is[j].Generation) {
				rt.Fatalf("%T rewrote attempt %d of step %d", c, j, i)
			}
		}
	}
	if _, ok := c.(LateReport); ok {
		s.Journal, s.UpdatedAt, s.Revision = old.Journal, old.UpdatedAt, old.Revision
		s.Assignments = slices.Clone(s.Assignments)
		for i := range s.Assignments {
			s.Assignments[i].Late = i < len(old.Assignments) && old.Assignments[i].Late
		}
		a, _ := json.Marshal(old)
		b, _ := json.Marshal(s)
		if string(a) != string(b) {
			rt.Fatal("a late report changed something")
		}
	}
}

// checkState checks what is true of every operation at every time.
func checkState(rt *rapid.T, h *history) {
	s := &h.s
	if err := VerifyChain(h.entries, s.Journal); err != nil {
		rt.Fatal(err)
	}
	if s.Lease != nil && (!s.Phase.Leasable() || s.Lease.Generation != s.Generation) {
		rt.Fatalf("%s at generation %d with lease %+v", s.Phase, s.Generation, s.Lease)
	}
	for i, a := range s.Assignments {
		open := s.Lease != nil && i == len(s.Assignments)-1
		if open != (a.Until == nil) || open != (a.Ended == "") {
			rt.Fatalf("assignment %d of %d: %+v, lease %+v", i, len(s.Assignments), a, s.Lease)
		}
		if i > 0 && a.Generation <= s.Assignments[i-1].Generation {
			rt.Fatalf("assignments out of order: %+v", s.Assignments)
		}
	}
	if terminal := s.Phase.Terminal(); terminal != (s.Result != nil) || terminal != (s.FinishedAt != nil) {
		rt.Fatalf("%s with result %+v, finished at %v", s.Phase, s.Result, s.FinishedAt)
	}
	if s.Result != nil && s.Result.Outcome != s.Phase {
		rt.Fatalf("%s with outcome %s", s.Phase, s.Result.Outcome)
	}
	if s.Waiting != nil && s.Phase != Pending && s.Phase != Dispatched && s.Phase != Reconciling {
		rt.Fatalf("%s and waiting %+v", s.Phase, s.Waiting)
	}
	for i, st := range s.Steps {
		p := h.spec.Steps[i]
		if st.Phase == StepRunning && s.Lease == nil {
			rt.Fatalf("step %s runs and nobody holds the lease", p.Name)
		}
		if st.Phase.Settled() != (st.FinishedAt != nil) {
			rt.Fatalf("step %s is %s, finished at %v", p.Name, st.Phase, st.FinishedAt)
		}
		for j, a := range st.Attempts {
			if (a.EndedAt == nil) != (st.Phase == StepRunning && j == len(st.Attempts)-1) {
				rt.Fatalf("step %s is %s, attempt %d of %d is %+v", p.Name, st.Phase, j+1, len(st.Attempts), a)
			}
		}
		if s.Phase == Succeeded && p.Required && st.Phase != StepSucceeded {
			rt.Fatalf("succeeded, and step %s is %s", p.Name, st.Phase)
		}
		if s.Phase.Terminal() && st.Phase == StepUnknown &&
			!slices.ContainsFunc(s.Result.Residual, func(r Residual) bool { return r.StepID == p.ID && r.Resource == p.Resources[0] }) {
			rt.Fatalf("%s: step %s is unknown and not listed as residual", s.Phase, p.Name)
		}
	}
}
