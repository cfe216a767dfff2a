package operation

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestResendOfAReport(t *testing.T) {
	t.Parallel()
	h := running(t)
	r := h.report(nil, is("look", StepSucceeded), is("evict", StepRunning))
	h.after(t, r)
	before := h.s.Journal
	wantErr(t, h.try(r), ErrNoChange)
	r.Steps[1].Phase = StepFailed // a resend is told by its number alone
	wantErr(t, h.try(r), ErrNoChange)
	if h.s.Journal != before || h.step("evict").Phase != StepRunning {
		t.Error("a resend changed something")
	}
	r.N, r.Generation = 2, 0
	wantErr(t, h.try(r), ErrLeaseLost)
	r.Generation, r.Agent = 1, "agt_b"
	wantErr(t, h.try(r), ErrLeaseLost)
}

func TestReportsThatDoNotFit(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]func(h *history) Report{
		"foreign step": func(h *history) Report { return h.report(nil, StepReport{StepID: "stp_x", Phase: StepSucceeded}) },
		"step phase":   func(h *history) Report { return h.report(nil, StepReport{StepID: "stp_look", Phase: "melted"}) },
		"outcome":      func(h *history) Report { return h.report(&Final{Outcome: "exploded"}) },
		"nothing done": func(h *history) Report { return h.report(&Final{Outcome: FinalSucceeded}) },
		"a step skipped": func(h *history) Report {
			return h.report(&Final{Outcome: FinalSucceeded}, is("look", StepSkipped), is("evict", StepSucceeded), is("reset", StepSucceeded))
		},
		"no cancel": func(h *history) Report { return h.report(&Final{Outcome: FinalCancelled}) },
		"too early": func(h *history) Report { return h.report(&Final{Outcome: FinalTimedOut}) },
	} {
		h := running(t)
		before := h.s
		wantErr(t, h.try(r(h)), ErrInvalidReport)
		if h.s.Journal != before.Journal || h.s.Lease.LastReport != 0 {
			t.Errorf("%s: changed something", name)
		}
	}
}

func TestTimedOutWithinTheSlack(t *testing.T) {
	t.Parallel()
	h := running(t)
	h.at = h.s.Deadline.Add(-deadlineSlack - time.Second) // try adds a second
	h.after(t, h.report(&Final{Outcome: FinalTimedOut})).wantPhase(t, TimedOut)
	if c := h.s.Result.Cause; c == nil || c.ErrorCode != "deadline_exceeded" || h.s.Result.NextAction == nil {
		t.Errorf("result %+v", h.s.Result)
	}
}

func TestHandBack(t *testing.T) {
	t.Parallel()
	h := running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning))
	h.after(t, h.report(&Final{Outcome: FinalHandBack, Message: "stopping"})).wantPhase(t, Dispatched)
	if h.s.Lease != nil || h.s.Assignments[0].Ended != "handed_back" || h.step("evict").Phase != StepPending || h.step("look").Phase != StepSucceeded {
		t.Errorf("state %+v", h.s)
	}
	if h.s.RungAt == nil || h.s.Rings != 0 {
		t.Error("the next doorbell is not due at once")
	}
	h.claimed(t).wantPhase(t, Running)
	if h.s.Generation != 2 || !NeedsProbe(h.spec, &h.s) || h.step("evict").Phase != StepPending {
		t.Errorf("the second holder must probe: %+v", h.s)
	}

	// What is unknown is in flight: that is no hand-back.
	h = running(t).told(t, is("look", StepSucceeded), is("evict", StepUnknown))
	h.after(t, h.report(&Final{Outcome: FinalHandBack})).wantPhase(t, Reconciling)
	if h.s.Waiting == nil || h.s.Waiting.Code != WaitProbe || h.s.Assignments[0].Ended != "handed_back" || h.s.Rings != 0 {
		t.Errorf("state %+v: the next agent reads the world, no person is needed", h.s)
	}

	// So is what was being cancelled: its cleanup has not run.
	h = running(t).after(t, RequestCancel{By: person})
	h.after(t, h.report(&Final{Outcome: FinalHandBack})).wantPhase(t, Reconciling)

	// And what failed: a cancel then is no end before the cleanup, nor of its cause.
	h = running(t).told(t, is("look", StepSucceeded), is("evict", StepFailed))
	h.after(t, h.report(&Final{Outcome: FinalHandBack}), RequestCancel{By: person}).wantPhase(t, Reconciling)
}

