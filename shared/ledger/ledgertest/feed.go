package ledgertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func fedPut(pk, sk string, expect int64) ledger.Write {
	w := put(pk, sk, "", expect)
	w.Feed = true
	return w
}

func testFeedOrder(t *testing.T, b *bench) {
	const items, writes = 5, 6
	for v := range int64(writes) {
		for i := range items {
			b.commit(t, fedPut("p", fmt.Sprint(i), v), put("p", fmt.Sprintf("unfed%d-%d", i, v), "", 0))
		}
	}
	for i := range items {
		w := del("p", fmt.Sprint(i), writes)
		w.Feed = true
		b.commit(t, w)
	}
	// Records may repeat, and others may be among them; the first record of
	// each write comes, in the order of its item's writes.
	next := map[ledger.Key]int64{}
	gone := map[ledger.Key]bool{}
	seen := 0
	b.fed(t, "", func(all []ledger.Change) bool {
		for _, c := range all[seen:] {
			switch {
			case c.PK != "p" || len(c.SK) > 1:
			case c.Deleted:
				if next[c.Key] != writes {
					t.Fatalf("%s: deleted after version %d", c.Key, next[c.Key])
				}
				gone[c.Key] = true
			case c.Version == next[c.Key]+1:
				next[c.Key]++
			case c.Version > next[c.Key]:
				t.Fatalf("%s: version %d after %d", c.Key, c.Version, next[c.Key])
			}
		}
		seen = len(all)
		return len(gone) == items
	})
}

func testFeedPositions(t *testing.T, b *bench) {
	b.commit(t, fedPut("p", "a", 0))
	_, first := b.fed(t, "", saw(key("p", "a"), 1))
	b.commit(t, fedPut("p", "b", 0), fedPut("p", "a", 1))
	_, second := b.fed(t, first, func(all []ledger.Change) bool {
		return saw(key("p", "b"), 1)(all) && saw(key("p", "a"), 2)(all)
	})
	// A position may be read from again: nothing of what is behind it is lost.
	b.fed(t, first, func(all []ledger.Change) bool {
		return saw(key("p", "b"), 1)(all) && saw(key("p", "a"), 2)(all)
	})
	b.commit(t, fedPut("p", "c", 0))
	b.fed(t, second, saw(key("p", "c"), 1))
	b.fed(t, "", func(all []ledger.Change) bool {
		return saw(key("p", "a"), 1)(all) && saw(key("p", "b"), 1)(all) && saw(key("p", "c"), 1)(all)
	})
	// A limit of one gets on.
	position, found := "", false
	for range 100 {
		changes, next, err := b.Changes(t.Context(), position, 1, 100*time.Millisecond)
		if err != nil || len(changes) > 1 {
			t.Fatalf("limit 1: got %d records, %v", len(changes), err)
		}
		position, found = next, found || saw(key("p", "c"), 1)(changes)
		if found {
			break
		}
	}
	if !found {
		t.Error("reading one by one does not get to the end")
	}
}

func testFeedWait(t *testing.T, b *bench) {
	// Nothing there: it returns.
	changes, position, err := b.Changes(t.Context(), "", 10, 20*time.Millisecond)
	if err != nil || len(changes) > 0 {
		t.Fatalf("empty feed: got %v, %v", changes, err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond) // usually after the reader has begun to wait; either is right
		if err := b.Commit(t.Context(), fedPut("p", "s", 0)); err != nil {
			t.Errorf("commit: %v", err)
		}
	}()
	for deadline := time.Now().Add(lag); len(changes) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the wait saw nothing")
		}
		if changes, position, err = b.Changes(t.Context(), position, 10, lag); err != nil {
			t.Fatal(err)
		}
	}
	if !saw(key("p", "s"), 1)(changes) {
		t.Errorf("got %v", changes)
	}
}

func testFeedExpiry(t *testing.T, b *bench) {
	if b.ExpireFeed == nil {
		t.Skip("this engine's feed cannot be made to expire in a test")
	}
	b.commit(t, fedPut("p", "a", 0))
	_, old := b.fed(t, "", saw(key("p", "a"), 1))
	b.commit(t, fedPut("p", "b", 0))
	b.ExpireFeed(t)
	if _, _, err := b.Changes(t.Context(), old, 10, 0); !errors.Is(err, ledger.ErrPositionExpired) {
		t.Fatalf("got %v, want ErrPositionExpired", err)
	}
	_, oldest, err := b.Changes(t.Context(), "", 10, 0)
	if err != nil {
		t.Fatalf("from the oldest: %v", err)
	}
	b.commit(t, fedPut("p", "c", 0))
	b.fed(t, oldest, saw(key("p", "c"), 1))
	b.fed(t, "", saw(key("p", "c"), 1))
}

func testWatch(t *testing.T, b *bench) {
	w, ok := b.Ledger.(ledger.Watcher)
	if !ok {
		t.Skip("this engine has no watcher")
	}
	one, end := w.Watch("p")
	two, endTwo := w.Watch("p")
	defer endTwo()
	other, endOther := w.Watch("q")
	defer endOther()
	expect := func(what string, ch <-chan struct{}) {
		t.Helper()
		select {
		case <-ch:
		case <-time.After(lag):
			t.Fatalf("%s: no signal", what)
		}
	}
	silent := func(what string, ch <-chan struct{}) {
		t.Helper()
		select {
		case <-ch:
			t.Fatalf("%s: a signal", what)
		default:
		}
	}
	b.commit(t, put("p", "a", "", 0))
	expect("first", one)
	expect("second", two)
	silent("other partition", other)
	for v := range int64(5) {
		b.commit(t, put("p", "a", "", v+1), check("q", "a", 0)) // signals may fold
	}
	expect("folded", one)
	b.conflicts(t, []ledger.Key{key("q", "a")}, put("q", "a", "", 1))
	silent("checked and conflicted partition", other)
	end()
	b.commit(t, del("p", "a", 6), put("q", "a", "", 0))
	expect("delete", two)
	expect("other partition", other)
	end() // ending twice is harmless
}
