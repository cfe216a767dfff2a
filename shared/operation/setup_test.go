package operation

import (
	"errors"
	"testing"
	"time"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

var person = Actor{ID: "tok_alice", Kind: "token"}

// testSpec has one step of each sort: one that reads, one that may be repeated,
// one that may neither be interrupted nor repeated, an optional one, a cleanup.
func testSpec() *Spec {
	on := []string{"nod_1"}
	return &Spec{
		ID: "op_1", Request: Request{Type: "node.drain", Reason: "firmware"}, TargetID: "nod_1", Cluster: "clu_1", Actor: person,
		Resources: on, Locks: []Lock{{"nod_1", Exclusive}}, CreatedAt: t0,
		Steps: []PlanStep{
			{ID: "stp_look", Name: "look", Resources: on, Required: true, Interruptible: true, ReplaySafe: true},
			{ID: "stp_evict", Name: "evict", Resources: on, Required: true, Interruptible: true, ReplaySafe: true, Effect: true},
			{ID: "stp_reset", Name: "reset", Resources: on, Required: true, Effect: true},
			{ID: "stp_extra", Name: "extra", Resources: on, Interruptible: true, ReplaySafe: true, Effect: true},
			{ID: "stp_restore", Name: "restore", Resources: on, Interruptible: true, ReplaySafe: true, Effect: true, Cleanup: true},
		},
	}
}

// history is an operation that changes are applied to, with all its entries.
type history struct {
	spec    *Spec
	s       State
	at      time.Time
	entries []Entry
}

func admit(t testing.TB, spec *Spec) *history {
	t.Helper()
	s, es, err := Admit(spec, t0.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return &history{spec: spec, s: s, at: t0, entries: es}
}

// try applies a change one second later.
func (h *history) try(c Change) error {
	h.at = h.at.Add(time.Second)
	s, es, err := Apply(h.spec, h.s, c, h.at)
	if err == nil {
		h.s, h.entries = s, append(h.entries, es...)
	}
	return err
}

// after applies changes that must be accepted.
func (h *history) after(t testing.TB, cs ...Change) *history {
	t.Helper()
	for _, c := range cs {
		if err := h.try(c); err != nil {
			t.Fatalf("%T %+v in %s: %v", c, c, h.s.Phase, err)
		}
	}
	return h
}

// claimed, told, done and so on are the changes that most tests need; a is the
// agent.
func (h *history) claimed(t testing.TB) *history {
	return h.after(t, Claim{Agent: "agt_a", Boot: "b", Until: h.at.Add(15 * time.Second)})
}

func (h *history) report(final *Final, steps ...StepReport) Report {
	r := Report{Agent: "agt_a", Generation: h.s.Generation, N: 1, Steps: steps, Final: final}
	if h.s.Lease != nil {
		r.N = h.s.Lease.LastReport + 1
	}
	return r
}

func (h *history) told(t testing.TB, steps ...StepReport) *history {
	t.Helper()
	return h.after(t, h.report(nil, steps...))
}

func running(t testing.TB) *history {
	t.Helper()
	return admit(t, testSpec()).after(t, Dispatch{}).claimed(t)
}

// unsure is an operation whose evict step nobody knows the outcome of.
func unsure(t testing.TB) *history {
	t.Helper()
	return running(t).told(t, is("look", StepSucceeded), is("evict", StepRunning)).after(t, LoseLease{})
}

func is(step string, p StepPhase) StepReport { return StepReport{StepID: "stp_" + step, Phase: p} }

// allDone are the reports of a plan that was carried out.
func allDone() []StepReport {
	return []StepReport{is("look", StepSucceeded), is("evict", StepSucceeded), is("reset", StepSucceeded)}
}

func (h *history) step(name string) StepState {
	for i, p := range h.spec.Steps {
		if p.Name == name {
			return h.s.Steps[i]
		}
	}
	return StepState{}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func (h *history) wantPhase(t testing.TB, p Phase) *history {
	t.Helper()
	if h.s.Phase != p {
		t.Fatalf("it is %s, want %s (%+v)", h.s.Phase, p, h.s.Result)
	}
	if err := VerifyChain(h.entries, h.s.Journal); err != nil {
		t.Fatal(err)
	}
	return h
}
