package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

type fixture struct {
	*Service
	t     *testing.T
	admit *admission.Service
}

const cluster = "clu_00000000000000000000000001"

func setup(t *testing.T) *fixture {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	st := &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine}
	c := fleet.Cluster{ID: cluster, Name: "east"}
	must(t, db.Commit(t.Context(), ledger.Write{Item: record.ClusterItem(&c)}))
	return &fixture{Service: &Service{Store: st}, t: t, admit: &admission.Service{Store: st}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func call(key string) admission.Call {
	return admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "tok_a", Kind: "token"}, Force: true}, Method: "POST", Path: "/x", IdempotencyKey: key, CorrelationID: "c"}
}

// create admits an operation on a target of its own.
func (f *fixture) create(typ, name string) operation.Operation {
	f.t.Helper()
	objects, _ := fleet.Objects(cluster, &protocol.Inventory{
		Nodes:   []protocol.Node{{UID: "n" + name, Name: name, Revision: 1}},
		Devices: []protocol.Device{{UID: "d" + name, NodeUID: "n" + name, NodeName: name, Revision: 1}},
	}, time.Now())
	ws, err := f.Store.MergeObjects(f.t.Context(), objects)
	must(f.t, err)
	if len(ws) > 0 {
		must(f.t, f.Store.Ledger.Commit(f.t.Context(), ws...))
	}
	target := objects[0].ID
	if strings.HasPrefix(typ, "device") {
		target = objects[1].ID
	}
	a, err := f.admit.Admit(f.t.Context(), call(""), fmt.Appendf(nil, `{"type":%q,"target":%q,"reason":"r"}`, typ, target))
	must(f.t, err)
	return a.Operation
}

func (f *fixture) apply(opID string, cs ...operation.Change) operation.Operation {
	f.t.Helper()
	var op operation.Operation
	for _, c := range cs {
		var err error
		op, err = f.Store.Update(f.t.Context(), opID, func(*operation.Operation) (operation.Change, []ledger.Write, error) { return c, nil, nil })
		must(f.t, err)
	}
	return op
}

// fail ends an operation as failed in the step.
func (f *fixture) fail(op operation.Operation, step int) {
	f.t.Helper()
	op = f.apply(op.Spec.ID, operation.Dispatch{}, operation.Claim{Agent: "a", Boot: "b", Until: time.Now().Add(time.Minute)})
	r := operation.Report{Agent: "a", Generation: op.State.Generation, N: 1, Final: &operation.Final{Outcome: operation.FinalFailed, Retryable: true, Cause: &operation.Cause{ErrorCode: "boom"}}}
	for i := range step {
		r.Steps = append(r.Steps, operation.StepReport{StepID: op.Spec.Steps[i].ID, Phase: operation.StepSucceeded, Outcome: operation.OutcomeDone})
	}
	r.Steps = append(r.Steps, operation.StepReport{StepID: op.Spec.Steps[step].ID, Phase: operation.StepRunning},
		operation.StepReport{StepID: op.Spec.Steps[step].ID, Phase: operation.StepFailed, Outcome: operation.OutcomePermanent, ErrorCode: "boom"})
	f.apply(op.Spec.ID, r)
}

func code(err error) string {
	if r, ok := errors.AsType[*operation.Refusal](err); ok {
		return r.ErrorCode
	}
	return fmt.Sprint(err)
}

// actions are the audited actions of a resource.
func (f *fixture) actions(resource string) string {
	f.t.Helper()
	records, _, err := f.Store.Audits(f.t.Context(), record.TimeSort(time.Now().Add(time.Second), ""), time.Now(), time.Now().Add(-time.Hour), 200)
	must(f.t, err)
	var out []string
	for _, r := range records {
		if r.Resource == resource {
			out = append([]string{fmt.Sprint(r.Action, " ", r.Status)}, out...)
		}
	}
	return strings.Join(out, ", ")
}

