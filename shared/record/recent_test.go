package record_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// newStore is a store of the ledger that remembers nothing yet.
func newStore(l ledger.Ledger) *record.Store {
	return &record.Store{Ledger: l, Now: time.Now, Timing: operation.OneMachine}
}

func openLedger(t *testing.T) ledger.Ledger {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// admit makes an operation as admission does.
func admit(t *testing.T, st *record.Store) string {
	t.Helper()
	def, _ := operation.Lookup("node.drain")
	now := st.Now().UTC().Truncate(time.Millisecond)
	opID := id.New(id.Operation, now)
	target := operation.Target{Kind: operation.KindNode, ID: id.New(id.Node, now), Name: "n", Cluster: id.New(id.Cluster, now)}
	locks, steps, resources := operation.BuildPlan(def, opID, target, []byte("{}"))
	op := operation.Operation{Spec: operation.Spec{ID: opID, Request: operation.Request{Type: def.Type, Target: target.ID, Reason: "test", Payload: []byte("{}")},
		TargetID: target.ID, TargetName: "node:n", Cluster: target.Cluster, Resources: resources, Locks: locks, Steps: steps,
		Actor: operation.Actor{ID: "tester", Kind: "token"}, CreatedAt: now}}
	state, entries, err := operation.Admit(&op.Spec, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	op.State = state
	writes := append(st.CreateWrites(&op, entries), ledger.Write{Item: record.ClusterItem(&fleet.Cluster{ID: target.Cluster, Name: "c"})})
	if err := st.Ledger.Commit(t.Context(), writes...); err != nil {
		t.Fatal(err)
	}
	op.Version = 1
	st.Created(&op)
	return opID
}

func update(t *testing.T, st *record.Store, opID string, c operation.Change) operation.Operation {
	t.Helper()
	op, err := st.Update(t.Context(), opID, func(*operation.Operation) (operation.Change, []ledger.Write, error) { return c, nil, nil })
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	return op
}

// What a store remembers is what another one reads, step for step along the way.
func TestRememberedIsWhatIsStored(t *testing.T) {
	t.Parallel()
	l := openLedger(t)
	st := newStore(l)
	opID := admit(t, st)
	spec, err := st.Specs(t.Context(), []string{opID})
	if err != nil {
		t.Fatal(err)
	}
	steps := spec[opID].Steps
	check := func(after string) {
		t.Helper()
		fresh := newStore(l)
		want, err := fresh.Load(t.Context(), opID)
		if err != nil {
			t.Fatal(err)
		}
		got, err := st.Load(t.Context(), opID)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("after %s (-stored +remembered):\n%s", after, d)
		}
		wantJournal, err := fresh.Journal(t.Context(), opID, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		wantGlance, _, err := fresh.Glances(t.Context(), []string{opID})
		if err != nil {
			t.Fatal(err)
		}
		glance, _, err := st.Glances(t.Context(), []string{opID})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(wantGlance, glance, cmpopts.IgnoreUnexported(record.Glance{}), cmpopts.IgnoreFields(record.Glance{}, "RawTail")); d != "" {
			t.Fatalf("after %s: glance (-stored +remembered):\n%s", after, d)
		}
		if err := operation.VerifyChain(wantJournal, got.State.Journal); err != nil {
			t.Fatalf("after %s: %v", after, err)
		}
		for from := int64(1); from <= got.State.Journal.Seq; from++ {
			for who, g := range map[string]record.Glance{"stored": wantGlance[opID], "remembered": glance[opID]} {
				entries, err := st.JournalOf(t.Context(), &g, from)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(wantJournal[from-1:], entries); d != "" {
					t.Fatalf("after %s: entries from %d (-journal +%s):\n%s", after, from, who, d)
				}
			}
		}
	}
	check("admission")
	now := time.Now() // with the reading of the monotonic clock
	for _, c := range []operation.Change{
		operation.Dispatch{Waiting: &operation.Waiting{Code: operation.WaitNoAgent, Since: now, Detail: "none"}},
		operation.Wait{},
		operation.Claim{Agent: "agt_1", Boot: "b", Until: now.Add(15 * time.Second)},
		operation.Renew{Agent: "agt_1", Generation: 1, Until: now.Add(20 * time.Second), Progress: &operation.Progress{Step: steps[0].Name, Done: 1, Total: 2}},
		operation.Report{Agent: "agt_1", Generation: 1, N: 1, Steps: []operation.StepReport{
			{StepID: steps[0].ID, Phase: operation.StepSucceeded, Outcome: operation.OutcomeDone},
			{StepID: steps[1].ID, Phase: operation.StepRunning}}, Notes: []operation.ReportNote{{Code: "blocker", Detail: "a PDB"}}},
		operation.RequestCancel{By: operation.Actor{ID: "someone", Kind: "token"}, Reason: "enough"},
		operation.LoseLease{},
		operation.Claim{Agent: "agt_2", Boot: "b", Until: now.Add(40 * time.Second)},
		operation.Report{Agent: "agt_2", Generation: 2, N: 1, Settled: true, Steps: []operation.StepReport{
			{StepID: steps[1].ID, Phase: operation.StepFailed, Outcome: operation.OutcomePermanent, ErrorCode: "x", Detail: "y"}},
			Final: &operation.Final{Outcome: operation.FinalFailed, Message: "no", Retryable: true, Cause: &operation.Cause{ErrorCode: "x", Detail: "y"},
				Details: []byte(`{"pods":[1]}`)}},
		operation.Retry{By: operation.Actor{ID: "someone", Kind: "token"}, Reason: "again", Deadline: now.Add(time.Hour).UTC()},
	} {
		update(t, st, opID, c)
		check(fmt.Sprintf("%T", c))
	}
}

// Two processes that write by turns each see what the other wrote.
func TestAnotherWritersStateCounts(t *testing.T) {
	t.Parallel()
	l := openLedger(t)
	one, two := newStore(l), newStore(l)
	opID := admit(t, one)
	update(t, two, opID, operation.Dispatch{})
	op := update(t, one, opID, operation.Claim{Agent: "agt_1", Boot: "b", Until: time.Now().Add(time.Minute)})
	if op.State.Phase != operation.Running || op.Version != 3 {
		t.Fatalf("phase %s, version %d", op.State.Phase, op.Version)
	}
	entries, err := one.Journal(context.Background(), opID, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := operation.VerifyChain(entries, op.State.Journal); err != nil {
		t.Error(err)
	}
}

// A journal never makes a state too large for its item: where there is no room
// for its newest entries, they lie beside it like the others.
func TestTailLeavesRoomForTheState(t *testing.T) {
	t.Parallel()
	l := openLedger(t)
	st := newStore(l)
	opID := admit(t, st)
	update(t, st, opID, operation.Dispatch{})
	for n := range 3 {
		op, err := st.Load(t.Context(), opID)
		if err != nil {
			t.Fatal(err)
		}
		next, entries, err := operation.Apply(&op.Spec, op.State, operation.Wait{Waiting: &operation.Waiting{Code: fmt.Sprint("code ", n), Since: st.Now()}}, st.Now())
		if err != nil {
			t.Fatal(err)
		}
		next.Result = &operation.Result{}
		bare := next
		bare.Tail = nil
		room := ledger.MaxItemBytes - len(record.Encode(bare)) - len(`,"details":""`) - 100 // for DueAt, which is there or not
		next.Result.Details = []byte(`"` + strings.Repeat("x", room) + `"`)
		if err := l.Commit(t.Context(), st.StateWrites(&next, op.Version, entries)...); err != nil {
			t.Fatal(err)
		}
		if op, err = newStore(l).Load(t.Context(), opID); err != nil {
			t.Fatal(err)
		}
		journal, err := newStore(l).Journal(t.Context(), opID, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := operation.VerifyChain(journal, op.State.Journal); err != nil {
			t.Fatal(err)
		}
	}
	// A renewal, which brings no entry, can be what no room is left for.
	op, err := newStore(l).Load(t.Context(), opID)
	if err != nil {
		t.Fatal(err)
	}
	op.State.Result.Details = []byte(`""`)
	next, entries, err := operation.Apply(&op.Spec, op.State, operation.Wait{}, st.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(t.Context(), st.StateWrites(&next, op.Version, entries)...); err != nil {
		t.Fatal(err)
	}
	if len(next.Tail) == 0 {
		t.Fatal("nothing rides in a small state")
	}
	bare := next
	bare.Tail = nil
	next.Result.Details = []byte(`"` + strings.Repeat("x", ledger.MaxItemBytes-len(record.Encode(bare))) + `"`)
	if err := l.Commit(t.Context(), st.StateWrites(&next, op.Version+1, nil)...); err != nil {
		t.Fatal(err)
	}
	journal, err := newStore(l).Journal(t.Context(), opID, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := operation.VerifyChain(journal, next.Journal); err != nil {
		t.Fatal(err)
	}
}
