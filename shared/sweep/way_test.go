package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
)

// TestTheWay: created, dispatched, rung, claimed, reported, succeeded; the last
// commit writes what was observed and gives the lock back.
func TestTheWay(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	op := p.create(drain("n0"))
	if r := a.claim(op); r.Result != protocol.ClaimRetry || r.RetryMS <= 0 {
		t.Errorf("claim before the dispatch: %+v", r)
	}
	p.settle()
	bells := p.bells(p.cl)
	if len(bells) != 1 || bells[0].Operation != op || bells[0].Kind != protocol.KindOperation || bells[0].Generation != 0 || bells[0].Cluster != p.cl {
		t.Fatalf("doorbells %+v", bells)
	}
	as := a.granted(op)
	if as.Generation != 1 || as.Probe || as.StartedStep == "" || as.LeaseMS != 15000 || as.DeadlineMS != 3600_000 || as.TargetUID != "uid-n0" {
		t.Errorf("assignment %+v", as)
	}
	if st := p.want(op, operation.Running).State; st.Steps[0].Phase != operation.StepRunning {
		t.Error("the claim did not tell that the first step starts")
	}
	a.told(protocol.Report{Operation: op, Generation: 1, N: 1, Steps: append(steps(as, operation.StepSucceeded, "preflight", "cordon"), steps(as, operation.StepRunning, "evict")...),
		Commands: []protocol.Command{{ID: id.New(id.Command, t0), StepID: as.Steps[1].ID, Name: "cordon", Category: "ok"}},
		Progress: &operation.Progress{Step: "evict", Done: 1, Total: 2, Unit: "pods"}})
	if r := a.renew(op, 1); !r.OK || r.LeaseMS != 15000 {
		t.Errorf("renew: %+v", r)
	}
	var last []string
	p.tap.seen = func(ws []ledger.Write) {
		last = nil
		for _, w := range ws {
			last = append(last, w.Item.Key.String())
		}
	}
	a.told(success(as, 2, 2))
	p.tap.seen = nil
	for _, want := range []ledger.Key{record.StateKey(op), record.InventoryKey(p.nodeID("n0")), record.LockKey(p.nodeID("n0"))} {
		if !slices.Contains(last, want.String()) {
			t.Errorf("the last commit wrote %v and not %s", last, want)
		}
	}
	o := p.want(op, operation.Succeeded)
	if p.held(op, "n0") || o.State.Result == nil || len(o.State.Result.Completed) != 5 {
		t.Errorf("held %v, result %+v", p.held(op, "n0"), o.State.Result)
	}
	n, _, err := p.store.Object(context.Background(), p.nodeID("n0"))
	if err != nil || n.Revision != 2 || n.Node.Schedulable {
		t.Errorf("inventory %+v, %v", n, err)
	}
	p.settle()
	if got := types(p.events(op)); got != "pending dispatched running succeeded" {
		t.Errorf("stream: %s", got)
	}
	evs := p.events("")
	slices.Sort(p.sent.ids)
	for _, e := range evs {
		if !slices.Contains(p.sent.ids, e.ID) {
			t.Errorf("event %s is not on the bus", e.Type)
		}
	}
	cmds, err := p.store.Commands(context.Background(), op, "", 0, 10)
	if err != nil || len(cmds) != 1 || cmds[0].Name != "cordon" {
		t.Errorf("commands %+v, %v", cmds, err)
	}
	if len(p.bells(p.cl)) != 0 {
		t.Error("it still rings")
	}
	p.pass(24 * time.Hour)
	p.sweepAll()
	p.sound()
}

