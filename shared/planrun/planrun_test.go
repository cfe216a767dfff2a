package planrun_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/planrun"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/verify"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

var errCrash = fmt.Errorf("%w: crashed", ledger.ErrUnavailable)

// tap is a ledger that can crash at its n-th commit: that call and all later
// ones fail until it is started again. With applied the commit is in effect.
type tap struct {
	ledger.Ledger
	mu            sync.Mutex
	n, crashAt    int
	applied, down bool
	before        func() // called once, before commit beforeAt
	beforeAt      int
}

func (l *tap) Commit(ctx context.Context, ws ...ledger.Write) error {
	l.mu.Lock()
	if l.down {
		l.mu.Unlock()
		return errCrash
	}
	l.n++
	crash := l.n == l.crashAt
	l.down = crash
	before := l.before
	if before != nil && l.n >= l.beforeAt {
		l.before = nil
	} else {
		before = nil
	}
	l.mu.Unlock()
	if before != nil {
		before()
	}
	if crash && !l.applied {
		return errCrash
	}
	if err := l.Ledger.Commit(ctx, ws...); err != nil {
		return err
	}
	if crash {
		return errCrash
	}
	return nil
}

// bench is a plane with one cluster of nodes n0, n1, ...
type bench struct {
	t     testing.TB
	mu    sync.Mutex
	clock time.Time
	tap   *tap
	store *record.Store
	rest  *record.Store // of everyone but the runner: it never crashes
	adm   *admission.Service
	run   *planrun.Runner
	cl    string
}

func setup(t testing.TB, nodes int) *bench {
	t.Helper()
	ctx := context.Background()
	b := &bench{t: t, clock: t0, cl: id.Derive(id.Cluster, "alpha")}
	db, err := sqlite.Open(ctx, sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db"), Now: b.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	b.tap = &tap{Ledger: db}
	b.store = &record.Store{Ledger: b.tap, Now: b.now, Timing: operation.OneMachine}
	b.rest = &record.Store{Ledger: db, Now: b.now, Timing: operation.OneMachine}
	b.adm = &admission.Service{Store: b.store}
	b.run = &planrun.Runner{Store: b.store, Admission: b.adm}
	c := fleet.Cluster{ID: b.cl, Name: "alpha", CreatedAt: t0}
	b.no(b.tap.Commit(ctx, ledger.Write{Item: record.ClusterItem(&c)}, ledger.Write{Item: ledger.Item{Key: record.ClusterNameKey("alpha"), Data: record.Encode(record.ClusterName{Cluster: c.ID})}}))
	for first := 0; first < nodes; first += 50 {
		var inv protocol.Inventory
		for i := first; i < min(first+50, nodes); i++ {
			inv.Nodes = append(inv.Nodes, protocol.Node{UID: fmt.Sprint("uid-", i), Name: fmt.Sprint("n", i), Revision: 1})
		}
		objects, _ := fleet.Objects(b.cl, &inv, t0)
		ws, err := b.store.MergeObjects(ctx, objects)
		b.no(err)
		b.no(b.tap.Commit(ctx, ws...))
	}
	b.tap.n = 0
	return b
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock
}

func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock = b.clock.Add(d)
}

func (b *bench) no(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) admit(m map[string]any) string {
	b.t.Helper()
	a, err := b.adm.Admit(context.Background(), admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "tok_alice", Kind: "token"}}}, record.Encode(m))
	b.no(err)
	return a.Operation.Spec.ID
}

func cordon(i int) map[string]any {
	return map[string]any{"type": "node.cordon", "target": fmt.Sprint("node:n", i), "reason": "r"}
}

// plan asks for n cordons.
func (b *bench) plan(n, inFlight, failures int) string {
	b.t.Helper()
	kids := make([]any, n)
	for i := range kids {
		kids[i] = cordon(i)
	}
	return b.admit(map[string]any{"type": "plan", "target": "fleet", "reason": "r", "deadline": t0.Add(time.Hour).Format(time.RFC3339),
		"payload": map[string]any{"children": kids, "max_in_flight": inFlight, "max_failures": failures}})
}

