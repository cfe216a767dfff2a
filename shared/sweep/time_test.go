package sweep_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

// TestDeadlineInEachPhase: nothing is alive past the published bound, and what
// nobody holds ends at its deadline.
func TestDeadlineInEachPhase(t *testing.T) {
	t.Parallel()
	const bound = 25 * time.Second
	for name, c := range map[string]struct {
		bring func(p *plane, a *agent, op string)
		held  bool // an agent may still act at the deadline
	}{
		"pending":    {func(p *plane, _ *agent, op string) { p.want(op, operation.Pending) }, false},
		"dispatched": {func(p *plane, _ *agent, op string) { p.settle(); p.want(op, operation.Dispatched) }, false},
		"running":    {func(p *plane, a *agent, op string) { p.settle(); a.evicting(op); p.want(op, operation.Running) }, true},
		"cancelling": {func(p *plane, a *agent, op string) {
			p.settle()
			a.evicting(op)
			p.cancel(op, 202)
			p.want(op, operation.Cancelling)
		}, true},
		"reconciling": {func(p *plane, a *agent, op string) {
			p.settle()
			as := a.evicting(op)
			a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 2, Final: &protocol.Final{Outcome: protocol.FinalAmbiguous}})
			p.want(op, operation.Reconciling)
		}, false},
		"reconciling, claimed": {func(p *plane, a *agent, op string) {
			p.settle()
			as := a.evicting(op)
			a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 2, Final: &protocol.Final{Outcome: protocol.FinalAmbiguous}})
			a.granted(op)
			p.want(op, operation.Reconciling)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			a := p.agent("a")
			f := drain("n0")
			f["deadline"] = t0.Add(20 * time.Second).Format(time.RFC3339)
			op := p.create(f)
			c.bring(p, a, op)
			p.pass(8 * time.Second)
			p.no(a.beat())
			if st := p.load(op).State; st.Lease != nil { // renewed: the lease reaches up to the deadline, not past it
				r := a.renew(op, st.Generation)
				if !r.OK || r.LeaseMS != 12000 || r.DeadlineMS != 12000 {
					t.Fatalf("renew: %+v", r)
				}
			} else if name != "pending" {
				p.sweepAll()
			}
			p.pass(12*time.Second - time.Millisecond)
			if name != "pending" {
				p.sweepAll()
			}
			if p.load(op).State.Phase.Terminal() {
				t.Fatal("it ended before its deadline")
			}
			p.pass(time.Millisecond)
			p.sweepAll()
			if !c.held {
				p.want(op, operation.TimedOut)
			} else {
				if p.load(op).State.Phase.Terminal() || !p.held(op, "n0") {
					t.Fatal("it ended while its agent may still act")
				}
				p.pass(10*time.Second - time.Millisecond)
				p.sweepAll()
				if p.load(op).State.Phase.Terminal() || !p.held(op, "n0") {
					t.Fatal("it ended before its lease and one call deadline had run out")
				}
				p.pass(time.Millisecond)
				p.sweepAll()
			}
			o := p.want(op, operation.TimedOut)
			if p.now().Sub(o.State.Deadline) > bound || p.held(op, "n0") {
				t.Errorf("ended %s past its deadline, held %v", p.now().Sub(o.State.Deadline), p.held(op, "n0"))
			}
			if o.State.Result.Cause == nil || o.State.Result.Cause.ErrorCode != "deadline_exceeded" {
				t.Errorf("result %+v", o.State.Result)
			}
			if got := types(p.events(op)); strings.Count(got, "timed_out") != 1 {
				t.Errorf("stream: %s", got)
			}
			p.sound()
		})
	}
}

