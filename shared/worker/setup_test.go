package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/planrun"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	queuesqlite "github.com/opsplane/opsplane/shared/queue/sqlite"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
	"github.com/opsplane/opsplane/shared/worker"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// tap is a ledger in whose way a test can get.
type tap struct {
	ledger.Ledger
	mu sync.Mutex
	n  int
	// commit is called with the number of each commit and its writes, before it: an
	// error ends it there. after is called behind it, likewise.
	commit, after func(n int, ws []ledger.Write) error
	due           func() error
	read          []ledger.Key
}

func (l *tap) Commit(ctx context.Context, ws ...ledger.Write) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	l.n++
	n, before, after := l.n, l.commit, l.after
	l.mu.Unlock()
	if before != nil {
		if err := before(n, ws); err != nil {
			return err
		}
	}
	if err := l.Ledger.Commit(ctx, ws...); err != nil {
		return err
	}
	if after != nil {
		return after(n, ws)
	}
	return nil
}

func (l *tap) Due(ctx context.Context, until time.Time, limit int) ([]ledger.Item, error) {
	l.mu.Lock()
	due := l.due
	l.mu.Unlock()
	if due != nil {
		if err := due(); err != nil {
			return nil, err
		}
	}
	return l.Ledger.Due(ctx, until, limit)
}

func (l *tap) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	l.mu.Lock()
	l.read = append(l.read, ks...)
	l.mu.Unlock()
	return l.Ledger.GetMany(ctx, ks)
}

// looks counts how often the state of an operation was read.
func (l *tap) looks(op string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.read {
		if k == record.StateKey(op) {
			n++
		}
	}
	return n
}

// reset lets everything pass, and counts from 1 again.
func (l *tap) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n, l.commit, l.after, l.due, l.read = 0, nil, nil, nil, nil
}

// boardBus keeps what was put on the bus, unless it is down.
type boardBus struct {
	mu  sync.Mutex
	err error
	ids []string
}

func (b *boardBus) Publish(_ context.Context, ms ...bus.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	for _, m := range ms {
		b.ids = append(b.ids, m.ID)
	}
	return nil
}

// wakes keeps the wake-ups that were sent.
type wakes struct {
	mu   sync.Mutex
	err  error
	sent []queue.Outgoing
}

func (w *wakes) Send(_ context.Context, _ string, ms ...queue.Outgoing) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.sent = append(w.sent, ms...)
	return nil
}

// plane is a plane whose functions run here: the domain over the one-machine
// engines, the handlers as Lambda calls them.
type plane struct {
	t       testing.TB
	mu      sync.Mutex
	clock   time.Time
	started time.Time // not zero: the clock runs
	db      *ledgersqlite.DB
	tap     *tap
	queue   *queuesqlite.DB
	store   *record.Store
	adm     *admission.Service
	plans   *planrun.Runner
	bus     boardBus
	wakes   wakes
	waker   *sweep.Waker
	metrics bytes.Buffer
	relays  *worker.Relay // relay's process
	cluster string
	at      string // of the feed
	serial  int    // of stream records
	records []json.RawMessage
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
	p.tap = &tap{Ledger: p.db}
	p.fresh()
	c := fleet.Cluster{ID: id.Derive(id.Cluster, "alpha"), Name: "alpha", CreatedAt: t0}
	c.Queue = fleet.QueueName(c.ID)
	p.cluster = c.ID
	p.no(p.db.Commit(ctx, ledger.Write{Item: record.ClusterItem(&c)},
		ledger.Write{Item: ledger.Item{Key: record.ClusterNameKey("alpha"), Data: record.Encode(record.ClusterName{Cluster: c.ID})}}))
	for _, name := range []string{c.Queue, relay.PlaneQueue, sweep.WakeQueue, sweep.GivenUpQueue} {
		p.no(p.queue.Ensure(ctx, name))
	}
	var inv protocol.Inventory
	for i := range 8 {
		name := "n" + strconv.Itoa(i)
		inv.Nodes = append(inv.Nodes, protocol.Node{UID: "uid-" + name, Name: name, Revision: 1, Schedulable: true})
	}
	objects, _ := fleet.Objects(c.ID, &inv, p.now())
	ws, err := p.store.MergeObjects(ctx, objects)
	p.no(err)
	p.no(p.db.Commit(ctx, ws...))
	return p
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// fresh starts the functions' processes anew: nothing that one remembered is
// left.
func (p *plane) fresh() {
	p.waker = &sweep.Waker{Queue: &p.wakes, Now: p.now, Logger: quiet()}
	p.store = &record.Store{Ledger: sweep.Waking(p.tap, p.waker), Now: p.now, Timing: operation.AWS}
	p.adm = &admission.Service{Store: p.store}
	p.plans = &planrun.Runner{Store: p.store, Admission: p.adm}
	p.relays = nil
}

func (p *plane) relay() *relay.Relay {
	return &relay.Relay{Store: p.store, Queue: p.queue, Bus: &p.bus, Logger: quiet()}
}

func (p *plane) relayFunction() *worker.Relay {
	if p.relays == nil {
		p.relays = &worker.Relay{Relay: p.relay(), Decode: dynamo.DecodeChange, Logger: quiet(), Metrics: p.meter()}
	}
	return p.relays
}

func (p *plane) sweepFunction() *worker.Sweep {
	s := &sweep.Sweep{Store: p.store, Relay: p.relay(), Queue: p.queue, Logger: quiet(), Waker: p.waker}
	return &worker.Sweep{Sweep: s, GivenUp: p.queue, Logger: quiet(), Metrics: p.meter()}
}

func (p *plane) planeFunction() *worker.Plane {
	return &worker.Plane{Plans: p.plans, Queue: p.queue, Logger: quiet()}
}

func (p *plane) meter() *cloud.Metrics {
	return cloud.NewMetrics(&p.metrics, cloud.Config{Stage: "test"})
}

func (p *plane) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started.IsZero() {
		return p.clock.Add(time.Since(p.started))
	}
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

func call() admission.Call {
	return admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "tok_alice", Kind: "token"}}, Method: "POST", Path: "/v1/operations"}
}