func (b *bench) advance(plan string) *bench {
	b.t.Helper()
	b.no(b.run.Advance(context.Background(), plan))
	return b
}

func (b *bench) load(op string) operation.Operation {
	b.t.Helper()
	o, err := b.store.Load(context.Background(), op)
	b.no(err)
	return o
}

func (b *bench) kids(plan string) []record.Child {
	b.t.Helper()
	c, err := b.store.Children(context.Background(), plan)
	b.no(err)
	return c.Kids
}

// live are the children that were admitted and have not ended.
func (b *bench) live(plan string) []string {
	b.t.Helper()
	var out []string
	for _, k := range b.kids(plan) {
		if k.Admitted && !b.load(k.Operation).State.Phase.Terminal() {
			out = append(out, k.Operation)
		}
	}
	return out
}

// end brings an operation to its end; the steps that are done already are left
// out, so that it can be taken up after a crash.
func (b *bench) end(op, outcome string) error {
	for {
		done := false
		_, err := b.rest.Update(context.Background(), op, func(o *operation.Operation) (operation.Change, []ledger.Write, error) {
			s := &o.State
			switch {
			case s.Phase.Terminal():
				done = true
				return nil, nil, nil
			case s.Phase == operation.Pending:
				return operation.Dispatch{}, nil, nil
			case s.Phase == operation.Dispatched:
				return operation.Claim{Agent: "a", Boot: "b", Until: b.now().Add(time.Minute)}, nil, nil
			}
			r := operation.Report{Agent: "a", Generation: s.Generation, N: 1, Final: &operation.Final{Outcome: outcome, Message: outcome}}
			if outcome == operation.FinalSucceeded {
				for _, st := range o.Spec.Steps {
					r.Steps = append(r.Steps, operation.StepReport{StepID: st.ID, Phase: operation.StepSucceeded})
				}
			}
			return r, nil, nil
		})
		if err != nil || done {
			return err
		}
	}
}

func (b *bench) want(op string, phase operation.Phase) operation.Operation {
	b.t.Helper()
	o := b.load(op)
	if o.State.Phase != phase {
		b.t.Fatalf("%s, want %s: children %+v, result %+v", o.State.Phase, phase, o.State.Children, o.State.Result)
	}
	return o
}

func (b *bench) sound() {
	b.t.Helper()
	r, err := verify.Run(context.Background(), b.store, b.now(), 26*time.Second)
	b.no(err)
	if r.Count > 0 {
		b.t.Fatalf("the ledger is not sound: %v", r.Problems)
	}
}

func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t, 7)
	plan := b.plan(7, 3, 0)
	for ended := 0; ended < 7; {
		b.advance(plan).advance(plan)
		live := b.live(plan)
		if len(live) != min(3, 7-ended) {
			t.Fatalf("%d run after %d have ended", len(live), ended)
		}
		if c := b.load(plan).State.Children; c.Active != len(live) || c.Succeeded != ended || c.Total != 7 {
			t.Errorf("counts %+v after %d", c, ended)
		}
		b.no(b.end(live[0], operation.FinalSucceeded))
		ended++
	}
	o := b.advance(plan).want(plan, operation.Succeeded)
	if c := o.State.Children; c.Succeeded != 7 || o.State.Result.Message == "" {
		t.Errorf("counts %+v", c)
	}
	b.sound()
}