// TestUnsettled: what a timed-out operation left unknown is probed by the next
// one on the resource, and its success settles it.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	f := drain("n0")
	f["deadline"] = t0.Add(20 * time.Second).Format(time.RFC3339)
	op := p.create(f)
	p.settle()
	a.evicting(op)
	p.pass(time.Minute)
	p.no(a.beat())
	p.sweepAll()
	o := p.want(op, operation.TimedOut)
	if len(o.State.Result.Residual) != 1 || o.State.Result.Residual[0].Resource != p.nodeID("n0") {
		t.Fatalf("residual %+v", o.State.Result.Residual)
	}
	unsettled := func() []string {
		locks, err := p.store.Locks(context.Background(), []string{p.nodeID("n0")})
		p.no(err)
		return locks[p.nodeID("n0")].Unsettled
	}
	if got := unsettled(); len(got) != 1 || got[0] != op {
		t.Fatalf("unsettled by %v", got)
	}
	next := p.dispatched("n0")
	as := a.granted(next)
	if !as.Probe || as.Generation != 1 || as.StartedStep != "" {
		t.Errorf("assignment %+v: it must probe first", as)
	}
	r := success(as, 1, 2)
	r.Final = &protocol.Final{Outcome: protocol.FinalFailed, Retryable: true}
	r.Steps, r.Settled = steps(as, operation.StepFailed, "preflight"), false
	a.told(r)
	if len(unsettled()) != 1 {
		t.Error("a failure settled it")
	}
	next = p.dispatched("n0")
	as = a.granted(next)
	if !as.Probe {
		t.Error("the third one need not probe")
	}
	a.told(success(as, 1, 2))
	if got := unsettled(); len(got) != 0 {
		t.Errorf("unsettled by %v after a success", got)
	}
	if as = a.granted(p.dispatched("n0")); as.Probe {
		t.Error("it is settled, and still probed")
	}
}

// TestRetryProbes: between a dead letter and its retry others may have left the
// node unsettled.
func TestRetryProbes(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	op := p.dispatched("n0")
	p.dead(op)
	p.want(op, operation.Failed)
	_, err := p.ctl.Retry(context.Background(), call("r"), op, control.RetryInput{Reason: "again"})
	p.no(err)
	p.settle()
	if as := a.granted(op); !as.Probe || as.Run != 2 {
		t.Errorf("assignment %+v", as)
	}
}

