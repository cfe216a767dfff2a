package export

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/registry"
	"github.com/opsplane/opsplane/shared/relay"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func still() time.Time { return t0 }

// openDB opens an empty ledger whose clock stands still.
func openDB(t testing.TB) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(context.Background(), sqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Now: still, Logger: slog.New(slog.DiscardHandler)})
	no(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func no(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// queues keeps the names of queues that were made, and drops what is sent.
type queues struct {
	queue.Queue
	mu   sync.Mutex
	made map[string]bool
}

func (q *queues) Ensure(_ context.Context, name string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.made == nil {
		q.made = map[string]bool{}
	}
	q.made[name] = true
	return nil
}

func (*queues) Send(context.Context, string, ...queue.Outgoing) error { return nil }

// site is a one-machine ledger with a bit of everything.
type site struct {
	db      *sqlite.DB
	store   *record.Store
	cluster string
	bearer  string // of an administrator
	// Operations: ended, live on the cluster, live in the plane, and one that
	// ended with a journal that is not yet in its stream.
	ended, live, plan, behind string
}

var caller = admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "tok_alice", Kind: "token"}, Force: true}, Method: "POST", Path: "/v1/operations"}

func newSite(t testing.TB) *site {
	t.Helper()
	ctx := context.Background()
	s := &site{db: openDB(t)}
	log := slog.New(slog.DiscardHandler)
	s.store = &record.Store{Ledger: s.db, Now: still, Timing: operation.OneMachine}
	tokens, q := auth.NewStore(s.db, still), &queues{}
	reg := &registry.Service{Store: s.store, Tokens: tokens, Queues: q}
	rel := &relay.Relay{Store: s.store, Queue: q, Bus: &busLog{}, Logger: log}
	api := &agentapi.Service{Store: s.store, Queue: q, Logger: log}
	adm := &admission.Service{Store: s.store}

	made, err := reg.Create(ctx, caller, "alpha")
	no(t, err)
	s.cluster = made.Cluster.ID
	_, s.bearer, err = tokens.Create(ctx, auth.TokenSpec{Name: "admin", Role: auth.Admin})
	no(t, err)
	_, err = tokens.Authenticate(ctx, s.bearer) // leaves a mark of its use
	no(t, err)
	_, err = api.Heartbeat(ctx, s.cluster, protocol.Heartbeat{Name: "a0", Boot: "b0"})
	no(t, err)
	var inv protocol.Inventory
	for i := range 5 {
		inv.Nodes = append(inv.Nodes, protocol.Node{UID: fmt.Sprint("uid-n", i), Name: fmt.Sprint("n", i), Revision: 1, Schedulable: true})
	}
	objects, _ := fleet.Objects(s.cluster, &inv, t0)
	ws, err := s.store.MergeObjects(ctx, objects)
	no(t, err)
	no(t, s.db.Commit(ctx, ws...))
	admit := func(fields map[string]any) string {
		c := caller
		c.IdempotencyKey = fmt.Sprint(fields["target"])
		a, err := adm.Admit(ctx, c, record.Encode(fields))
		no(t, err)
		return a.Operation.Spec.ID
	}
	cordon := func(node string) map[string]any {
		return map[string]any{"type": "node.cordon", "target": "node:" + node, "reason": "a reason"}
	}
	s.ended, s.live, s.behind = admit(cordon("n0")), admit(cordon("n1")), admit(cordon("n2"))
	s.plan = admit(map[string]any{"type": "plan", "target": "fleet", "reason": "all of it",
		"payload": map[string]any{"max_in_flight": 1, "children": []any{cordon("n3"), cordon("n4")}}})
	ctl := &control.Service{Store: s.store}
	end := func(op string) {
		_, _, err := ctl.Cancel(ctx, caller, op, control.CancelInput{Reason: "no more"})
		no(t, err)
	}
	end(s.ended)
	no(t, rel.Publish(ctx, []string{s.ended, s.live, s.plan, s.behind}))
	no(t, rel.PublishBus(ctx, s.cluster))
	end(s.behind)
	no(t, s.store.SavePosition(ctx, "publish", "17"))
	no(t, s.db.Commit(ctx, record.AuditWrite(record.Audit{At: t0, Action: "x"}),
		ledger.Write{Item: record.DeadLetterItem(record.DeadLetter{ID: "dl_1", At: t0, Body: "\x00 bad"})},
		ledger.Write{Item: ledger.Item{Key: record.PreviewKey("prv_1"), Data: []byte("{}")}}))
	return s
}

// export writes the site's stream.
func (s *site) export(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	_, err := Write(context.Background(), s.db, Source{Engine: "sqlite", Version: "test", Name: "site"}, t0, &b)
	no(t, err)
	return b.Bytes()
}

// busLog keeps what was put on the bus.
type busLog struct{ ids []string }

func (b *busLog) Publish(_ context.Context, ms ...bus.Message) error {
	for _, m := range ms {
		b.ids = append(b.ids, m.ID)
	}
	return nil
}

// target is where tests import to.
func target(db *sqlite.DB, l ledger.Ledger, q *queues) Target {
	return Target{Ledger: l, Now: still, Queues: q, Occupied: func(ctx context.Context) (ledger.Key, bool, error) {
		p, err := db.Scan(ctx, "", 1)
		if err != nil || len(p.Items) == 0 {
			return ledger.Key{}, false, err
		}
		return p.Items[0].Key, true, nil
	}}
}

// all reads a whole ledger; what is not moved is left out when moved is set.
func all(t testing.TB, db *sqlite.DB, moved bool) map[ledger.Key]ledger.Item {
	t.Helper()
	out := map[ledger.Key]ledger.Item{}
	no(t, scan(context.Background(), db, func(items []ledger.Item) error {
		for _, it := range items {
			if !moved || moves(it.Key) {
				out[it.Key] = it
			}
		}
		return nil
	}))
	return out
}

// differences tells how two ledgers differ in what is moved.
func differences(t testing.TB, from, to *sqlite.DB) []string {
	t.Helper()
	a, b := all(t, from, true), all(t, to, true)
	var out []string
	for k, want := range a {
		if have, ok := b[k]; !ok {
			out = append(out, k.String()+" is missing")
		} else if !same(want, have) {
			out = append(out, k.String()+" differs")
		}
	}
	for k := range maps.Keys(b) {
		if _, ok := a[k]; !ok {
			out = append(out, k.String()+" is new")
		}
	}
	return out
}