func TestCancelOfWhatWasHandedBack(t *testing.T) {
	t.Parallel()
	h := running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning))
	h.after(t, h.report(&Final{Outcome: FinalHandBack}), RequestCancel{By: person, Reason: "r"}).wantPhase(t, Cancelled)
	r := h.s.Result
	if strings.Contains(r.Message, "before it started") || r.Cleanup.State != CleanupAbandoned || len(r.Completed) != 1 {
		t.Errorf("result %+v: it had begun, and its cleanup never ran", r)
	}
	h = admit(t, testSpec()).after(t, RequestCancel{By: person})
	if r := h.s.Result; r.Message != "cancelled before it started" || r.Cleanup.State != CleanupNone {
		t.Errorf("result %+v", r)
	}
}

func TestAmbiguous(t *testing.T) {
	t.Parallel()
	h := running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning))
	h.after(t, h.report(&Final{Outcome: FinalAmbiguous, Message: "no answer"})).wantPhase(t, Reconciling)
	if h.step("evict").Phase != StepUnknown || h.s.Lease != nil || h.s.Assignments[0].Ended != "ambiguous" || h.s.Waiting.Code != WaitProbe || h.s.Rings != 0 {
		t.Errorf("state %+v: the first probe is rung for at once", h.s)
	}
	h.claimed(t).wantPhase(t, Reconciling)
	if h.s.Waiting != nil || h.step("evict").Phase != StepUnknown {
		t.Errorf("claimed to probe: %+v", h.s)
	}
	// Probes that cannot tell come again with back-off, and leave a person room.
	for n := 1; n <= 6; n++ {
		h.after(t, h.report(&Final{Outcome: FinalAmbiguous, Message: "no answer"})).wantPhase(t, Reconciling)
		if h.s.Waiting.Code != WaitResolve || h.s.Lease != nil || h.s.Rings != n {
			t.Fatalf("after %d fruitless probes: %+v", n, h.s)
		}
		if wait := OneMachine.RingDue(&h.s).Sub(*h.s.RungAt); wait < min(OneMachine.RingAfter<<(n-1), maxRingAfter) {
			t.Errorf("after %d fruitless probes the next is rung for in %s", n, wait)
		}
		h.after(t, Ring{&Waiting{Code: WaitNoAgent}})
		if h.s.Waiting.Code != WaitResolve {
			t.Error("a ring hid that a person may have to settle it")
		}
		before := h.s.Journal.Seq
		h.claimed(t).wantPhase(t, Reconciling)
		if h.s.Waiting == nil || h.s.Journal.Seq-before > 2 {
			t.Errorf("claimed to probe: %+v", h.s)
		}
	}
	settled := h.report(nil)
	settled.Settled = true
	wantErr(t, h.try(settled), ErrInvalidReport) // evict is still unknown
	settled.Steps = []StepReport{is("evict", StepSucceeded)}
	h.after(t, settled).wantPhase(t, Running)
	h.after(t, h.report(&Final{Outcome: FinalSucceeded}, is("reset", StepSucceeded))).wantPhase(t, Succeeded)
	if len(h.s.Result.Residual) != 0 {
		t.Errorf("residual %+v", h.s.Result.Residual)
	}
}

func TestSettledGoesOnWithTheCancel(t *testing.T) {
	t.Parallel()
	h := unsure(t).after(t, RequestCancel{By: person, Reason: "r"}).wantPhase(t, Reconciling).claimed(t)
	settled := h.report(nil, is("evict", StepFailed))
	settled.Settled = true
	h.after(t, settled).wantPhase(t, Cancelling)
	h.after(t, h.report(&Final{Outcome: FinalCancelled, Cleanup: &Cleanup{State: CleanupDone}})).wantPhase(t, Cancelled)
	if h.s.Cancel == nil || h.s.Cancel.Reason != "r" || h.s.Result.Cleanup.State != CleanupDone {
		t.Errorf("state %+v", h.s)
	}
}