func (p *plane) cancel(op string, want int) {
	p.t.Helper()
	_, status, err := p.ctl.Cancel(context.Background(), call(""), op, control.CancelInput{Reason: "changed my mind"})
	p.no(err)
	if status != want {
		p.t.Fatalf("DELETE answered %d, want %d", status, want)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")

	pending := p.create(drain("n0"))
	p.cancel(pending, 200)
	p.cancel(pending, 204)
	p.want(pending, operation.Cancelled)

	dispatched := p.dispatched("n0")
	p.cancel(dispatched, 200)
	if r := a.claim(dispatched); r.Result != protocol.ClaimGone {
		t.Errorf("claim of what was cancelled: %+v", r)
	}

	running := p.dispatched("n0")
	p.bells(p.cl)
	as := a.evicting(running)
	p.cancel(running, 202)
	p.settle()
	if bells := p.bells(p.cl); len(bells) == 0 || bells[len(bells)-1].Kind != protocol.KindAttention {
		t.Errorf("the holder is not rung: %+v", bells)
	}
	p.cancel(running, 202)
	if r := a.renew(running, 1); !r.OK || !r.Cancel {
		t.Errorf("renew: %+v", r)
	}
	if !p.held(running, "n0") {
		t.Error("the lock went before the work ended")
	}
	a.told(protocol.Report{Operation: running, Generation: as.Generation, N: 2, Steps: steps(as, operation.StepFailed, "evict"), Final: &protocol.Final{Outcome: protocol.FinalCancelled}})
	o := p.want(running, operation.Cancelled)
	p.cancel(running, 204)
	if p.held(running, "n0") || o.State.Cancel == nil || o.State.Cancel.Reason != "changed my mind" {
		t.Errorf("state %+v", o.State)
	}

	first := p.dispatched("n1") // the work was done first
	as = a.evicting(first)
	p.cancel(first, 202)
	a.told(success(as, 2, 2))
	p.want(first, operation.Succeeded)

	lost := p.dispatched("n2") // its holder dies while it cancels
	a.evicting(lost)
	p.cancel(lost, 202)
	p.pass(25 * time.Second)
	p.no(a.beat())
	p.sweepAll()
	p.want(lost, operation.Reconciling)
	p.cancel(lost, 202)
	as = a.granted(lost)
	if !as.Cancel || !as.Probe {
		t.Errorf("assignment %+v", as)
	}
	a.told(protocol.Report{Operation: lost, Generation: 2, N: 1, Settled: true, Steps: steps(as, operation.StepSucceeded, "evict")})
	p.want(lost, operation.Cancelling)
	a.told(protocol.Report{Operation: lost, Generation: 2, N: 2, Final: &protocol.Final{Outcome: protocol.FinalCancelled}})
	p.want(lost, operation.Cancelled)

	// An old operation is cancelled while a new one runs on the same node.
	now := p.dispatched("n0")
	a.evicting(now)
	p.cancel(pending, 204)
	if !p.held(now, "n0") || p.load(now).State.Cancel != nil {
		t.Error("the cancel of an old operation reached the new one")
	}
	p.settle()
	p.sound()
}

func TestTargetGone(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	waiting, running := p.dispatched("n0"), p.dispatched("n1")
	a.evicting(running)
	a.inventory(protocol.InventoryRequest{Gone: []string{"node/uid-n0", "node/uid-n1", "node/nope", "", "x/y", "node"}})
	o := p.want(waiting, operation.Failed)
	if o.State.Result.Cause.ErrorCode != "target_gone" || o.State.Result.Retryable || p.held(waiting, "n0") {
		t.Errorf("result %+v", o.State.Result)
	}
	p.want(running, operation.Running) // its agent tells how it ends
	_, err := p.adm.Admit(context.Background(), call(""), []byte(`{"type":"node.drain","target":"node:n0","reason":"r"}`))
	if code(err) != "not_found" {
		t.Errorf("a drain of what is gone: %v", err)
	}
	p.settle()
	p.sound()
}

// dead makes the operation's doorbell a dead letter.
func (p *plane) dead(op string) {
	p.t.Helper()
	ctx, name := context.Background(), fleet.QueueName(p.cl)
	for {
		ms, err := p.queue.Receive(ctx, name, queue.MaxBatch, 0, time.Minute)
		p.no(err)
		if len(ms) == 0 {
			break
		}
		for _, m := range ms {
			p.no(p.queue.Bury(ctx, name, m, "max_receives"))
		}
	}
	n, err := p.sweep.DeadLetters(ctx)
	p.no(err)
	if n == 0 {
		p.t.Fatal("no dead letter")
	}
}

func TestDeadLetter(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := context.Background()
	a := p.agent("a")
	op := p.dispatched("n0")
	p.dead(op)
	o := p.want(op, operation.Failed)
	if o.State.Result.Cause.ErrorCode != "dead_letter" || !o.State.Result.Retryable || p.held(op, "n0") || o.State.Result.NextAction.Code != operation.ActRecoverAgent {
		t.Errorf("result %+v", o.State.Result)
	}
	letters, _, err := p.store.DeadLetters(ctx, spanOf(10))
	p.no(err)
	if len(letters) != 1 || letters[0].Operation != op || letters[0].Cluster != p.cl {
		t.Fatalf("letters %+v", letters)
	}
	r, err := p.ctl.Redrive(ctx, call("k"), letters[0].ID, control.RetryInput{})
	p.no(err)
	if r.Operation.State.Phase != operation.Pending || r.Letter.Redriven == nil || !p.held(op, "n0") {
		t.Errorf("redriven %+v", r)
	}
	p.settle()
	a.told(success(a.granted(op), 1, 2))
	p.want(op, operation.Succeeded)

	// Letters that are no doorbell of a waiting operation are kept and harm nobody.
	name := fleet.QueueName(p.cl)
	stale, _ := json.Marshal(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: op, Cluster: p.cl})
	held := p.dispatched("n1")
	a.evicting(held)
	p.bells(p.cl)
	late, _ := json.Marshal(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: held, Cluster: p.cl})
	for _, body := range []string{"{", "\u202e\ufffd", string(stale), string(late), `{"kind":"operation","operation":"op_x"}`, strings.Repeat("x", 60_000)} {
		p.no(p.queue.Send(ctx, name, queue.Outgoing{Body: []byte(body)}))
	}
	p.dead("")
	letters, _, err = p.store.DeadLetters(ctx, spanOf(50))
	p.no(err)
	if len(letters) != 7 {
		t.Errorf("%d letters are kept", len(letters))
	}
	p.want(op, operation.Succeeded)
	p.want(held, operation.Running)
	own := strings.Count(types(p.events("")), event.TypeDeadLetter)
	others, _, err := event.ReadStream(ctx, p.db, event.PlaneStream, 1, 100)
	p.no(err)
	if n := own + strings.Count(types(others), event.TypeDeadLetter); n != 7 || own != 3 {
		t.Errorf("%d events of dead letters, %d in the cluster's stream", n, own)
	}

	// A letter of another cluster's queue does not end this one's operation.
	mine := p.dispatched("n2")
	p.bells(p.cl)
	forged, _ := json.Marshal(protocol.Doorbell{Version: 1, Kind: protocol.KindOperation, Operation: mine, Cluster: p.cl})
	other := fleet.QueueName(p.other)
	p.no(p.queue.Send(ctx, other, queue.Outgoing{Body: forged}))
	ms, err := p.queue.Receive(ctx, other, 1, 0, time.Minute)
	p.no(err)
	p.no(p.queue.Bury(ctx, other, ms[0], "unreadable"))
	_, err = p.sweep.DeadLetters(ctx)
	p.no(err)
	p.want(mine, operation.Dispatched)
	p.settle()
	p.sound()
}

