package retention_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/verify"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// tap is a ledger that crashes at its n-th commit, and whose commits can be
// watched.
type tap struct {
	ledger.Ledger
	mu         sync.Mutex
	n, crashAt int
	before     func(ws []ledger.Write)
}

func (l *tap) Commit(ctx context.Context, ws ...ledger.Write) error {
	l.mu.Lock()
	l.n++
	crash := l.n == l.crashAt
	l.mu.Unlock()
	if crash {
		return ledger.ErrUnavailable
	}
	if l.before != nil {
		l.before(ws)
	}
	return l.Ledger.Commit(ctx, ws...)
}

type bench struct {
	t     *testing.T
	clock time.Time
	tap   *tap
	store *record.Store
	n     int
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, clock: t0}
	now := func() time.Time { return b.clock }
	db, err := sqlite.Open(context.Background(), sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db"), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	b.tap = &tap{Ledger: db}
	b.store = &record.Store{Ledger: b.tap, Now: now, Timing: operation.OneMachine}
	return b
}

func (b *bench) no(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// make makes an operation on resources of its own.
func (b *bench) make(resources int) string {
	b.t.Helper()
	b.n++
	spec := operation.Spec{ID: id.Derive(id.Operation, fmt.Sprint(b.n)), Request: operation.Request{Type: "node.cordon"}, CreatedAt: b.clock,
		Steps: []operation.PlanStep{{ID: "stp_1", Name: "cordon", Required: true}}}
	for i := range resources {
		spec.Resources = append(spec.Resources, fmt.Sprint("nod_", b.n, "_", i))
	}
	spec.Locks = []operation.Lock{{Resource: spec.Resources[0], Mode: operation.Exclusive}}
	s, entries, err := operation.Admit(&spec, b.clock.Add(time.Hour))
	b.no(err)
	op := operation.Operation{Spec: spec, State: s}
	locks, _, err := b.store.AcquireLocks(context.Background(), &spec, b.clock)
	b.no(err)
	writes := append(b.store.CreateWrites(&op, entries), locks...)
	for len(writes) > 0 { // more resources than a real one has
		n := min(len(writes), ledger.MaxWrites)
		b.no(b.store.Ledger.Commit(context.Background(), writes[:n]...))
		writes = writes[n:]
	}
	return spec.ID
}

func (b *bench) apply(op string, c operation.Change) {
	b.t.Helper()
	_, err := b.store.Update(context.Background(), op, func(*operation.Operation) (operation.Change, []ledger.Write, error) { return c, nil, nil })
	b.no(err)
}

func (b *bench) there(op string) bool {
	b.t.Helper()
	_, err := b.store.Load(context.Background(), op)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		b.t.Fatal(err)
	}
	return err == nil
}

var failed = operation.CannotStart{Cause: operation.Cause{ErrorCode: "x", Detail: "d"}, Retryable: true}

func (b *bench) pass() int {
	b.t.Helper()
	n, err := retention.Pass(context.Background(), b.store, retention.Policy{Operations: 30 * day, Events: 90 * day})
	b.no(err)
	return n
}

func TestOnlyWhatEndedLongAgo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old, live, late := b.make(2), b.make(1), b.make(1)
	b.apply(old, failed)
	b.clock = t0.Add(20 * day)
	b.apply(late, failed) // made long ago, ended lately
	b.clock = t0.Add(31 * day)
	young := b.make(1)
	if n := b.pass(); n != 1 || b.there(old) || !b.there(live) || !b.there(late) || !b.there(young) {
		t.Errorf("%d deleted: old %v, live %v, late %v, young %v", n, b.there(old), b.there(live), b.there(late), b.there(young))
	}
	begins, err := b.store.HistoryBegins(context.Background())
	if err != nil || !begins.Equal(t0.Add(day)) {
		t.Errorf("history begins %v, %v", begins, err)
	}
	if b.pass() != 0 {
		t.Error("deleted twice")
	}
	b.clock = t0.Add(51 * day)
	if n := b.pass(); n != 1 || b.there(late) {
		t.Errorf("%d deleted", n)
	}
	// Nothing of it is left: no part, no reference.
	for _, pk := range []string{record.OperationPK(old), record.ResourcePK("nod_1_1")} {
		p, err := b.store.Ledger.Query(context.Background(), ledger.Query{PK: pk})
		if err != nil || len(p.Items) != 0 {
			t.Errorf("%s: %d items are left, %v", pk, len(p.Items), err)
		}
	}
}

// TestCutShort: wherever the deletion of a large operation breaks off, the next
// pass finishes it, and how far it was published stays until the end.
func TestCutShort(t *testing.T) {
	t.Parallel()
	for crashAt := 1; crashAt <= 6; crashAt++ {
		b := setup(t)
		op := b.make(250)
		b.no(b.store.Ledger.Commit(context.Background(), record.PublishedWrite(op, record.Published{Seq: 2})))
		b.apply(op, failed)
		b.clock = t0.Add(31 * day)
		b.tap.n, b.tap.crashAt = 0, crashAt
		_, err := retention.Pass(context.Background(), b.store, retention.Policy{Operations: 30 * day, Events: 90 * day})
		if err == nil && b.there(op) {
			t.Fatalf("crash at %d: neither done nor told", crashAt)
		}
		if b.there(op) {
			_, pubs, err := b.store.Glances(context.Background(), []string{op})
			b.no(err)
			if pubs[op].Seq != 2 {
				t.Errorf("crash at %d: relay would publish it again", crashAt)
			}
		}
		b.pass()
		if b.there(op) {
			t.Errorf("crash at %d: it is still there", crashAt)
		}
	}
}