func TestMaxFailures(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]operation.Phase{0: operation.Failed, 1: operation.Failed, 2: operation.Succeeded} {
		b := setup(t, 6)
		plan := b.plan(6, 1, failures)
		for i := 0; ; i++ {
			b.advance(plan)
			live := b.live(plan)
			if len(live) == 0 {
				break
			}
			outcome := operation.FinalSucceeded
			if i < 2 {
				outcome = operation.FinalFailed
			}
			b.no(b.end(live[0], outcome))
		}
		o := b.want(plan, want)
		c := o.State.Children
		if want == operation.Failed && (c.Failed != failures+1 || c.Skipped != 5-failures || o.State.Result.Cause.ErrorCode != "child_failed") {
			t.Errorf("max_failures %d: %+v, %+v", failures, c, o.State.Result)
		}
		if want == operation.Succeeded && (c.Failed != 2 || c.Succeeded != 4) {
			t.Errorf("max_failures %d: %+v", failures, c)
		}
		var by map[string][]string
		if err := json.Unmarshal(o.State.Result.Details, &by); err != nil || len(by["failed"]) != c.Failed || len(by["skipped"]) != c.Skipped {
			t.Errorf("details %s", o.State.Result.Details)
		}
		b.sound()
	}
}

// TestConflictWaits: a child that meets an outside holder waits, takes no slot,
// and goes on when the holder has ended.
func TestConflictWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, 3)
	outside := b.admit(cordon(0))
	plan := b.plan(3, 1, 0)
	b.advance(plan)
	kids := b.kids(plan)
	if w := kids[0].Waiting; w == nil || w.Code != operation.WaitConflict || w.Holder != outside || kids[0].Admitted {
		t.Errorf("child 0: %+v", kids[0])
	}
	if !kids[1].Admitted || kids[2].Admitted {
		t.Errorf("children %+v", kids)
	}
	n := b.tap.n
	b.advance(plan)
	if b.tap.n != n {
		t.Error("a wait is written again and again")
	}
	b.no(b.end(kids[1].Operation, operation.FinalSucceeded))
	b.advance(plan)
	b.no(b.end(kids[2].Operation, operation.FinalSucceeded))
	b.advance(plan).want(plan, operation.Running)
	b.no(b.end(outside, operation.FinalFailed))
	b.advance(plan)
	if k := b.kids(plan)[0]; !k.Admitted || k.Waiting != nil {
		t.Errorf("child 0: %+v", k)
	}
	b.no(b.end(kids[0].Operation, operation.FinalSucceeded))
	b.advance(plan).want(plan, operation.Succeeded)
	b.sound()
}

// TestChildRefused: a child whose target went counts as failed.
func TestChildRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	plan := b.plan(2, 1, 1)
	b.no(b.store.RemoveObject(context.Background(), fleet.NodeID(b.cl, "uid-0")))
	b.advance(plan)
	kids := b.kids(plan)
	if kids[0].Phase != "failed" || kids[0].Admitted || !strings.Contains(kids[0].Detail, "not_found") || !kids[1].Admitted {
		t.Errorf("children %+v", kids)
	}
	b.no(b.end(kids[1].Operation, operation.FinalSucceeded))
	b.advance(plan).want(plan, operation.Succeeded)
}

func (b *bench) cancel(op string) {
	b.t.Helper()
	_, err := b.store.Update(context.Background(), op, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
		return operation.RequestCancel{By: operation.Actor{ID: "tok_alice"}, Reason: "stop"}, nil, nil
	})
	b.no(err)
}