func TestSilentAgents(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.agent("a")
	for range 5 { // heartbeats are no events
		p.pass(5 * time.Second)
		p.no(a.beat())
		p.sweepAll()
	}
	p.pass(15 * time.Second)
	p.sweepAll()
	p.pass(time.Hour)
	p.sweepAll() // told once
	op := p.create(drain("n0"))
	p.settle()
	if w := p.want(op, operation.Dispatched).State.Waiting; w == nil || w.Code != operation.WaitNoAgent {
		t.Errorf("waiting %+v", w)
	}
	p.bells(p.cl)
	p.no(a.beat()) // it is back: what waited is offered again
	if bells := p.bells(p.cl); len(bells) != 1 || bells[0].Operation != op {
		t.Errorf("doorbells %+v", bells)
	}
	p.pass(10 * time.Second)
	p.no(a.beat())
	p.sweepAll()
	if w := p.load(op).State.Waiting; w != nil {
		t.Errorf("an agent is there, and it waits for %+v", w)
	}
	a.boot = "boot-2"
	p.no(a.beat())
	if got := types(p.events("")); strings.Count(got, "agent.online") != 3 || strings.Count(got, "agent.silent") != 1 {
		t.Errorf("stream: %s", got)
	}
}

func TestIncompatibleAgent(t *testing.T) {
	t.Parallel()
	p := setup(t)
	res, err := p.api.Heartbeat(context.Background(), p.cl, protocol.Heartbeat{Name: "old", Boot: "b", Capabilities: []protocol.Capability{{Name: "node.cordon", Version: 1}}})
	p.no(err)
	old := &agent{p: p, cluster: p.cl, name: "old", boot: "b", id: res.AgentID}
	op := p.dispatched("n0")
	if w := p.load(op).State.Waiting; w == nil || w.Code != operation.WaitIncompatible || !strings.Contains(w.Need, "node.drain") {
		t.Errorf("waiting %+v", w)
	}
	if r := old.claim(op); r.Result != protocol.ClaimIncompatible || !strings.Contains(r.Detail, "node.drain") {
		t.Errorf("claim: %+v", r)
	}
	if o := p.want(op, operation.Dispatched); o.State.Generation != 0 {
		t.Error("a refused claim took a generation")
	}
}
