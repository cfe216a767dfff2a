package operation

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var triggers = []Trigger{ByRelay, ByPlane, ByClaim, BySettled, ByReport, ByHandBack, ByCancel, ByLoss, ByDeadline, ByDead, ByResolve, ByRetry}

// TestMoveObeysTheTable: of all moves there could be, move takes those of the
// table and no other.
func TestMoveObeysTheTable(t *testing.T) {
	t.Parallel()
	taken := 0
	for _, from := range Phases {
		for _, to := range Phases {
			for _, by := range triggers {
				tx := &transaction{spec: testSpec(), s: State{Phase: from}}
				err := tx.move(to, by, person, "", "")
				legal := slices.Contains(Transitions, Transition{from, to, by})
				switch {
				case legal && (err != nil || tx.s.Phase != to || len(tx.entries) == 0):
					t.Errorf("%s to %s by %s: refused: %v", from, to, by, err)
				case !legal && (!errors.Is(err, ErrIllegal) || tx.s.Phase != from || len(tx.entries) != 0):
					t.Errorf("%s to %s by %s: taken", from, to, by)
				case legal:
					taken++
				}
			}
		}
	}
	if taken != len(Transitions) {
		t.Errorf("%d moves taken, the table has %d: one is there twice", taken, len(Transitions))
	}
}

// situations are operations in every phase, some in several circumstances.
func situations(t *testing.T) map[string]*history {
	local := testSpec()
	local.PlaneLocal, local.Cluster, local.Steps, local.Locks = true, "", nil, nil
	plan := func(cs ...Change) *history {
		h := admit(t, local)
		h.s.PlaneLocal = true
		return h.after(t, cs...)
	}
	cancelled := RequestCancel{By: person}
	open := func() *history { return running(t).told(t, is("look", StepSucceeded)) }
	failed := func() *history {
		h := running(t)
		return h.after(t, h.report(&Final{Outcome: FinalFailed, Retryable: true}, is("look", StepFailed)))
	}
	ended := func(h *history, f *Final, steps ...StepReport) *history { return h.after(t, h.report(f, steps...)) }
	late := func(h *history) *history { h.at = h.s.Deadline.Add(time.Second); return h }
	return map[string]*history{
		"pending":                   admit(t, testSpec()),
		"pending, plane-local":      plan(),
		"dispatched":                admit(t, testSpec()).after(t, Dispatch{}),
		"dispatched, handed back":   ended(open(), &Final{Outcome: FinalHandBack}),
		"running":                   running(t),
		"running, done":             running(t).told(t, allDone()...),
		"running, late":             late(running(t)),
		"running, uninterruptible":  running(t).told(t, is("reset", StepRunning)),
		"running, plane-local":      plan(StartLocal{}),
		"running, failed":           running(t).told(t, is("look", StepFailed)),
		"reconciling, failed":       ended(running(t), &Final{Outcome: FinalHandBack}, is("look", StepFailed)),
		"cancelling, failed":        running(t).told(t, is("look", StepFailed)).after(t, cancelled),
		"reconciling":               unsure(t),
		"reconciling, claimed":      unsure(t).claimed(t),
		"reconciling, late":         late(unsure(t).claimed(t)),
		"reconciling, cancel":       unsure(t).after(t, cancelled),
		"reconciling, cancel, held": unsure(t).after(t, cancelled).claimed(t),
		"reconciling, nearly done": running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning), is("reset", StepSucceeded), is("extra", StepSkipped)).
			after(t, LoseLease{}),
		"cancelling":              open().after(t, cancelled),
		"cancelling, late":        late(open().after(t, cancelled)),
		"cancelling, done":        running(t).told(t, allDone()...).after(t, cancelled),
		"cancelling, plane-local": plan(StartLocal{}, cancelled),
		"succeeded":               ended(running(t), &Final{Outcome: FinalSucceeded}, allDone()...),
		"failed":                  failed(),
		"cancelled":               admit(t, testSpec()).after(t, cancelled),
		"timed out":               admit(t, testSpec()).after(t, Expire{}),
	}
}

