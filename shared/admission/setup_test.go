package admission_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// tap is a ledger that counts commits and can refuse the next one.
type tap struct {
	ledger.Ledger
	commits atomic.Int64
	fail    atomic.Pointer[error]
}

func (l *tap) Commit(ctx context.Context, ws ...ledger.Write) error {
	if err := l.fail.Swap(nil); err != nil {
		return *err
	}
	err := l.Ledger.Commit(ctx, ws...)
	if err == nil {
		l.commits.Add(1)
	}
	return err
}

// bundle is an admission over a real ledger with three clusters: gpu-node-1 is
// in all of them, the others only in alpha.
type bundle struct {
	t     testing.TB
	tap   *tap
	store *record.Store
	svc   *admission.Service
	now   atomic.Pointer[time.Time]
	ids   map[string]string // by name: of clusters, and of "cluster/kind:name"
}

const gpu = "GPU-8f3c0000-0000-4000-8000-0000000000aa"

var longName = strings.Repeat("node.example.", 20)[:253]

func setup(t testing.TB) *bundle {
	t.Helper()
	b := &bundle{t: t, ids: map[string]string{}}
	b.now.Store(&t0)
	clock := func() time.Time { return *b.now.Load() }
	db, err := sqlite.Open(context.Background(), sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db"), Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	b.tap = &tap{Ledger: db}
	b.store = &record.Store{Ledger: b.tap, Now: clock, Timing: operation.OneMachine}
	b.svc = &admission.Service{Store: b.store}
	for _, name := range []string{"alpha", "beta", "gamma"} {
		c := fleet.Cluster{ID: id.New(id.Cluster, t0), Name: name, CreatedAt: t0}
		b.ids[name] = c.ID
		b.commit(ledger.Write{Item: record.ClusterItem(&c)}, ledger.Write{Item: ledger.Item{Key: record.ClusterNameKey(name), Data: record.Encode(record.ClusterName{Cluster: c.ID})}})
		inv := protocol.Inventory{Nodes: []protocol.Node{{UID: "uid-1-" + name, Name: "gpu-node-1", Revision: 7}}}
		if name == "alpha" {
			for _, n := range []string{"gpu-node-2", "GPU-Node-2", longName, "a.b.c"} {
				inv.Nodes = append(inv.Nodes, protocol.Node{UID: "uid-" + n, Name: n, Revision: 7})
			}
			inv.Devices = []protocol.Device{{UID: gpu, Aliases: []string{"0000:18:00.0", "gpu-node-2/0"}, NodeUID: "uid-gpu-node-2", NodeName: "gpu-node-2", Revision: 1}}
			inv.Deployments = []protocol.Deployment{{UID: "uid-web", Name: "default/web", Revision: 1}}
			inv.Components = []protocol.Component{{UID: "uid-op", Name: "operator", Version: "v1.0.0", Revision: 1}}
		}
		b.inventory(name, inv)
	}
	return b
}

func (b *bundle) commit(ws ...ledger.Write) {
	b.t.Helper()
	if err := b.store.Ledger.Commit(context.Background(), ws...); err != nil {
		b.t.Fatal(err)
	}
}

// inventory puts objects into a cluster.
func (b *bundle) inventory(cluster string, inv protocol.Inventory) {
	b.t.Helper()
	objects, refused := fleet.Objects(b.ids[cluster], &inv, t0)
	if len(refused) > 0 {
		b.t.Fatal(refused)
	}
	for chunk := range slices.Chunk(objects, 50) {
		ws, err := b.store.MergeObjects(context.Background(), chunk)
		if err != nil {
			b.t.Fatal(err)
		}
		b.commit(ws...)
	}
	for _, o := range objects {
		b.ids[cluster+"/"+o.Kind+":"+o.Name] = o.ID
	}
}

func call() admission.Call {
	return admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "tok_alice", Kind: "token"}, Rule: "operator"},
		Method: "POST", Path: "/v1/operations", RequestID: "req_1", CorrelationID: "cor_1"}
}

// body makes a request; the fields replace or add to those of a cordon.
func body(fields map[string]any) []byte {
	m := map[string]any{"type": "node.cordon", "target": "node:gpu-node-2", "reason": "firmware"}
	for k, v := range fields {
		if v == nil {
			delete(m, k)
			continue
		}
		m[k] = v
	}
	return record.Encode(m)
}

func (b *bundle) admit(c admission.Call, raw []byte) (admission.Admitted, error) {
	return b.svc.Admit(context.Background(), c, raw)
}

func (b *bundle) must(fields map[string]any) operation.Operation {
	b.t.Helper()
	a, err := b.admit(call(), body(fields))
	if err != nil {
		b.t.Fatal(err)
	}
	return a.Operation
}

// refused returns the refusal that a request must meet.
func refused(t testing.TB, err error, code string) *operation.Refusal {
	t.Helper()
	var r *operation.Refusal
	if !errors.As(err, &r) {
		t.Fatalf("got %v, want a refusal %s", err, code)
	}
	if r.ErrorCode != code {
		t.Fatalf("got %s (%s), want %s", r.ErrorCode, r.Detail, code)
	}
	return r
}

// faults are a refusal's errors as "pointer code", sorted.
func faults(r *operation.Refusal) string {
	var out []string
	for _, e := range r.Errors {
		out = append(out, e.Pointer+" "+e.Code)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// atOnce runs f in n goroutines that start together.
func atOnce(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

func children(n int, mend func(i int, c map[string]any)) []any {
	out := make([]any, n)
	for i := range n {
		c := map[string]any{"type": "node.cordon", "target": fmt.Sprintf("node:n%d", i)}
		if mend != nil {
			mend(i, c)
		}
		out[i] = c
	}
	return out
}

// many puts n nodes n0, n1, ... into alpha.
func (b *bundle) many(n int) {
	b.t.Helper()
	var inv protocol.Inventory
	for i := range n {
		inv.Nodes = append(inv.Nodes, protocol.Node{UID: fmt.Sprintf("uid-n%d", i), Name: fmt.Sprintf("n%d", i), Revision: 1})
	}
	b.inventory("alpha", inv)
}

func decode[T any](t testing.TB, raw []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
