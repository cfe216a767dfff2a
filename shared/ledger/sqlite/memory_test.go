package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// An item that expired may lie in the file for a while: to have read that there
// is none is not to know that there is no row. Every way of writing over it goes
// well, and so do the commits of its group, before and after the janitor.
func TestMemoryOfAnExpiredRow(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "ledger.db")
	db := start(t, Options{Path: path, Now: func() time.Time { return at }})
	names := []string{"put", "put again", "delete", "check", "get many"}
	for _, name := range names {
		w := simple("p", name, "x", 0)
		w.Item.Expires = at.Add(time.Minute)
		if err := db.Commit(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	// Another process finds them expired, and its janitor has not run.
	db = start(t, Options{Path: path, Now: func() time.Time { return at.Add(time.Hour) }, JanitorEvery: time.Hour})
	for _, name := range names {
		if _, err := db.Get(t.Context(), ledger.Key{PK: "p", SK: name}); !errors.Is(err, ledger.ErrNotFound) {
			t.Fatalf("%s: %v", name, err)
		}
		if v, ok := db.KnownVersion(ledger.Key{PK: "p", SK: name}); ok && v != 0 {
			t.Errorf("%s is known with version %d", name, v)
		}
	}
	check, remove := simple("p", "check", "", 0), simple("p", "delete", "", 0)
	check.Kind, remove.Kind = ledger.Check, ledger.Delete
	for _, ws := range [][]ledger.Write{
		{simple("p", "put", "y", 0), simple("q", "beside it", "y", 0)},
		{simple("p", "put again", "y", ledger.AnyVersion)},
		{remove}, {check, simple("p", "delete", "y", 0)},
		{simple("p", "get many", "y", 0), simple("p", "check", "y", 0)},
	} {
		if err := db.Commit(t.Context(), ws...); err != nil {
			t.Errorf("commit of %s: %v", ws[0].Item.Key, err)
		}
	}
	if err := db.clean(t.Context()); err != nil {
		t.Error(err)
	}
	for _, name := range names {
		it, err := db.Get(t.Context(), ledger.Key{PK: "p", SK: name})
		if err != nil || it.Version != 1 || string(it.Data) != "y" {
			t.Errorf("%s: version %d %q, %v", name, it.Version, it.Data, err)
		}
	}
}

// Memory that turns over within one call forgets, and neither denies an item nor
// brings an old one back.
func TestMemoryTurnsOverWithinACall(t *testing.T) {
	t.Parallel()
	const half = memoryBytes / 2
	of := func(name string, version int64, bytes int) ledger.Item {
		return ledger.Item{Key: ledger.Key{PK: "p", SK: name}, Version: version, Data: make([]byte, bytes)}
	}
	t.Run("keep", func(t *testing.T) {
		m := newMemory()
		last := of("last", 1, 1)
		found := map[ledger.Key]ledger.Item{last.Key: last}
		var ks []ledger.Key
		for i := range 3 {
			it := of(fmt.Sprint(i), 1, half)
			found[it.Key] = it
			ks = append(ks, it.Key)
		}
		ks = append(ks, last.Key)
		_, _, turn := m.get(ks)
		newer := last
		newer.Version = 2
		m.open(map[ledger.Key]*entry{last.Key: {item: newer, id: 1}}) // since the read began
		m.keep(ks, found, turn)
		if v, ok := m.version(last.Key); ok && v != 2 {
			t.Errorf("version %d is remembered, 2 was written", v)
		}
	})
	t.Run("get", func(t *testing.T) {
		m := newMemory()
		var all []ledger.Key
		put := func(name string, bytes int) {
			it := of(name, 1, bytes)
			m.put(it.Key, &entry{item: it, id: 1})
			all = append(all, it.Key)
		}
		put("older", half/16)
		put("fill", half)
		put("turn", 1) // they are of the older generation now
		all = all[:0]
		for i := 0; m.bytes < half; i++ { // a whole generation of which each is asked for
			put(fmt.Sprint(i), half/64)
		}
		all = append(all, of("older", 1, 0).Key)
		found, ok, _ := m.get(all)
		if ok && len(found) != len(all) {
			t.Errorf("%d of %d items exist", len(found), len(all))
		}
	})
}
