package sweep_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	queuesqlite "github.com/opsplane/opsplane/shared/queue/sqlite"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
	"github.com/opsplane/opsplane/shared/verify"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

var errCrash = fmt.Errorf("%w: crashed", ledger.ErrUnavailable)

// tap is a ledger that watches commits and can crash at one of them: that call
// and all later ones fail until it is started again. With applied the commit at
// which it crashes is in effect, and only its answer is lost.
type tap struct {
	ledger.Ledger
	mu      sync.Mutex
	n       int
	crashAt int
	applied bool
	down    bool
	seen    func(ws []ledger.Write)
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
	l.mu.Unlock()
	if crash && !l.applied {
		return errCrash
	}
	err := l.Ledger.Commit(ctx, ws...)
	if err == nil && l.seen != nil {
		l.seen(ws)
	}
	if crash {
		return errCrash
	}
	return err
}

func (l *tap) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// plane is everything of the plane but HTTP, over the real engines.
type plane struct {
	t     testing.TB
	mu    sync.Mutex
	clock time.Time
	db    *ledgersqlite.DB
	tap   *tap
	queue *queuesqlite.DB
	store *record.Store
	adm   *admission.Service
	ctl   *control.Service
	api   *agentapi.Service
	relay *relay.Relay
	sweep *sweep.Sweep
	at    string // of the feed
	other string // a second cluster
	cl    string // the cluster
	sent  busLog
}

// busLog keeps what was put on the bus.
type busLog struct {
	mu  sync.Mutex
	ids []string
}

func (b *busLog) Publish(_ context.Context, ms ...bus.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range ms {
		b.ids = append(b.ids, m.ID)
	}
	return nil
}

func setup(t testing.TB) *plane {
	t.Helper()
	ctx := context.Background()
	p := &plane{t: t, clock: t0}
	dir := t.TempDir()
	var err error
	if p.db, err = ledgersqlite.Open(ctx, ledgersqlite.Options{Path: filepath.Join(dir, "ledger.db"), Now: p.now}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.db.Close() })
	if p.queue, err = queuesqlite.Open(ctx, queuesqlite.Options{Path: filepath.Join(dir, "queue.db")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.queue.Close() })
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	p.tap = &tap{Ledger: p.db}
	p.store = &record.Store{Ledger: p.tap, Now: p.now, Timing: operation.OneMachine}
	p.relay = &relay.Relay{Store: p.store, Queue: p.queue, Bus: &p.sent, Logger: log}
	p.api = &agentapi.Service{Store: p.store, Queue: p.queue, Logger: log, Reoffer: p.relay.Reoffer}
	p.adm = &admission.Service{Store: p.store}
	p.ctl = &control.Service{Store: p.store}
	p.sweep = &sweep.Sweep{Store: p.store, Relay: p.relay, Queue: p.queue, Logger: log}
	for i, name := range []string{"alpha", "beta"} {
		c := fleet.Cluster{ID: id.Derive(id.Cluster, name), Name: name, CreatedAt: t0}
		c.Queue = fleet.QueueName(c.ID)
		p.no(p.queue.Ensure(ctx, c.Queue))
		p.no(p.store.Ledger.Commit(ctx, ledger.Write{Item: record.ClusterItem(&c)},
			ledger.Write{Item: ledger.Item{Key: record.ClusterNameKey(name), Data: record.Encode(record.ClusterName{Cluster: c.ID})}}))
		if i == 0 {
			p.cl = c.ID
		} else {
			p.other = c.ID
		}
	}
	p.no(p.queue.Ensure(ctx, relay.PlaneQueue))
	p.nodes("n0", "n1", "n2")
	p.tap.n = 0
	return p
}

func (p *plane) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock
}

// pass lets time pass.
func (p *plane) pass(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock = p.clock.Add(d)
}

func (p *plane) no(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func node(name string, revision int64) protocol.Node {
	return protocol.Node{UID: "uid-" + name, Name: name, Revision: revision, Schedulable: true}
}

func (p *plane) nodeID(name string) string { return fleet.NodeID(p.cl, "uid-"+name) }

// nodes puts nodes into the inventory, as if they had been reported.
func (p *plane) nodes(names ...string) {
	p.t.Helper()
	var inv protocol.Inventory
	for _, n := range names {
		inv.Nodes = append(inv.Nodes, node(n, 1))
	}
	objects, _ := fleet.Objects(p.cl, &inv, p.now())
	ws, err := p.store.MergeObjects(context.Background(), objects)
	p.no(err)
	p.no(p.store.Ledger.Commit(context.Background(), ws...))
}

func call(key string) admission.Call {
	return admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "tok_alice", Kind: "token"}, Force: true}, Method: "POST", Path: "/v1/operations", IdempotencyKey: key}
}

