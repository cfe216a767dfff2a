package ledgertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func indexed(pk, sk string, expect int64, index map[ledger.Index]ledger.Key) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: key(pk, sk), Data: []byte(sk), Index: index}, Expect: expect}
}

func testIndexSparseMoveDelete(t *testing.T, b *bench) {
	for _, x := range ledger.Indexes {
		p := string(x)
		in := func(pk, sk string) map[ledger.Index]ledger.Key { return map[ledger.Index]ledger.Key{x: key(pk, sk)} }
		one, two := ledger.Query{Index: x, PK: "one"}, ledger.Query{Index: x, PK: "two"}
		b.commit(t, indexed(p, "a", 0, in("one", "1")), indexed(p, "b", 0, in("one", "2")), indexed(p, "c", 0, nil))
		b.finds(t, one, p+"/a", p+"/b")
		for _, other := range ledger.Indexes {
			if other != x {
				b.finds(t, ledger.Query{Index: other, PK: "one"})
			}
		}
		b.commit(t, indexed(p, "c", 1, in("one", "0"))) // comes in
		b.finds(t, one, p+"/c", p+"/a", p+"/b")
		b.commit(t, indexed(p, "a", 1, in("one", "3"))) // moves within
		b.finds(t, one, p+"/c", p+"/b", p+"/a")
		b.commit(t, indexed(p, "b", 1, in("two", "1"))) // moves away
		b.finds(t, one, p+"/c", p+"/a")
		b.finds(t, two, p+"/b")
		b.commit(t, indexed(p, "a", 2, nil)) // goes out
		b.finds(t, one, p+"/c")
		b.holds(t, p, "a", 3, "a")
		b.commit(t, del(p, "c", 2), del(p, "b", 2)) // is deleted
		b.finds(t, one)
		b.finds(t, two)
	}
	// Items in an index are whole, and may be in several.
	w := indexed("whole", "x", 0, map[ledger.Index]ledger.Key{ledger.List: key("both", "1"), ledger.Live: key("both", "2")})
	w.Item.Due, w.Item.Expires = b.now().Add(time.Minute), b.now().Add(time.Hour)
	b.commit(t, w)
	w.Item.Version = 1
	for _, x := range []ledger.Index{ledger.List, ledger.Live} {
		b.finds(t, ledger.Query{Index: x, PK: "both"}, "whole/x")
		page := b.first(t, ledger.Query{Index: x, PK: "both"})
		if d := same(w.Item, page.Items[0]); d != "" {
			t.Errorf("item in index %s (-want +got):\n%s", x, d)
		}
	}
}

func testIndexOrder(t *testing.T, b *bench) {
	// By the index's sort key, then by the item's own key.
	want := []string{"b/1", "a/1", "a/2", "b/0", "c/9"}
	for i, sk := range map[string]string{"b/1": "0", "a/1": "1", "a/2": "1", "b/0": "1", "c/9": "2"} {
		b.commit(t, indexed(i[:1], i[2:], 0, map[ledger.Index]ledger.Key{ledger.List: key("l", sk)}))
	}
	for limit := range 6 {
		b.finds(t, ledger.Query{Index: ledger.List, PK: "l", Limit: limit}, want...)
		b.finds(t, ledger.Query{Index: ledger.List, PK: "l", Limit: limit, From: "1", To: "2"}, want[1:4]...)
		slices.Reverse(want)
		b.finds(t, ledger.Query{Index: ledger.List, PK: "l", Limit: limit, Reverse: true}, want...)
		b.finds(t, ledger.Query{Index: ledger.List, PK: "l", Limit: limit, Reverse: true, From: "1", To: "2"}, want[1:4]...)
		slices.Reverse(want)
	}
}

func testIndexPaging(t *testing.T, b *bench) {
	var want []string
	for i := range 23 {
		sk := fmt.Sprintf("%02d", i)
		b.commit(t, indexed("p"+fmt.Sprint(i%3), sk, 0, map[ledger.Index]ledger.Key{ledger.Scope: key("s", sk)}))
		want = append(want, "p"+fmt.Sprint(i%3)+"/"+sk)
	}
	q := ledger.Query{Index: ledger.Scope, PK: "s", Limit: 5}
	b.finds(t, q, want...)
	page := b.first(t, q)
	if page.Next == "" {
		t.Fatalf("first page of %d items has no Next", len(page.Items))
	}
	last := page.Items[len(page.Items)-1]
	b.commit(t, del(last.PK, last.SK, 1))
	q.After = page.Next
	b.finds(t, q, want[len(page.Items):]...)
}

func dueItem(pk, sk string, expect int64, due time.Time) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: key(pk, sk), Due: due}, Expect: expect}
}

// isDue requires Due to return these keys in this order, within the lag.
func (b *bench) isDue(t *testing.T, until time.Time, limit int, want string) {
	t.Helper()
	b.comes(t, false, want, func() string {
		items, err := b.Due(t.Context(), until, limit)
		if err != nil {
			t.Fatalf("due: %v", err)
		}
		return names(items)
	})
}