// TestResolve settles an unknown step in each way, beside what else was going on.
func TestResolve(t *testing.T) {
	t.Parallel()
	two := func() *history { // two steps are unknown
		return running(t).told(t, is("look", StepSucceeded), is("evict", StepUnknown), is("reset", StepUnknown)).after(t, LoseLease{})
	}
	resolve := func(step, outcome string) Resolve {
		return Resolve{StepID: "stp_" + step, Outcome: outcome, By: person, Evidence: "saw it", Reason: "agent is gone"}
	}
	cancel := RequestCancel{By: person}
	for name, c := range map[string]struct {
		h    *history
		cs   []Change
		want Phase
	}{
		"done, more to do":        {unsure(t), []Change{resolve("evict", ResolveDone)}, Dispatched},
		"not done":                {unsure(t), []Change{resolve("evict", ResolveNotDone)}, Dispatched},
		"failed":                  {unsure(t), []Change{resolve("evict", ResolveFailed)}, Failed},
		"cancelled, not done":     {unsure(t), []Change{cancel, resolve("evict", ResolveNotDone)}, Cancelled},
		"cancelled, done":         {unsure(t), []Change{cancel, resolve("evict", ResolveDone)}, Cancelled},
		"cancelled, failed":       {unsure(t), []Change{cancel, resolve("evict", ResolveFailed)}, Failed},
		"one of two":              {two(), []Change{resolve("evict", ResolveDone)}, Reconciling},
		"both done, more to do":   {two(), []Change{resolve("evict", ResolveDone), resolve("reset", ResolveDone)}, Dispatched},
		"the first of two failed": {two(), []Change{resolve("evict", ResolveFailed), resolve("reset", ResolveDone)}, Failed},
		"the last of two failed":  {two(), []Change{resolve("evict", ResolveDone), resolve("reset", ResolveFailed)}, Failed},
		"both not done":           {two(), []Change{resolve("evict", ResolveNotDone), resolve("reset", ResolveNotDone)}, Dispatched},
	} {
		for _, x := range c.cs {
			if err := c.h.try(x); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.h.wantPhase(t, c.want)
		last := c.h.entries[len(c.h.entries)-1]
		if c.want != Reconciling && (last.By != person || last.Reason != "agent is gone" || last.Detail != "saw it") {
			t.Errorf("%s: the journal ends with %+v", name, last)
		}
		if c.want == Failed && (c.h.s.Result.Cause == nil || c.h.s.Result.Cause.StepID == "" || c.h.s.Result.NextAction == nil) {
			t.Errorf("%s: result %+v", name, c.h.s.Result)
		}
	}

	h := running(t).told(t, is("look", StepSucceeded), is("reset", StepSucceeded), is("extra", StepSkipped), is("evict", StepRunning)).after(t, LoseLease{})
	h.after(t, resolve("evict", ResolveDone)).wantPhase(t, Succeeded)
	if nv := h.s.Result.NotVerified; len(h.s.Result.Verified) != 0 || len(nv) != 1 || !strings.Contains(nv[0], "settled as succeeded by "+person.ID) {
		t.Errorf("not verified %v: it does not say on whose word it rests", nv)
	}

	// What never took effect is issued again without asking a probe, and the
	// result says on whose word.
	h = unsure(t).after(t, resolve("evict", ResolveNotDone)).wantPhase(t, Dispatched).claimed(t).wantPhase(t, Running)
	if h.step("evict").Resolved == nil || h.step("evict").Phase != StepPending {
		t.Fatalf("step %+v", h.step("evict"))
	}
	h.told(t, is("evict", StepRunning))
	if h.step("evict").Resolved != nil {
		t.Error("the step was issued since: a probe decides again")
	}

	h = unsure(t)
	wantErr(t, h.try(resolve("look", ResolveDone)), ErrInvalidReport) // it is settled
	wantErr(t, h.try(resolve("nothing", ResolveDone)), ErrInvalidReport)
	wantErr(t, h.try(resolve("evict", "maybe")), ErrInvalidReport)
	wantErr(t, h.claimed(t).try(resolve("evict", ResolveDone)), ErrIllegal) // an agent is probing
	wantErr(t, running(t).try(resolve("look", ResolveDone)), ErrIllegal)
}

func TestRetryKeepsWhatWas(t *testing.T) {
	t.Parallel()
	h := running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning))
	fail := func() {
		h.after(t, h.report(&Final{Outcome: FinalFailed, Retryable: true}, is("evict", StepFailed))).wantPhase(t, Failed)
	}
	fail()
	seq := h.s.Journal.Seq
	for run := 2; run <= MaxRuns; run++ {
		h.after(t, Retry{By: person, Reason: "again", Deadline: h.at.Add(time.Hour)}).wantPhase(t, Pending)
		if h.s.Run != run || h.s.Result != nil || h.s.FinishedAt != nil || h.s.Journal.Seq <= seq {
			t.Fatalf("run %d: %+v", run, h.s)
		}
		if h.step("look").Phase != StepSucceeded || h.step("evict").Phase != StepPending || len(h.step("evict").Attempts) != run-1 {
			t.Fatalf("run %d: steps %+v", run, h.s.Steps)
		}
		h.after(t, Dispatch{}).claimed(t).told(t, is("evict", StepRunning))
		fail()
		if a := h.step("evict").Attempts[run-1]; a.Run != run || a.N != run || a.Generation != int64(run) {
			t.Fatalf("attempt %+v", a)
		}
	}
	wantErr(t, h.try(Retry{By: person, Deadline: h.at.Add(time.Hour)}), ErrNotRetryable) // it ran MaxRuns times
	if len(h.s.Assignments) != MaxRuns {
		t.Errorf("%d assignments", len(h.s.Assignments))
	}
}