// TestDoorbells: each doorbell that comes at the wrong time or place is harmless.
func TestDoorbells(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a, b := p.agent("a"), p.agent("b")
	op := p.dispatched("n0")
	as := a.granted(op)
	before := p.load(op).Version
	for i := range 10 { // the same doorbell again, to the other agent
		if r := b.claim(op); r.Result != protocol.ClaimHeld {
			t.Errorf("doorbell %d: %+v", i, r)
		}
	}
	foreign := &agent{p: p, cluster: p.other, name: "x", boot: "boot-1"}
	p.no(foreign.beat())
	res, err := p.api.Heartbeat(context.Background(), p.other, protocol.Heartbeat{Name: "x", Boot: "boot-1", Capabilities: able})
	p.no(err)
	foreign.id = res.AgentID
	if r := foreign.claim(op); r.Result != protocol.ClaimGone {
		t.Errorf("another cluster's: %+v", r)
	}
	for _, bad := range []string{"", "op_", "nope", "nod_" + op[3:], strings.ToUpper(op), op + "\x00", strings.Repeat("x", 100_000), "../../x", id.New(id.Operation, t0)} {
		if r := a.claim(bad); r.Result != protocol.ClaimGone || r.Assignment != nil || len(r.Operation) > 128 {
			t.Errorf("%.40q: %+v", bad, r)
		}
	}
	if p.load(op).Version != before {
		t.Error("a doorbell changed the operation")
	}
	a.told(success(as, 1, 2))
	for range 2 {
		if r := b.claim(op); r.Result != protocol.ClaimGone || !strings.Contains(r.Detail, "succeeded") {
			t.Errorf("after the end: %+v", r)
		}
		p.pass(24 * time.Hour) // and a day late
		p.no(b.beat())
	}
	p.settle()
	p.sound()
}

func TestTwoClaimAtOnce(t *testing.T) {
	t.Parallel()
	p := setup(t)
	agents := []*agent{p.agent("a"), p.agent("b"), p.agent("c"), p.agent("d")}
	for _, name := range []string{"n0", "n1", "n2"} {
		op := p.dispatched(name)
		results := make([]protocol.ClaimResult, len(agents))
		var wg sync.WaitGroup
		for i, a := range agents {
			wg.Go(func() { results[i] = a.claim(op) })
		}
		wg.Wait()
		granted := 0
		for _, r := range results {
			switch r.Result {
			case protocol.ClaimGranted:
				granted++
			case protocol.ClaimHeld:
			default:
				t.Errorf("claim: %+v", r)
			}
		}
		if o := p.load(op); granted != 1 || o.State.Generation != 1 || len(o.State.Assignments) != 1 {
			t.Errorf("%d granted: %+v", granted, o.State)
		}
	}
}

func TestClaimAnswerLost(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	op := p.dispatched("n0")
	first, again := a.granted(op), a.granted(op)
	if first.Generation != again.Generation || again.StartedStep != first.StartedStep {
		t.Errorf("first %+v, again %+v", first, again)
	}
	a.told(protocol.Report{Operation: op, Generation: 1, N: 1, Steps: steps(first, operation.StepSucceeded, "preflight")})
	if r := a.claim(op); r.Result != protocol.ClaimHeld { // it has said something: the answer was not lost
		t.Errorf("claim after a report: %+v", r)
	}
	a.boot = "boot-2" // a new process knows nothing
	p.no(a.beat())
	if r := a.claim(op); r.Result != protocol.ClaimHeld {
		t.Errorf("claim by a new process: %+v", r)
	}
	a.boot = "boot-1"
	if _, err := p.api.Claim(context.Background(), p.cl, protocol.ClaimRequest{AgentID: a.id, Boot: "boot-1"}); code(err) != "lease_lost" {
		t.Errorf("the old process: %v", err)
	}
}