// create admits an operation.
func (p *plane) create(fields map[string]any) string {
	p.t.Helper()
	a, err := p.adm.Admit(context.Background(), call(), record.Encode(fields))
	p.no(err)
	return a.Operation.Spec.ID
}

// drain admits the drain of a node.
func (p *plane) drain(node int) string {
	p.t.Helper()
	return p.create(map[string]any{"type": "node.drain", "target": "node:n" + strconv.Itoa(node), "reason": "firmware"})
}

// stream are the records of what was written since the last call, as the
// table's stream has them.
func (p *plane) stream() []json.RawMessage {
	p.t.Helper()
	var out []json.RawMessage
	for {
		changes, next, err := p.db.Changes(context.Background(), p.at, 100, 0)
		p.no(err)
		if len(changes) == 0 {
			p.records = append(p.records, out...)
			return out
		}
		p.at = next
		for _, c := range changes {
			p.serial++
			out = append(out, streamRecord(p.serial, c))
		}
	}
}

func streamRecord(n int, c ledger.Change) json.RawMessage {
	return record.Encode(map[string]any{
		"eventID": fmt.Sprintf("event-%d", n), "eventName": "MODIFY", "eventVersion": "1.1", "eventSource": "aws:dynamodb", "awsRegion": "eu-west-1",
		"dynamodb": map[string]any{
			"ApproximateCreationDateTime": 1782907200, "SequenceNumber": fmt.Sprintf("%024d", n), "SizeBytes": 120, "StreamViewType": "NEW_IMAGE",
			"Keys":     map[string]any{"pk": map[string]any{"S": c.PK}, "sk": map[string]any{"S": c.SK}},
			"NewImage": map[string]any{"pk": map[string]any{"S": c.PK}, "sk": map[string]any{"S": c.SK}, "v": map[string]any{"N": fmt.Sprint(c.Version)}, "f": map[string]any{"N": "1"}},
		},
		"eventSourceARN": "arn:aws:dynamodb:eu-west-1:111122223333:table/opsplane-test/stream/2026-07-01T00:00:00.000",
	})
}

func sequence(raw json.RawMessage) string {
	var r struct {
		Dynamodb struct{ SequenceNumber string } `json:"dynamodb"`
	}
	_ = json.Unmarshal(raw, &r) // of what is no object: none
	return r.Dynamodb.SequenceNumber
}

// invoke calls a handler as the Lambda runtime does.
func invoke(ctx context.Context, handler any, payload any) (string, error) {
	raw, ok := payload.([]byte)
	if !ok {
		raw = record.Encode(payload)
	}
	out, err := lambda.NewHandler(handler).Invoke(ctx, raw)
	return strings.TrimSpace(string(out)), err
}

// none is the answer that nothing failed.
const none = `{"batchItemFailures":[]}`

// failures are the ids of an answer.
func (p *plane) failures(answer string) []string {
	p.t.Helper()
	var a struct {
		BatchItemFailures []struct{ ItemIdentifier string } `json:"batchItemFailures"`
	}
	p.no(json.Unmarshal([]byte(answer), &a))
	if a.BatchItemFailures == nil {
		p.t.Fatalf("the answer %s has no list", answer)
	}
	var out []string
	for _, f := range a.BatchItemFailures {
		out = append(out, f.ItemIdentifier)
	}
	return out
}

// deliver gives relay a batch, which it must take to its end.
func (p *plane) deliver(records []json.RawMessage) {
	p.t.Helper()
	out, err := invoke(context.Background(), p.relayFunction().Handle, worker.StreamEvent{Records: records})
	if err != nil || out != none {
		p.t.Fatalf("answer %s, %v", out, err)
	}
}