// isDueFrom is as isDue, for what is due from a time on.
func (b *bench) isDueFrom(t *testing.T, from, until time.Time, limit int, want string) {
	t.Helper()
	pager, ok := b.Ledger.(ledger.DuePager)
	if !ok {
		t.Fatal("the engine does not read on behind what is due")
	}
	b.comes(t, false, want, func() string {
		items, err := pager.DueFrom(t.Context(), from, until, limit)
		if err != nil {
			t.Fatalf("due: %v", err)
		}
		return names(items)
	})
}

func testDue(t *testing.T, b *bench) {
	at := b.now().Truncate(time.Millisecond)
	b.commit(t, dueItem("p", "3", 0, at.Add(3*time.Millisecond)), dueItem("q", "1", 0, at.Add(time.Millisecond)), dueItem("p", "never", 0, time.Time{}))
	b.commit(t, dueItem("r", "2", 0, at.Add(2*time.Millisecond)), dueItem("p", "later", 0, at.Add(time.Hour)))
	b.isDue(t, at, 10, "")
	b.isDue(t, at.Add(time.Millisecond), 10, "q/1") // not after: included
	b.isDue(t, at.Add(2*time.Millisecond), 10, "q/1 r/2")
	b.isDue(t, at.Add(time.Minute), 10, "q/1 r/2 p/3")
	b.isDue(t, at.Add(time.Minute), 2, "q/1 r/2")
	b.isDue(t, at.Add(2*time.Hour), 0, "q/1 r/2 p/3 p/later")
	b.isDueFrom(t, at, at.Add(time.Minute), 2, "q/1 r/2")
	b.isDueFrom(t, at.Add(2*time.Millisecond), at.Add(time.Minute), 10, "r/2 p/3") // not before: included
	b.isDueFrom(t, at.Add(3*time.Millisecond), at.Add(2*time.Hour), 1, "p/3")
	b.isDueFrom(t, at.Add(4*time.Millisecond), at.Add(time.Minute), 10, "")

	b.commit(t, dueItem("q", "1", 1, at.Add(2*time.Hour)))                       // moves
	b.commit(t, dueItem("r", "2", 1, time.Time{}), dueItem("p", "never", 1, at)) // goes out, comes in
	b.commit(t, del("p", "3", 1))
	b.isDue(t, at.Add(3*time.Hour), 10, "p/never p/later q/1")
}

func testExpiry(t *testing.T, b *bench) {
	at := b.now()
	in := map[ledger.Index]ledger.Key{ledger.List: key("l", "1")}
	expiring := func(sk string, d time.Duration) ledger.Write {
		w := indexed("p", sk, 0, in)
		w.Item.Due, w.Item.Expires = at.Add(d), at.Add(d)
		return w
	}
	b.commit(t, expiring("a", 10*time.Second), expiring("b", 20*time.Second), indexed("p", "c", 0, in))
	list := ledger.Query{Index: ledger.List, PK: "l"}
	b.advance(9 * time.Second)
	b.finds(t, ledger.Query{PK: "p"}, "p/a", "p/b", "p/c")
	b.finds(t, list, "p/a", "p/b", "p/c")
	b.isDue(t, at.Add(time.Minute), 10, "p/a p/b")

	b.advance(2 * time.Second)
	b.lacks(t, "p", "a")
	b.finds(t, ledger.Query{PK: "p"}, "p/b", "p/c")
	b.finds(t, ledger.Query{PK: "p", Reverse: true, Limit: 1}, "p/c", "p/b")
	b.finds(t, list, "p/b", "p/c")
	b.isDue(t, at.Add(time.Minute), 10, "p/b")
	got, err := b.GetMany(t.Context(), []ledger.Key{key("p", "a"), key("p", "b")})
	if err != nil || len(got) != 1 || got[key("p", "b")].Version != 1 {
		t.Fatalf("get many: got %v, %v", got, err)
	}

	b.commit(t, indexed("p", "b", 1, in)) // is kept after all
	b.advance(time.Hour)
	b.finds(t, list, "p/b", "p/c")
}

func testExpiryInConditions(t *testing.T, b *bench) {
	expiring := func(sk string, expect int64) ledger.Write {
		w := put("p", sk, "old", expect)
		w.Item.Expires = b.now().Add(10 * time.Second)
		return w
	}
	for _, sk := range []string{"a", "b", "c", "d", "e"} {
		b.commit(t, expiring(sk, 0))
		b.commit(t, expiring(sk, 1))
	}
	b.advance(11 * time.Second)
	b.conflicts(t, []ledger.Key{key("p", "a"), key("p", "b"), key("p", "c")}, put("p", "a", "", 2), del("p", "b", 2), check("p", "c", 2))
	b.commit(t, put("p", "a", "new", 0), check("p", "b", 0), del("p", "c", 0), put("p", "d", "new", ledger.AnyVersion), del("p", "e", ledger.AnyVersion))
	b.holds(t, "p", "a", 1, "new")
	b.holds(t, "p", "d", 1, "new")
	b.finds(t, ledger.Query{PK: "p"}, "p/a", "p/d")
}