func TestRetryRefused(t *testing.T) {
	t.Parallel()
	again := Retry{By: person, Deadline: t0.Add(2 * time.Hour)}
	h := running(t)
	wantErr(t, h.try(again), ErrIllegal)
	h.told(t, is("look", StepSucceeded), is("evict", StepSucceeded), is("reset", StepRunning))
	h.after(t, h.report(&Final{Outcome: FinalFailed, Retryable: true}, is("reset", StepFailed)))
	wantErr(t, h.try(again), ErrNotReplaySafe) // the reset was begun
	h = running(t)
	h.after(t, h.report(&Final{Outcome: FinalFailed}, is("look", StepFailed)))
	err := h.try(again) // its failure is permanent: which, and no word of steps that are safe
	wantErr(t, err, ErrNotRetryable)
	if strings.Contains(err.Error(), "replay") || !strings.Contains(err.Error(), h.s.Result.Cause.Detail) {
		t.Errorf("refused with %q", err)
	}
}

// TestARunThatNobodyClaimedProbes: what was never claimed before its retry has
// generation 1 in it, and others may have worked on the resource in between.
func TestARunThatNobodyClaimedProbes(t *testing.T) {
	t.Parallel()
	h := admit(t, testSpec()).after(t, Dispatch{}, CannotStart{Cause: Cause{ErrorCode: "dead_letter"}, Retryable: true})
	h.after(t, Retry{By: person, Deadline: t0.Add(2 * time.Hour)}, Dispatch{}).claimed(t)
	if h.s.Generation != 1 || !NeedsProbe(h.spec, &h.s) || h.step("look").Phase != StepPending {
		t.Errorf("generation %d, probe %v, first step %s", h.s.Generation, NeedsProbe(h.spec, &h.s), h.step("look").Phase)
	}
}

func TestUnsettledResourceIsProbed(t *testing.T) {
	t.Parallel()
	h := admit(t, testSpec())
	h.spec.Unsettled = []string{"op_0"}
	h.after(t, Dispatch{}).claimed(t)
	if !NeedsProbe(h.spec, &h.s) || h.step("look").Phase != StepPending {
		t.Error("the claim started a step before anything was probed")
	}
}

func TestExpireListsWhatIsUnknown(t *testing.T) {
	t.Parallel()
	h := running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning))
	h.after(t, Expire{}).wantPhase(t, TimedOut)
	r := h.s.Result
	if len(r.Residual) != 1 || r.Residual[0].Step != "evict" || r.Residual[0].Resource != "nod_1" || r.Cleanup.State != CleanupAbandoned {
		t.Errorf("result %+v", r)
	}
	if h.s.Assignments[0].Ended != "deadline" || r.Cause.StepID != "stp_evict" {
		t.Errorf("assignment %+v, cause %+v", h.s.Assignments[0], r.Cause)
	}

	h = running(t).after(t, Expire{}) // only a step that reads had begun
	if len(h.s.Result.Residual) != 0 || h.s.Result.Cleanup.State != CleanupNone {
		t.Errorf("result %+v", h.s.Result)
	}

	h = admit(t, testSpec()).after(t, Dispatch{&Waiting{Code: WaitNoAgent, Detail: "none online"}}, Expire{})
	if !strings.Contains(h.s.Result.Cause.Detail, "no_agent: none online") {
		t.Errorf("cause %+v does not say what it waited for", h.s.Result.Cause)
	}
}

func TestForeignResidualIsDropped(t *testing.T) {
	t.Parallel()
	h := running(t)
	own := Residual{StepID: "stp_evict", Step: "evict", Resource: "nod_1", Detail: "d"}
	h.after(t, h.report(&Final{Outcome: FinalFailed, Residual: []Residual{
		own, {StepID: "stp_evict", Resource: "nod_2"}, {StepID: "stp_x", Resource: "nod_1"}}}))
	if rs := h.s.Result.Residual; len(rs) != 1 || rs[0] != own {
		t.Errorf("residual %+v", rs)
	}
}