// mapping delivers a batch as an event source mapping does, each time from the
// first record that failed on, to processes that may be new ones, until all of it
// is taken. It returns how often the function was called.
func (p *plane) mapping(records []json.RawMessage) int {
	p.t.Helper()
	for calls := 1; ; calls++ {
		out, err := invoke(context.Background(), p.relayFunction().Handle, worker.StreamEvent{Records: records})
		p.no(err)
		failed := p.failures(out)
		if len(failed) == 0 {
			return calls
		}
		from := slices.IndexFunc(records, func(r json.RawMessage) bool { return sequence(r) == failed[0] })
		if len(failed) != 1 || from < 0 || calls > 20 {
			p.t.Fatalf("call %d: answer %s", calls, out)
		}
		records = records[from:]
		p.tap.reset()
		p.fresh()
	}
}

// settle delivers what is new in the stream until nothing is.
func (p *plane) settle() {
	p.t.Helper()
	for rs := p.stream(); len(rs) > 0; rs = p.stream() {
		p.deliver(rs)
	}
}

// transitions are the kinds of an operation's events in its stream, in order.
func (p *plane) transitions(op string) string {
	p.t.Helper()
	var out []string
	evs, _, err := event.ReadStream(context.Background(), p.db, p.cluster, 1, 1000)
	p.no(err)
	for _, e := range evs {
		if e.OperationID == op {
			out = append(out, strings.TrimPrefix(e.Type, "operation."))
		}
	}
	return strings.Join(out, " ")
}

// dispatches counts an operation's dispatches in its journal.
func (p *plane) dispatches(op string) int {
	p.t.Helper()
	entries, err := p.store.Journal(context.Background(), op, 1, 0)
	p.no(err)
	n := 0
	for _, e := range entries {
		if e.To == operation.Dispatched {
			n++
		}
	}
	return n
}

func (p *plane) want(op string, phase operation.Phase) operation.Operation {
	p.t.Helper()
	o, err := p.store.Load(context.Background(), op)
	p.no(err)
	if o.State.Phase != phase {
		p.t.Fatalf("%s is %s, want %s", op, o.State.Phase, phase)
	}
	return o
}

// bells takes the doorbells off the cluster's queue and counts them by operation.
func (p *plane) bells() map[string]int {
	p.t.Helper()
	out := map[string]int{}
	for _, m := range p.take(fleet.QueueName(p.cluster)) {
		var d protocol.Doorbell
		p.no(json.Unmarshal(m.Body, &d))
		out[d.Operation]++
	}
	return out
}

// take takes all messages off a queue.
func (p *plane) take(name string) []queue.Message {
	p.t.Helper()
	var out []queue.Message
	for {
		ms, err := p.queue.Receive(context.Background(), name, queue.MaxBatch, 0, time.Minute)
		p.no(err)
		if len(ms) == 0 {
			return out
		}
		for _, m := range ms {
			p.no(p.queue.Delete(context.Background(), name, m.Receipt))
		}
		out = append(out, ms...)
	}
}

// letters are the dead letters that people see.
func (p *plane) letters() []record.DeadLetter {
	p.t.Helper()
	ls, _, err := p.store.DeadLetters(context.Background(), record.Span{Limit: 100})
	p.no(err)
	return ls
}

// fromQueue is an event of messages.
func fromQueue(bodies ...string) events.SQSEvent {
	var e events.SQSEvent
	for i, b := range bodies {
		e.Records = append(e.Records, events.SQSMessage{MessageId: fmt.Sprintf("message-%d", i), ReceiptHandle: fmt.Sprintf("receipt-%d", i),
			Body: b, EventSource: "aws:sqs", Attributes: map[string]string{"ApproximateReceiveCount": "1"}})
	}
	return e
}

// tickAt is the event of the minute rule.
func tickAt(at time.Time) map[string]any {
	return map[string]any{"version": "0", "id": "7f6d1c8e", "detail-type": "Scheduled Event", "source": "aws.events", "account": "111122223333",
		"time": at.Format(time.RFC3339), "region": "eu-west-1", "resources": []string{"arn:aws:events:eu-west-1:111122223333:rule/opsplane-test-sweep"}, "detail": map[string]any{}}
}

// wakeFor is the body of a wake-up.
func wakeFor(due time.Time) string {
	return string(record.Encode(sweep.Wake{Version: 1, Kind: "wake", Due: due}))
}

var errThrottled = fmt.Errorf("%w: throttled", ledger.ErrUnavailable)

// touches tells whether a commit writes an item of the partition.
func touches(ws []ledger.Write, prefix string) bool {
	return slices.ContainsFunc(ws, func(w ledger.Write) bool { return strings.HasPrefix(w.Item.PK, prefix) })
}

var errLost = errors.New("lost")