func TestCancelStopsNewOnes(t *testing.T) {
	t.Parallel()
	b := setup(t, 5)
	plan := b.plan(5, 2, 0)
	b.advance(plan)
	b.cancel(plan)
	live := b.live(plan)
	b.no(b.end(live[0], operation.FinalSucceeded))
	b.advance(plan)
	if now := b.live(plan); len(now) != 1 || now[0] != live[1] {
		t.Errorf("running after the cancel: %v", now)
	}
	b.want(plan, operation.Cancelling)
	b.no(b.end(live[1], operation.FinalSucceeded))
	c := b.advance(plan).want(plan, operation.Cancelled).State.Children
	if c.Succeeded != 2 || c.Skipped != 3 {
		t.Errorf("counts %+v", c)
	}

	early := b.plan(2, 1, 0) // before it began
	b.cancel(early)
	b.advance(early).want(early, operation.Cancelled)
	b.sound()
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	plan := b.plan(4, 2, 4)
	b.advance(plan)
	live := b.live(plan)
	for _, op := range live {
		if d := b.load(op).State.Deadline; d.After(b.load(plan).State.Deadline) {
			t.Errorf("a child may run until %v, past its plan", d)
		}
	}
	b.no(b.end(live[0], operation.FinalSucceeded))
	b.pass(time.Hour)
	b.advance(plan).want(plan, operation.Running) // a child is still ending
	if n := len(b.live(plan)); n != 1 {
		t.Errorf("%d run past the deadline", n)
	}
	b.no(b.end(live[1], operation.FinalTimedOut))
	o := b.advance(plan).want(plan, operation.TimedOut)
	if c := o.State.Children; c.Succeeded != 1 || c.Failed != 1 || c.Skipped != 2 || o.State.Result.Cause.ErrorCode != "deadline_exceeded" {
		t.Errorf("counts %+v, result %+v", c, o.State.Result)
	}
	b.sound()
}

// TestCrashBetweenAnyTwoCommits: wherever the runner stops, it comes to the same
// end, and never has more in flight than it may.
func TestCrashBetweenAnyTwoCommits(t *testing.T) {
	t.Parallel()
	way := func(crashAt int, applied bool) (commits int, end string) {
		b := setup(t, 4)
		plan := b.plan(4, 2, 1)
		b.tap.n, b.tap.crashAt, b.tap.applied = 0, crashAt, applied
		again := func(f func() error) {
			t.Helper()
			for range 5 {
				err := f()
				if err == nil {
					return
				}
				if !errors.Is(err, errCrash) {
					t.Fatalf("crash at %d: %v", crashAt, err)
				}
				b.tap.mu.Lock()
				b.tap.down = false
				b.tap.mu.Unlock()
			}
			t.Fatalf("crash at %d: no end", crashAt)
		}
		for range 20 {
			again(func() error { return b.run.Advance(context.Background(), plan) })
			live := b.live(plan)
			if len(live) > 2 {
				t.Fatalf("crash at %d: %d in flight", crashAt, len(live))
			}
			if len(live) == 0 {
				break
			}
			outcome := operation.FinalSucceeded
			if live[0] == b.kids(plan)[0].Operation {
				outcome = operation.FinalFailed
			}
			b.no(b.end(live[0], outcome))
		}
		b.sound()
		o := b.load(plan)
		return b.tap.n, fmt.Sprintf("%s %+v %d", o.State.Phase, *o.State.Children, len(b.live(plan)))
	}
	commits, want := way(0, false)
	if !strings.HasPrefix(want, "succeeded {Total:4 Waiting:0 Active:0 Succeeded:3 Failed:1") {
		t.Fatal(want)
	}
	for n := 1; n <= commits; n++ {
		for _, applied := range []bool{false, true} {
			if _, got := way(n, applied); got != want {
				t.Errorf("crash at commit %d (in effect: %v): %s, want %s", n, applied, got, want)
			}
		}
	}
}

// TestRunnersAtOnce: however many run a plan at once, they keep to its limits.
func TestRunnersAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, 40)
	outside := b.admit(cordon(3))
	plan := b.plan(40, 3, 0)
	for round := 0; ; round++ {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if i == 0 && round == 2 { // its holder ends while they look
					if err := b.end(outside, operation.FinalFailed); err != nil {
						t.Error(err)
					}
				}
				if err := b.run.Advance(context.Background(), plan); err != nil && !errors.Is(err, ledger.ErrConflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		live := b.live(plan)
		if len(live) > 3 {
			t.Fatalf("%d in flight", len(live))
		}
		if b.load(plan).State.Phase.Terminal() {
			break
		}
		for _, op := range live {
			b.no(b.end(op, operation.FinalSucceeded))
		}
	}
	if c := b.want(plan, operation.Succeeded).State.Children; c.Succeeded != 40 {
		t.Errorf("counts %+v", c)
	}
	b.sound()
}