func TestWaitingKeepsSince(t *testing.T) {
	t.Parallel()
	first := &Waiting{Code: WaitNoAgent, Since: t0, Detail: "0 known"}
	h := admit(t, testSpec()).after(t, Dispatch{first})
	again := &Waiting{Code: WaitNoAgent, Since: t0.Add(time.Hour), Detail: "1 known"}
	h.after(t, Ring{again})
	if w := h.s.Waiting; !w.Since.Equal(t0) || w.Detail != "1 known" {
		t.Errorf("waiting %+v", w)
	}
	if !again.Since.Equal(t0.Add(time.Hour)) {
		t.Error("Apply wrote to the change")
	}
	h.after(t, Ring{})
	if h.s.Waiting != nil || h.s.Rings != 3 {
		t.Errorf("state %+v", h.s)
	}
}

// TestStateStaysSmall: an operation that agents fill with the longest texts for
// as long as they like still fits in one item of the ledger.
func TestStateStaysSmall(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(`"`, 2048)
	h := running(t)
	for range 150 {
		for _, p := range h.spec.Steps {
			h.after(t, h.report(nil, StepReport{StepID: p.ID, Phase: StepRunning, ErrorCode: "x", Detail: long},
				StepReport{StepID: p.ID, Phase: StepFailed, ErrorCode: "x", Detail: long, Outcome: OutcomeTransient}))
			h.after(t, Renew{Agent: "agt_a", Generation: h.s.Generation, Until: h.at, Progress: &Progress{Step: p.Name, Message: long}})
		}
		h.after(t, h.report(&Final{Outcome: FinalHandBack, Message: long}))
		h.claimed(t)
	}
	b, err := json.Marshal(h.s)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 200<<10 {
		t.Errorf("the state takes %d bytes; an item takes 350 KiB, of which the result needs its part", len(b))
	}
	if n := len(h.s.Assignments); n != maxAssignments || h.s.Assignments[n-1].Generation != h.s.Generation {
		t.Errorf("%d assignments, the last %+v", n, h.s.Assignments[n-1])
	}
	if as := h.step("evict").Attempts; len(as) != maxAttempts || as[len(as)-1].N != 150 {
		t.Errorf("%d attempts, the last %+v", len(as), as[len(as)-1])
	}
}

func TestVerifyChainFindsEveryChange(t *testing.T) {
	t.Parallel()
	h := unsure(t).claimed(t)
	for i := range h.entries {
		for name, mend := range map[string]func(es []Entry) []Entry{
			"reason": func(es []Entry) []Entry { es[i].Reason += "!"; return es },
			"actor":  func(es []Entry) []Entry { es[i].By.ID = "tok_mallory"; return es },
			"time":   func(es []Entry) []Entry { es[i].At = es[i].At.Add(time.Millisecond); return es },
			"left":   func(es []Entry) []Entry { return append(es[:i], es[i+1:]...) },
			"twice":  func(es []Entry) []Entry { return append(es[:i+1], es[i:]...) },
		} {
			es := mend(append([]Entry(nil), h.entries...))
			if VerifyChain(es, h.s.Journal) == nil {
				t.Errorf("entry %d, %s: not found", i, name)
			}
		}
	}
	if err := VerifyChain(h.entries, h.s.Journal); err != nil {
		t.Error(err)
	}
	// What was stored and read again is the same chain.
	b, _ := json.Marshal(h.entries)
	var read []Entry
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	if err := VerifyChain(read, h.s.Journal); err != nil {
		t.Error(err)
	}
}

func TestRestored(t *testing.T) {
	t.Parallel()
	by := Restored{By: Actor{ID: "opsplane restore", Kind: "plane"}}
	h := running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning))
	late := h.report(&Final{Outcome: FinalSucceeded})
	h.after(t, by).wantPhase(t, Reconciling)
	if h.s.Lease != nil || h.step("evict").Phase != StepUnknown || h.s.Assignments[0].Ended != "restored" {
		t.Errorf("state %+v", h.s)
	}
	wantErr(t, h.try(late), ErrLeaseLost)

	// One that nobody held in the backup may have been done since.
	h = admit(t, testSpec()).after(t, Dispatch{}, by).wantPhase(t, Dispatched).claimed(t)
	if !NeedsProbe(h.spec, &h.s) || h.s.Generation <= restoredGenerations {
		t.Errorf("claimed after a restore without a probe: %+v", h.s)
	}
}