// changes are all that can happen to an operation, with the trigger of the move
// that each may make.
func changes(h *history) []struct {
	by Trigger
	c  Change
} {
	type one = struct {
		by Trigger
		c  Change
	}
	out := []one{
		{ByRelay, Dispatch{}}, {"", Ring{}}, {"", Wait{&Waiting{Code: WaitQuota}}},
		{ByClaim, Claim{Agent: "agt_a", Boot: "b", Until: h.at.Add(time.Minute)}},
		{"", Renew{Agent: "agt_a", Generation: h.s.Generation, Until: h.at.Add(time.Minute)}},
		{ByCancel, RequestCancel{By: person, Reason: "changed my mind"}}, {ByLoss, LoseLease{}}, {ByDeadline, Expire{}},
		{ByDead, CannotStart{Cause: Cause{ErrorCode: "target_gone"}}}, {ByRetry, Retry{By: person, Deadline: h.at.Add(time.Hour)}},
		{ByPlane, StartLocal{}}, {"", UpdateChildren{Counts: ChildCounts{Total: 3}}}, {"", LateReport{Agent: "agt_z", Generation: 1}},
	}
	for _, f := range []string{FinalSucceeded, FinalFailed, FinalCancelled, FinalTimedOut, FinalAmbiguous} {
		out = append(out, one{ByReport, h.report(&Final{Outcome: f})}, one{ByReport, h.report(&Final{Outcome: f}, allDone()...)})
	}
	out = append(out, one{ByHandBack, h.report(&Final{Outcome: FinalHandBack})}, one{ByReport, h.report(&Final{Outcome: "exploded"})},
		one{"", h.report(nil, is("look", StepRunning))})
	settled := h.report(nil, is("evict", StepPending))
	settled.Settled = true
	out = append(out, one{BySettled, settled})
	for _, o := range []string{ResolveDone, ResolveFailed, ResolveNotDone, "who knows"} {
		out = append(out, one{ByResolve, Resolve{StepID: "stp_evict", Outcome: o, By: person, Evidence: "looked", Reason: "r"}})
	}
	for _, p := range []Phase{Succeeded, Failed, Cancelled, TimedOut} {
		out = append(out, one{ByReport, FinishLocal{Result: Result{Outcome: p}}})
	}
	return out
}

// TestEveryChangeInEverySituation applies every change in every situation: what
// moves, moves by the table; what is refused leaves everything as it was; and
// every move of the table is made by something.
func TestEveryChangeInEverySituation(t *testing.T) {
	t.Parallel()
	made := map[Transition]bool{}
	for name, from := range situations(t) {
		for _, x := range changes(from) {
			h := *from
			before := h.s.Clone()
			err := h.try(x.c)
			if diff := cmp.Diff(before, from.s, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s, %T: Apply wrote to what it was given: %s", name, x.c, diff)
			}
			if err != nil {
				known := []error{ErrIllegal, ErrLeaseLost, ErrNotCancelable, ErrTerminal, ErrNotReplaySafe, ErrNotRetryable, ErrInvalidReport, ErrNoChange}
				if !slices.ContainsFunc(known, func(k error) bool { return errors.Is(err, k) }) {
					t.Errorf("%s, %T: %v is none of the errors of Apply", name, x.c, err)
				}
				continue
			}
			if h.s.Phase == before.Phase {
				continue
			}
			move := Transition{before.Phase, h.s.Phase, x.by}
			if r, ok := x.c.(Report); ok && r.Final != nil && r.Final.Outcome == FinalHandBack && h.s.Phase == Reconciling {
				move.By = ByReport // a hand-back that comes too late is an unknown outcome
			}
			if !slices.Contains(Transitions, move) {
				t.Errorf("%s, %T %+v: moved %v, which the table does not have", name, x.c, x.c, move)
			}
			made[move] = true
			h.wantPhase(t, h.s.Phase)
			if (h.s.Result != nil) != h.s.Phase.Terminal() {
				t.Errorf("%s, %T: %s with result %v", name, x.c, h.s.Phase, h.s.Result)
			}
		}
	}
	for _, tr := range Transitions {
		if !made[tr] {
			t.Errorf("no change makes the move %v", tr)
		}
	}
}

// TestCancelByPhase is the table of DELETE.
func TestCancelByPhase(t *testing.T) {
	t.Parallel()
	all := situations(t)
	for name, want := range map[string]struct {
		to  Phase
		err error
	}{
		"pending": {to: Cancelled}, "dispatched": {to: Cancelled}, "dispatched, handed back": {to: Cancelled},
		"running": {to: Cancelling}, "running, uninterruptible": {to: Running, err: ErrNotCancelable},
		"running, plane-local": {to: Cancelling}, "reconciling": {to: Reconciling}, "reconciling, claimed": {to: Reconciling},
		"reconciling, cancel": {to: Reconciling, err: ErrNoChange}, "cancelling": {to: Cancelling, err: ErrNoChange},
		"succeeded": {to: Succeeded, err: ErrTerminal}, "failed": {to: Failed, err: ErrTerminal},
		"cancelled": {to: Cancelled, err: ErrTerminal}, "timed out": {to: TimedOut, err: ErrTerminal},
	} {
		h := all[name]
		if can := Cancelable(h.spec, &h.s); can != (!errors.Is(want.err, ErrTerminal) && !errors.Is(want.err, ErrNotCancelable)) {
			t.Errorf("%s: cancelable %v", name, can)
		}
		err := h.try(RequestCancel{By: person, Reason: "why"})
		if !errors.Is(err, want.err) || h.s.Phase != want.to {
			t.Errorf("%s: got %s, %v, want %s, %v", name, h.s.Phase, err, want.to, want.err)
		}
		if err == nil && (h.s.Cancel == nil || h.s.Cancel.By != person || h.s.Cancel.Reason != "why" || !h.s.Cancel.RequestedAt.Equal(h.at)) {
			t.Errorf("%s: the request is not on record: %+v", name, h.s.Cancel)
		}
	}
}