func TestLeaseLost(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a, b := p.agent("a"), p.agent("b")
	op := p.dispatched("n0")
	old := a.evicting(op)
	p.bells(p.cl)

	p.pass(15*time.Second + time.Millisecond)
	if r := a.renew(op, 1); r.OK || r.ErrorCode != "lease_lost" {
		t.Errorf("renewed past its end: %+v", r)
	}
	p.no(b.beat())
	p.sweepAll()
	p.want(op, operation.Running) // one call deadline more
	if r := b.claim(op); r.Result != protocol.ClaimHeld {
		t.Errorf("claimed while a call may be under way: %+v", r)
	}
	p.pass(10 * time.Second)
	p.no(b.beat())
	p.sweepAll()
	o := p.want(op, operation.Reconciling)
	if o.State.Steps[2].Phase != operation.StepUnknown || o.State.Assignments[0].Ended != "lease_lost" || !p.held(op, "n0") {
		t.Errorf("state %+v", o.State)
	}
	if bells := p.bells(p.cl); len(bells) == 0 {
		t.Error("nobody is rung to probe")
	}
	as := b.granted(op)
	if as.Generation != 2 || !as.Probe || as.StartedStep != "" || as.Steps[2].Phase != operation.StepUnknown {
		t.Errorf("assignment %+v", as)
	}
	p.want(op, operation.Reconciling)
	if r := b.report(protocol.Report{Operation: op, Generation: 2, N: 1, Settled: true}); r.ErrorCode != "invalid" {
		t.Errorf("settled with a step unknown: %+v", r)
	}

	// What the old holder says now is kept and changes nothing.
	before := p.load(op)
	if r := a.report(success(old, 2, 9)); r.OK || r.ErrorCode != "lease_lost" {
		t.Errorf("late report: %+v", r)
	}
	after := p.load(op)
	if after.State.Phase != before.State.Phase || after.State.Lease.Generation != 2 || after.State.Steps[2].Phase != operation.StepUnknown || after.State.Journal.Seq != before.State.Journal.Seq+1 {
		t.Errorf("a late report changed %+v", after.State)
	}
	if n, _, err := p.store.Object(context.Background(), p.nodeID("n0")); err != nil || n.Revision == 9 {
		t.Errorf("a late report changed the inventory: %+v, %v", n, err)
	}
	if r := a.report(protocol.Report{Operation: op, Generation: 1, N: 3, Steps: steps(old, operation.StepSucceeded, "evict")}); r.ErrorCode != "lease_lost" || p.load(op).State.Journal.Seq != after.State.Journal.Seq {
		t.Errorf("progress of an old holder: %+v", r)
	}

	b.told(protocol.Report{Operation: op, Generation: 2, N: 1, Settled: true, Steps: steps(as, operation.StepSucceeded, "evict")})
	p.want(op, operation.Running)
	b.told(success(as, 2, 3))
	o = p.want(op, operation.Succeeded)
	p.settle()
	if got := types(p.events(op)); got != "pending dispatched running reconciling late_report running succeeded" {
		t.Errorf("stream: %s", got)
	}
	if len(o.State.Assignments) != 2 || p.held(op, "n0") {
		t.Errorf("state %+v", o.State)
	}
	p.sound()
}

func TestResendAfterTheEnd(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a, b := p.agent("a"), p.agent("b")
	for _, final := range []string{protocol.FinalSucceeded, protocol.FinalFailed, protocol.FinalAmbiguous, protocol.FinalHandBack} {
		name := "n-" + final
		p.nodes(name)
		op := p.dispatched(name)
		r := success(a.granted(op), 1, 2)
		r.Final.Outcome = final
		a.told(r)
		before := p.load(op)
		for range 3 {
			if res := a.report(r); !res.OK {
				t.Errorf("%s, resent: %+v", final, res)
			}
		}
		if after := p.load(op); after.Version != before.Version {
			t.Errorf("%s: a resend wrote", final)
		}
		if before.State.Phase.Terminal() {
			continue
		}
		p.settle() // another goes on; the resend still comes from somewhere
		b.granted(op)
		before = p.load(op)
		if res := a.report(r); !res.OK || p.load(op).Version != before.Version {
			t.Errorf("%s, resent while another holds it: %+v", final, res)
		}
	}
	p.settle()
	p.sound()
}