func drain(name string) map[string]any {
	return map[string]any{"type": "node.drain", "target": "node:" + name, "reason": "firmware"}
}

// create admits an operation.
func (p *plane) create(fields map[string]any) string {
	p.t.Helper()
	a, err := p.adm.Admit(context.Background(), call(""), record.Encode(fields))
	p.no(err)
	return a.Operation.Spec.ID
}

// follow does what the followers of the feed do, until nothing is new.
func (p *plane) follow() error {
	ctx := context.Background()
	for {
		changes, next, err := p.db.Changes(ctx, p.at, 100, 0)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			return nil
		}
		ids := relay.Operations(changes)
		if _, err := p.relay.Dispatch(ctx, ids); err != nil {
			return err
		}
		if err := p.relay.Publish(ctx, ids); err != nil {
			return err
		}
		for _, c := range changes {
			if s := record.StreamOf(c.Key); s != "" {
				if err := p.relay.PublishBus(ctx, s); err != nil {
					return err
				}
			}
		}
		p.at = next
	}
}

func (p *plane) settle() {
	p.t.Helper()
	p.no(p.follow())
}

// sweepAll passes until nothing is due, and publishes what came of it.
func (p *plane) sweepAll() {
	p.t.Helper()
	for range 50 {
		res, err := p.sweep.Pass(context.Background())
		n, err := res.Due, errors.Join(err, res.Err)
		p.no(err)
		if n == 0 {
			p.settle()
			return
		}
	}
	p.t.Fatal("the sweep finds no end: what it does leaves the item due")
}

func (p *plane) load(op string) operation.Operation {
	p.t.Helper()
	o, err := p.store.Load(context.Background(), op)
	p.no(err)
	return o
}

// want checks an operation's phase.
func (p *plane) want(op string, phase operation.Phase) operation.Operation {
	p.t.Helper()
	o := p.load(op)
	if o.State.Phase != phase {
		p.t.Fatalf("%s is %s, want %s (waiting %+v, result %+v)", op, o.State.Phase, phase, o.State.Waiting, o.State.Result)
	}
	return o
}

// held tells whether the operation holds the node.
func (p *plane) held(op, name string) bool {
	p.t.Helper()
	locks, err := p.store.Locks(context.Background(), []string{p.nodeID(name)})
	p.no(err)
	return slices.ContainsFunc(locks[p.nodeID(name)].Holders, func(h operation.Holder) bool { return h.Operation == op })
}

// events are the events of the cluster's stream, of one operation ("": all).
func (p *plane) events(op string) []event.Event {
	p.t.Helper()
	evs, _, err := event.ReadStream(context.Background(), p.db, p.cl, 1, 1000)
	p.no(err)
	return slices.DeleteFunc(evs, func(e event.Event) bool { return op != "" && e.OperationID != op })
}

func types(evs []event.Event) string {
	var out []string
	for _, e := range evs {
		out = append(out, strings.TrimPrefix(e.Type, "operation."))
	}
	return strings.Join(out, " ")
}

// sound checks everything that must be true of a ledger at any time.
func (p *plane) sound() {
	p.t.Helper()
	tm := operation.OneMachine
	r, err := verify.Run(context.Background(), p.store, p.now(), tm.Lease+tm.CallDeadline+time.Second)
	p.no(err)
	if r.Count > 0 {
		p.t.Fatalf("the ledger is not sound: %v", r.Problems)
	}
}

// bells takes the doorbells off a cluster's queue.
func (p *plane) bells(cluster string) []protocol.Doorbell {
	p.t.Helper()
	ctx, name := context.Background(), fleet.QueueName(cluster)
	var out []protocol.Doorbell
	for {
		ms, err := p.queue.Receive(ctx, name, queue.MaxBatch, 0, time.Minute)
		p.no(err)
		if len(ms) == 0 {
			return out
		}
		for _, m := range ms {
			var d protocol.Doorbell
			p.no(json.Unmarshal(m.Body, &d))
			p.no(p.queue.Delete(ctx, name, m.Receipt))
			out = append(out, d)
		}
	}
}

// agent is an agent that does what a test says.
type agent struct {
	p                       *plane
	cluster, name, boot, id string
}

