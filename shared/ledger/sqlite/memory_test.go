package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Whichever way an item is read, no read goes back behind an earlier one.
func TestMemoryNeverGoesBack(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	const keys, writes = 4, 150
	at := func(i int) ledger.Key { return ledger.Key{PK: "p", SK: fmt.Sprintf("%d", i)} }
	ways := map[string]func(ctx context.Context, i int) (int64, error){
		"get": func(ctx context.Context, i int) (int64, error) {
			it, err := db.Get(ctx, at(i))
			if errors.Is(err, ledger.ErrNotFound) {
				err = nil
			}
			return it.Version, err
		},
		"get many": func(ctx context.Context, i int) (int64, error) {
			found, err := db.GetMany(ctx, []ledger.Key{at(i), {PK: "p", SK: "none"}})
			return found[at(i)].Version, err
		},
		"query": func(ctx context.Context, i int) (int64, error) {
			p, err := db.Query(ctx, ledger.Query{PK: "p", From: at(i).SK, Limit: 1})
			if err != nil || len(p.Items) == 0 || p.Items[0].Key != at(i) {
				return 0, err
			}
			return p.Items[0].Version, nil
		},
		"feed": func(ctx context.Context, i int) (int64, error) {
			changes, _, err := db.Changes(ctx, "", 0, 0)
			var last int64
			for _, c := range changes {
				if c.Key == at(i) {
					last = c.Version
				}
			}
			return last, err
		},
	}
	done := make(chan struct{})
	var writers, readers sync.WaitGroup
	for i := range keys {
		writers.Go(func() {
			for v := range int64(writes) {
				w := simple("p", at(i).SK, fmt.Sprint(v), v)
				if err := db.Commit(t.Context(), w); err != nil {
					t.Error(err)
					return
				}
				if it, err := db.Get(t.Context(), at(i)); err != nil || it.Version != v+1 || string(it.Data) != fmt.Sprint(v) {
					t.Errorf("after the commit of version %d: got %d %q, %v", v+1, it.Version, it.Data, err)
				}
			}
		})
		readers.Go(func() {
			var seen int64
			for {
				for name, read := range ways {
					v, err := read(t.Context(), i)
					if err != nil || v < seen {
						t.Errorf("%s of key %d: version %d after %d, %v", name, i, v, seen, err)
						return
					}
					seen = v
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
}

// A read of the file that began before a commit must not hide it.
func TestMemoryKeepsNothingOld(t *testing.T) {
	t.Parallel()
	m := newMemory()
	k := ledger.Key{PK: "p", SK: "s"}
	old := ledger.Item{Key: k, Version: 1, Data: []byte("old")}
	_, _, turn := m.get([]ledger.Key{k})
	m.shut(map[ledger.Key]*entry{k: {}})
	m.keep([]ledger.Key{k}, map[ledger.Key]ledger.Item{k: old}, turn) // while the group is under way
	if _, ok, _ := m.get([]ledger.Key{k}); ok {
		t.Error("a key that is being written was answered")
	}
	m.open(map[ledger.Key]*entry{k: {item: ledger.Item{Key: k, Version: 2}, id: 7}})
	m.keep([]ledger.Key{k}, map[ledger.Key]ledger.Item{k: old}, turn) // and afterwards
	if items, ok, _ := m.get([]ledger.Key{k}); !ok || items[k].Version != 2 {
		t.Errorf("got %v, want version 2", items)
	}
	for i := range 3 { // forgotten meanwhile: what was read is too old to keep
		m.put(ledger.Key{PK: "fill", SK: fmt.Sprint(i)}, &entry{item: ledger.Item{Data: make([]byte, memoryBytes)}})
	}
	m.keep([]ledger.Key{k}, map[ledger.Key]ledger.Item{k: old}, turn)
	if _, ok, _ := m.get([]ledger.Key{k}); ok {
		t.Error("a read from before the key was forgotten was kept")
	}
}

// Items that go by the clock are never answered from memory.
func TestMemoryLeavesExpiryToTheFile(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	db := start(t, Options{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	k := ledger.Key{PK: "p", SK: "s"}
	for v := range int64(2) { // the second makes a lasting item an expiring one
		w := simple(k.PK, k.SK, "x", v)
		if v == 1 {
			w.Item.Expires = now.Add(time.Minute)
		}
		if err := db.Commit(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if it, err := db.Get(t.Context(), k); err != nil || it.Version != v+1 {
			t.Fatalf("version %d, %v", it.Version, err)
		}
	}
	mu.Lock()
	now = now.Add(2 * time.Minute)
	mu.Unlock()
	if _, err := db.Get(t.Context(), k); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("an expired item: %v", err)
	}
	if err := db.Commit(t.Context(), simple(k.PK, k.SK, "y", 0)); err != nil { // it is gone for writers too
		t.Error(err)
	}
}