// TestFeedTwiceAndOutOfOrder: records come again, reordered, and some not at all.
func TestFeedTwiceAndOutOfOrder(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := context.Background()
	a := p.agent("a")
	var ops []string
	for _, n := range []string{"n0", "n1", "n2"} {
		ops = append(ops, p.create(drain(n)))
	}
	changes, next, err := p.db.Changes(ctx, "", 100, 0)
	p.no(err)
	ids := relay.Operations(changes)
	for _, batch := range [][]string{{ids[2], ids[0]}, ids, {ids[1], ids[2], ids[0]}, {id.New(id.Operation, t0), ids[1]}} {
		_, err := p.relay.Dispatch(ctx, batch)
		p.no(err)
		p.no(p.relay.Publish(ctx, batch))
		p.no(p.relay.Publish(ctx, batch))
	}
	p.at = next
	for i, op := range ops {
		as := a.granted(op)
		a.told(success(as, 1, int64(2+i)))
	}
	var wg sync.WaitGroup
	for range 4 { // several followers at once
		wg.Go(func() {
			if err := p.relay.Publish(ctx, ids); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p.settle()
	for _, op := range ops {
		if got := types(p.events(op)); got != "pending dispatched running succeeded" {
			t.Errorf("stream: %s", got)
		}
	}
	p.sound()
}

// TestLostRecord: what no record told of, the sweep mends.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	op := p.create(drain("n0"))
	_, next, err := p.db.Changes(context.Background(), "", 100, 0)
	p.no(err)
	p.at = next // the records are lost
	p.sweepAll()
	p.want(op, operation.Pending)
	p.pass(10 * time.Second)
	p.no(a.beat())
	p.sweepAll()
	p.want(op, operation.Dispatched)
	if len(p.bells(p.cl)) == 0 {
		t.Error("nobody is rung")
	}
	// A lost doorbell is rung again after 10 s, then after longer.
	for _, after := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		p.pass(after - time.Millisecond)
		p.no(a.beat())
		p.sweepAll()
		if n := len(p.bells(p.cl)); n != 0 {
			t.Errorf("%d rings before %s", n, after)
		}
		p.pass(time.Millisecond)
		p.sweepAll()
		if n := len(p.bells(p.cl)); n == 0 {
			t.Errorf("no ring after %s", after)
		}
	}
	if got := types(p.events(op)); got != "pending dispatched" {
		t.Errorf("stream: %s", got)
	}
	// Everything lost at once: Mend goes through all operations.
	as := a.granted(op)
	a.told(success(as, 1, 2))
	_, err = p.relay.Mend(context.Background(), time.Time{}, "")
	p.no(err)
	if got := types(p.events(op)); got != "pending dispatched running succeeded" {
		t.Errorf("stream: %s", got)
	}
}

// TestCrashBetweenAnyTwoCommits runs the whole way and crashes at the n-th
// commit, for every n, before it is in effect and after: when everything has
// started again the end and the stream are the same.
func TestCrashBetweenAnyTwoCommits(t *testing.T) {
	t.Parallel()
	way := func(t *testing.T, crashAt int, applied bool) (commits int, end string) {
		p := setup(t)
		p.tap.crashAt, p.tap.applied = crashAt, applied
		until := func(what string, f func() error) { // the process is started again and goes on
			t.Helper()
			for range 5 {
				if f() == nil {
					return
				}
				p.tap.restart()
			}
			t.Fatalf("crash at %d: %s finds no end", crashAt, what)
		}
		a := &agent{p: p, cluster: p.cl, name: "a", boot: "boot-1"}
		until("heartbeat", func() error {
			res, err := p.api.Heartbeat(context.Background(), p.cl, protocol.Heartbeat{Name: "a", Boot: "boot-1", Capabilities: able, SentAt: p.now()})
			a.id = res.AgentID
			return err
		})
		var op string
		until("create", func() error {
			res, err := p.adm.Admit(context.Background(), call("k"), record.Encode(drain("n0")))
			op = res.Operation.Spec.ID
			return err
		})
		until("follow", p.follow)
		var as *protocol.Assignment
		until("claim", func() error {
			r := a.claim(op)
			as = r.Assignment
			return okOr(r.Result == protocol.ClaimGranted)
		})
		until("follow", p.follow)
		until("renew", func() error { return okOr(a.renew(op, as.Generation).OK) })
		until("report", func() error {
			return okOr(a.report(protocol.Report{Operation: op, Generation: as.Generation, N: 1, Steps: append(steps(as, operation.StepSucceeded, "preflight", "cordon"), steps(as, operation.StepRunning, "evict")...)}).OK)
		})
		until("follow", p.follow)
		until("final", func() error { return okOr(a.report(success(as, 2, 2)).OK) })
		until("follow", p.follow)
		until("sweep", func() error { res, err := p.sweep.Pass(context.Background()); return errors.Join(err, res.Err) })
		until("follow", p.follow)
		p.sound()
		o := p.load(op)
		n, _, err := p.store.Object(context.Background(), p.nodeID("n0"))
		p.no(err)
		return p.tap.n, fmt.Sprint(o.State.Phase, " generation ", o.State.Generation, " attempts ", len(o.State.Steps[2].Attempts),
			" journal ", o.State.Journal.Seq, " held ", p.held(op, "n0"), " node ", n.Revision, " stream ", types(p.events("")))
	}
	commits, want := way(t, 0, false)
	if !strings.Contains(want, "succeeded generation 1") || !strings.HasSuffix(want, "agent.online pending dispatched running succeeded") {
		t.Fatalf("without a crash: %s", want)
	}
	for n := 1; n <= commits; n++ {
		for _, applied := range []bool{false, true} {
			if _, got := way(t, n, applied); got != want {
				t.Errorf("crash at commit %d (in effect: %v): %s\nwant %s", n, applied, got, want)
			}
		}
	}
}

func okOr(ok bool) error {
	if ok {
		return nil
	}
	return errCrash
}