// TestEventsDoNotWaitForOperations: a pass that runs out of time among more old
// operations than it can delete has trimmed the streams all the same.
func TestEventsDoNotWaitForOperations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	e, err := event.New("node.ready", "", event.Subject{Kind: "node", ID: "nod_1"}, b.clock, operation.Plane, nil, "x")
	b.no(err)
	_, err = event.Append(ctx, b.store.Ledger, event.PlaneStream, []event.Event{e}, nil)
	b.no(err)
	op := b.make(1)
	b.apply(op, failed)
	b.clock = t0.Add(100 * day)
	b.tap.before = func(ws []ledger.Write) {
		if strings.HasPrefix(ws[0].Item.PK, record.OperationPK("")) {
			cancel() // time runs out
		}
	}
	policy := retention.Policy{Operations: 30 * day, Events: 90 * day}
	if _, err := retention.Pass(ctx, b.store, policy); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if head, _, err := event.LoadHead(context.Background(), b.store.Ledger, event.PlaneStream); err != nil || head.Low != 2 || !b.there(op) {
		t.Errorf("head %+v, %v, the operation is there: %v", head, err, b.there(op))
	}
}

// TestRetriedMeanwhile: an operation that is run again while it is being deleted,
// in one commit or in several, keeps its history.
func TestRetriedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, resources := range []int{3, 120} {
		b := setup(t)
		op := b.make(resources)
		b.apply(op, failed)
		b.clock = t0.Add(31 * day)
		once := sync.OnceFunc(func() { b.apply(op, operation.Retry{Deadline: b.clock.Add(time.Hour)}) })
		b.tap.before = func(ws []ledger.Write) {
			if ws[0].Item.Key == record.StateKey(op) && ws[0].Kind != ledger.Put {
				once()
			}
		}
		if n := b.pass(); n != 0 {
			t.Errorf("%d resources: %d deleted", resources, n)
		}
		o, err := b.store.Load(context.Background(), op)
		b.no(err)
		entries, err := b.store.Journal(context.Background(), op, 1, 0)
		b.no(err)
		if err := operation.VerifyChain(entries, o.State.Journal); err != nil || o.State.Phase != operation.Pending {
			t.Errorf("%d resources: %s: %v", resources, o.State.Phase, err)
		}
		refs, err := b.store.Ledger.Query(context.Background(), ledger.Query{PK: record.ResourcePK(o.Spec.Resources[resources-1])})
		if err != nil || len(refs.Items) == 0 {
			t.Errorf("%d resources: the last of them does not tell of it: %v", resources, err)
		}
	}
}

// TestVerifyFinds: the walk that proves a ledger sound finds each kind of fault.
func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	put := func(b *bench, k ledger.Key, v any) {
		b.no(b.store.Ledger.Commit(ctx, ledger.Write{Item: ledger.Item{Key: k, Data: record.Encode(v)}, Expect: ledger.AnyVersion}))
	}
	for want, harm := range map[string]func(b *bench, op string){
		"":                      func(b *bench, op string) {},
		"does not hold nod_1_0": func(b *bench, op string) { put(b, record.LockKey("nod_1_0"), operation.LockState{}) },
		"still holds nod_1_0": func(b *bench, op string) {
			b.apply(op, failed)
			put(b, record.LockKey("nod_1_0"), operation.LockState{Holders: []operation.Holder{{Operation: op}}})
		},
		"past its deadline": func(b *bench, op string) { b.clock = b.clock.Add(2 * time.Hour) },
		"hash does not match": func(b *bench, op string) {
			o, err := b.store.Load(ctx, op)
			b.no(err)
			o.State.Tail = slices.Clone(o.State.Tail)
			o.State.Tail[0].Reason = "forged"
			b.no(b.store.Ledger.Commit(ctx, ledger.Write{Item: b.store.StateItem(&o.State), Expect: ledger.AnyVersion}))
		},
		"without a result": func(b *bench, op string) {
			b.apply(op, failed)
			o, err := b.store.Load(ctx, op)
			b.no(err)
			o.State.Result = nil
			it := b.store.StateItem(&o.State)
			b.no(b.store.Ledger.Commit(ctx, ledger.Write{Item: it, Expect: ledger.AnyVersion}))
		},
		"is not in its stream": func(b *bench, op string) {
			b.no(b.store.Ledger.Commit(ctx, record.PublishedWrite(op, record.Published{Seq: 1})))
		},
		"is there twice": func(b *bench, op string) {
			e, err := event.New("node.ready", "", event.Subject{Kind: "node", ID: "nod_1"}, b.clock, operation.Plane, nil, "x")
			b.no(err)
			_, err = event.Append(ctx, b.store.Ledger, event.PlaneStream, []event.Event{e, e}, nil)
			b.no(err)
		},
		"cannot be read": func(b *bench, op string) {
			put(b, record.StreamHeadKey(event.PlaneStream), json.RawMessage(`{"next":5,"low":1}`))
		},
	} {
		b := setup(t)
		harm(b, b.make(1))
		r, err := verify.Run(ctx, b.store, b.clock, time.Minute)
		b.no(err)
		found := strings.Join(r.Problems, "; ")
		if want == "" && r.Count != 0 || want != "" && !strings.Contains(found, want) {
			t.Errorf("%q: found %d: %s", want, r.Count, found)
		}
	}
}