func TestCancelInEachPhase(t *testing.T) {
	t.Parallel()
	f := setup(t)
	claim := operation.Claim{Agent: "a", Boot: "b", Until: time.Now().Add(time.Minute)}
	for i, tt := range []struct {
		changes []operation.Change
		status  int
		phase   operation.Phase
	}{
		{nil, 200, operation.Cancelled},
		{[]operation.Change{operation.Dispatch{}}, 200, operation.Cancelled},
		{[]operation.Change{operation.Dispatch{}, claim}, 202, operation.Cancelling},
		{[]operation.Change{operation.Dispatch{}, claim, operation.LoseLease{}}, 202, operation.Reconciling},
		{[]operation.Change{operation.RequestCancel{}}, 204, operation.Cancelled},
	} {
		op := f.create("node.cordon", fmt.Sprint(i))
		f.apply(op.Spec.ID, tt.changes...)
		got, status, err := f.Cancel(t.Context(), call(""), op.Spec.ID, CancelInput{Reason: "r"})
		if err != nil || status != tt.status || got.State.Phase != tt.phase {
			t.Errorf("%d: %d %s %v", i, status, got.State.Phase, err)
		}
		if got, want := f.actions(op.Spec.ID), fmt.Sprint("operation.create 202, operation.cancel ", tt.status); got != want {
			t.Errorf("%d: audit %q, want %q", i, got, want)
		}
	}
}

func TestCancelAsItIsClaimed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i := range 20 {
		op := f.create("node.cordon", fmt.Sprint(i))
		f.apply(op.Spec.ID, operation.Dispatch{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = f.Store.Update(context.Background(), op.Spec.ID, func(o *operation.Operation) (operation.Change, []ledger.Write, error) {
				if o.State.Phase != operation.Dispatched {
					return nil, nil, nil
				}
				return operation.Claim{Agent: "a", Boot: "b", Until: time.Now().Add(time.Minute)}, nil, nil
			})
		})
		got, status, err := f.Cancel(t.Context(), call(""), op.Spec.ID, CancelInput{})
		wg.Wait()
		if err != nil || got.State.Cancel == nil || (status == 200) != (got.State.Phase == operation.Cancelled) || status == 204 {
			t.Fatalf("%d %s %v", status, got.State.Phase, err)
		}
	}
}

func TestRetryOfWhatIsNotReplaySafe(t *testing.T) {
	t.Parallel()
	f := setup(t)
	op := f.create("device.reset", "a")
	f.fail(op, 1) // the reset itself
	_, err := f.Retry(t.Context(), call(""), op.Spec.ID, RetryInput{Reason: "again"})
	if code(err) != "not_retryable" || !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
}

func TestRetryKeepsHistoryAndIsBounded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	op := f.create("node.cordon", "a")
	for run := 1; run < operation.MaxRuns; run++ {
		f.fail(op, 0)
		c, err := f.Retry(t.Context(), call(fmt.Sprint(run)), op.Spec.ID, RetryInput{Reason: "again"})
		must(t, err)
		if s := c.Operation.State; s.Run != run+1 || len(s.Steps[0].Attempts) != run || len(s.Assignments) != run || s.Steps[0].Phase != operation.StepPending {
			t.Fatalf("run %d: %+v", run, s)
		}
	}
	f.fail(op, 0)
	if _, err := f.Retry(t.Context(), call(""), op.Spec.ID, RetryInput{Reason: "again"}); code(err) != "not_retryable" {
		t.Error(err)
	}
	entries, err := f.Store.Journal(t.Context(), op.Spec.ID, 1, 0)
	must(t, err)
	now, err := f.Store.Load(t.Context(), op.Spec.ID)
	must(t, err)
	must(t, operation.VerifyChain(entries, now.State.Journal))
}

func TestRetriesUnderOneKeyAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	op := f.create("node.cordon", "a")
	f.fail(op, 0)
	var mu sync.Mutex
	counts, wg := map[string]int{}, sync.WaitGroup{}
	for i := range 12 {
		wg.Go(func() {
			c, err := f.Retry(context.Background(), call("k"), op.Spec.ID, RetryInput{Reason: fmt.Sprint(i % 2)})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				counts[code(err)]++
			case c.Replayed:
				counts["replayed"]++
			default:
				counts["done"]++
			}
		})
	}
	wg.Wait()
	if counts["done"] != 1 || counts["replayed"] != 5 || counts["idempotency_key_reused"] != 6 {
		t.Error(counts)
	}
}

func TestManualChangesAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	op := f.create("node.cordon", "a")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, _, err := f.RecordChange(context.Background(), call(fmt.Sprint(i/2)), ChangeInput{Target: op.Spec.TargetID, Reason: fmt.Sprint(i / 2)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	all, _, err := f.Store.ManualChanges(t.Context(), record.Span{Limit: 100})
	must(t, err)
	if len(all) != 4 {
		t.Errorf("%d changes under 4 keys", len(all))
	}
}