// TestTheLastSlot: one runner passed a child by because of an outside holder;
// the holder ends, another runner admits it; the first must not fill the slot a
// second time.
func TestTheLastSlot(t *testing.T) {
	t.Parallel()
	b := setup(t, 20)
	ctx := context.Background()
	plan := b.plan(20, 1, 0)
	b.advance(plan)
	b.no(b.end(b.live(plan)[0], operation.FinalSucceeded))
	stale, err := b.store.Children(ctx, plan) // the first runner's view
	b.no(err)
	b.advance(plan) // the second fills the slot, in the first run of children
	o := b.load(plan)
	stale.Kids[17].Admitted = true // in the second run, which nobody wrote
	_, err = b.adm.AdmitChild(ctx, &o, stale.Kids[17], stale.Admit(17))
	if !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("a slot was filled twice: %v", err)
	}
	if n := len(b.live(plan)); n != 1 {
		t.Errorf("%d in flight", n)
	}
}

func TestAThousandChildren(t *testing.T) {
	t.Parallel()
	b := setup(t, 1000)
	plan := b.plan(1000, 1000, 0)
	b.advance(plan)
	live := b.live(plan)
	if len(live) != 1000 {
		t.Fatalf("%d run", len(live))
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, op := range live {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := b.end(op, operation.FinalSucceeded); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if c := b.advance(plan).want(plan, operation.Succeeded).State.Children; c.Succeeded != 1000 {
		t.Errorf("counts %+v", c)
	}
}

func TestOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	op := b.admit(cordon(0))
	b.advance(op).want(op, operation.Pending)
	b.advance(id.New(id.Operation, t0))
}

// TestCancelWhileAdmitting: once a cancel is accepted no child is admitted,
// wherever the runner is.
func TestCancelWhileAdmitting(t *testing.T) {
	t.Parallel()
	b := setup(t, 30)
	plan := b.plan(30, 30, 0)
	b.advanceUntil(plan, 5, func() { b.cancel(plan) })
	b.advance(plan)
	live := len(b.live(plan))
	if live == 0 || live > 5 {
		t.Errorf("%d children live, want those admitted before the cancel", live)
	}
	if got := b.load(plan).State.Phase; got != operation.Cancelling {
		t.Errorf("the plan is %s", got)
	}
}

// advanceUntil advances the plan and calls f before the n-th commit from now.
func (b *bench) advanceUntil(plan string, n int, f func()) {
	b.t.Helper()
	b.tap.mu.Lock()
	b.tap.before, b.tap.beforeAt = f, b.tap.n+n
	b.tap.mu.Unlock()
	b.advance(plan)
}

// TestChildrenKeepTheirTargets: a name that means another object by the time of
// the child's turn does not send it there.
func TestChildrenKeepTheirTargets(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	plan := b.plan(2, 1, 1)
	old := b.kids(plan)[1].TargetID
	b.no(b.rest.RemoveObject(context.Background(), old))
	objects, _ := fleet.Objects(b.cl, &protocol.Inventory{Nodes: []protocol.Node{{UID: "uid-new", Name: "n1", Revision: 1}}}, t0)
	ws, err := b.rest.MergeObjects(context.Background(), objects)
	b.no(err)
	b.no(b.rest.Ledger.Commit(context.Background(), ws...))
	b.advance(plan)
	b.no(b.end(b.live(plan)[0], operation.FinalSucceeded))
	b.advance(plan)
	if k := b.kids(plan)[1]; k.Admitted || k.Phase != string(operation.Failed) || !strings.Contains(k.Detail, "not_found") {
		t.Errorf("child %+v: its node is gone, and the new one of that name is another", k)
	}
}