var able = []protocol.Capability{{Name: "node.cordon", Version: 1}, {Name: "node.drain", Version: 1}, {Name: "device.reset", Version: 1}}

func (p *plane) agent(name string) *agent {
	p.t.Helper()
	a := &agent{p: p, cluster: p.cl, name: name, boot: "boot-1", id: fleet.AgentID(p.cl, name)}
	p.no(a.beat())
	return a
}

func (a *agent) beat() error {
	_, err := a.p.api.Heartbeat(context.Background(), a.cluster, protocol.Heartbeat{Name: a.name, Boot: a.boot, Version: "1", Capabilities: able, SentAt: a.p.now()})
	return err
}

func (a *agent) claim(op string) protocol.ClaimResult {
	a.p.t.Helper()
	res, err := a.p.api.Claim(context.Background(), a.cluster, protocol.ClaimRequest{AgentID: a.id, Boot: a.boot, Claims: []protocol.Claim{{Operation: op}}})
	a.p.no(err)
	return res.Results[0]
}

// granted claims an operation, which must be given.
func (a *agent) granted(op string) *protocol.Assignment {
	a.p.t.Helper()
	r := a.claim(op)
	if r.Result != protocol.ClaimGranted {
		a.p.t.Fatalf("claim of %s: %+v", op, r)
	}
	return r.Assignment
}

func (a *agent) renew(op string, gen int64) protocol.RenewResult {
	a.p.t.Helper()
	res, err := a.p.api.Renew(context.Background(), a.cluster, protocol.RenewRequest{AgentID: a.id, Boot: a.boot, Renewals: []protocol.RenewalEntry{{Operation: op, Generation: gen}}})
	a.p.no(err)
	return res.Results[0]
}

func (a *agent) report(r protocol.Report) protocol.ReportResult {
	a.p.t.Helper()
	res, err := a.p.api.Report(context.Background(), a.cluster, protocol.ReportRequest{AgentID: a.id, Boot: a.boot, Reports: []protocol.Report{r}})
	if err != nil {
		return protocol.ReportResult{ErrorCode: "unavailable", Detail: err.Error()}
	}
	return res.Results[0]
}

// told reports, which must be taken.
func (a *agent) told(r protocol.Report) {
	a.p.t.Helper()
	if res := a.report(r); !res.OK {
		a.p.t.Fatalf("report %+v: %+v", r, res)
	}
}

// steps are reports of a phase for the named steps of an assignment.
func steps(as *protocol.Assignment, phase operation.StepPhase, names ...string) []protocol.StepReport {
	var out []protocol.StepReport
	for _, s := range as.Steps {
		if slices.Contains(names, s.Name) {
			out = append(out, protocol.StepReport{StepID: s.ID, Phase: phase, Outcome: outcome(phase)})
		}
	}
	return out
}

func outcome(p operation.StepPhase) string {
	switch p {
	case operation.StepSucceeded:
		return operation.OutcomeDone
	case operation.StepFailed:
		return operation.OutcomePermanent
	}
	return ""
}

// success is the report that ends a drain well, with the node as it was seen.
func success(as *protocol.Assignment, n, revision int64) protocol.Report {
	seen := node(strings.TrimPrefix(as.TargetName, "node:"), revision)
	seen.Schedulable = false
	return protocol.Report{Operation: as.Operation, Generation: as.Generation, N: n, Settled: as.Probe,
		Steps: steps(as, operation.StepSucceeded, "preflight", "cordon", "evict", "wait", "confirm"),
		Final: &protocol.Final{Outcome: protocol.FinalSucceeded, Message: "drained", Verified: []string{"no planned pod is left"}, Observed: &protocol.Inventory{Nodes: []protocol.Node{seen}}}}
}

// evicting brings a drain to the middle of its eviction.
func (a *agent) evicting(op string) *protocol.Assignment {
	a.p.t.Helper()
	as := a.granted(op)
	a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 1,
		Steps: append(steps(as, operation.StepSucceeded, "preflight", "cordon"), steps(as, operation.StepRunning, "evict")...)})
	return as
}

// dispatched creates a drain that waits for a claim.
func (p *plane) dispatched(name string) string {
	p.t.Helper()
	op := p.create(drain(name))
	p.settle()
	p.want(op, operation.Dispatched)
	return op
}

func code(err error) string {
	var r *operation.Refusal
	if errors.As(err, &r) {
		return r.ErrorCode
	}
	return fmt.Sprint(err)
}
