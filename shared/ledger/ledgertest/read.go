package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/opsplane/opsplane/shared/ledger"
)

func testInvalidReads(t *testing.T, b *bench) {
	for name, q := range map[string]ledger.Query{
		"no partition":   {},
		"unknown index":  {Index: "nope", PK: "p"},
		"negative limit": {PK: "p", Limit: -1},
		"big limit":      {PK: "p", Limit: ledger.MaxPage + 1},
		"bad After":      {PK: "p", After: "!"},
	} {
		if _, err := b.Query(t.Context(), q); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if _, err := b.GetMany(t.Context(), make([]ledger.Key, ledger.MaxWrites+1)); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("get of too many: got %v, want ErrInvalid", err)
	}
}

// same compares items; empty and absent data or index maps are the same.
func same(want, got ledger.Item) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

func testRoundTrip(t *testing.T, b *bench) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	now := b.now()
	items := []ledger.Item{
		{Key: key("p", "plain"), Data: []byte(`{"a":1}`)},
		{Key: key("p", "empty")},
		{Key: key("p", "binary"), Data: binary},
		{Key: key("ünï/côdé", "日本語 🙂\x00\x01\t'\"%_#"), Data: []byte("x")},
		{Key: key("p", "full"), Data: []byte("y"),
			Due: now.Add(1234 * time.Millisecond), Expires: now.Add(time.Hour),
			Index: map[ledger.Index]ledger.Key{ledger.List: key("l", "1"), ledger.Scope: key("s", "2"), ledger.Lookup: key("k", "é"), ledger.Live: key("v", "4")}},
		{Key: key("p", "one index"), Index: map[ledger.Index]ledger.Key{ledger.Lookup: key("k", "x")}},
		{Key: key("p", "long ago"), Due: time.UnixMilli(1).UTC()},
	}
	for _, it := range items {
		b.commit(t, ledger.Write{Item: it})
		it.Version = 1
		got, err := b.Get(t.Context(), it.Key)
		if err != nil {
			t.Fatalf("get %s: %v", it.Key, err)
		}
		if d := same(it, got); d != "" {
			t.Errorf("item %s (-want +got):\n%s", it.Key, d)
		}
		q, err := b.all(t.Context(), ledger.Query{PK: it.PK, From: it.SK, To: it.SK + "\x00"})
		if err != nil || len(q) != 1 {
			t.Fatalf("query %s: got %d items, %v", it.Key, len(q), err)
		}
		if d := same(it, q[0]); d != "" {
			t.Errorf("queried item %s (-want +got):\n%s", it.Key, d)
		}
	}
	// A put replaces all of an item.
	b.commit(t, put("p", "full", "z", 1))
	got, err := b.Get(t.Context(), key("p", "full"))
	if err != nil {
		t.Fatal(err)
	}
	if d := same(ledger.Item{Key: key("p", "full"), Version: 2, Data: []byte("z")}, got); d != "" {
		t.Errorf("replaced item (-want +got):\n%s", d)
	}
	// What a reader does to its copy is its own affair.
	got.Data[0] = '!'
	b.holds(t, "p", "full", 2, "z")
}

func testGetMany(t *testing.T, b *bench) {
	var keys []ledger.Key
	for i := range ledger.MaxWrites {
		k := key("p", fmt.Sprintf("%03d", i))
		keys = append(keys, k)
		if i%3 == 0 {
			b.commit(t, put(k.PK, k.SK, k.SK, 0))
		}
	}
	got, err := b.GetMany(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		if it, ok := got[k]; ok != (i%3 == 0) || ok && (string(it.Data) != k.SK || it.Key != k || it.Version != 1) {
			t.Errorf("%s: got %v %+v", k, ok, it)
		}
	}
	if none, err := b.GetMany(t.Context(), nil); err != nil || len(none) > 0 {
		t.Errorf("get of none: got %v, %v", none, err)
	}
	if twice, err := b.GetMany(t.Context(), []ledger.Key{keys[0], keys[0], keys[1]}); err != nil || len(twice) != 1 {
		t.Errorf("get of one key twice: got %v, %v", twice, err)
	}
}

func testOrder(t *testing.T, b *bench) {
	// Byte order of UTF-8: neither by locale nor by UTF-16.
	sks := []string{"!", "#", "0", "10", "9", "A", "B", "a", "a ", "a!", "aa", "b", "~", "é", "日", "\uffee", "🙂"}
	if !slices.IsSorted(sks) {
		t.Fatal("the test's keys are not in byte order")
	}
	var want []string
	for i := range sks {
		sk := sks[(i*5+3)%len(sks)]
		b.commit(t, put("p", sk, "", 0))
		b.commit(t, put("p2", sk, "", 0), put("o", sk, "", 0))
	}
	for _, sk := range sks {
		want = append(want, "p/"+sk)
	}
	b.finds(t, ledger.Query{PK: "p"}, want...)
	slices.Reverse(want)
	b.finds(t, ledger.Query{PK: "p", Reverse: true}, want...)
}

func testRanges(t *testing.T, b *bench) {
	sks := []string{"a", "b", "b#1", "b#2", "c", "d"}
	for _, sk := range sks {
		w := put("p", sk, "", 0)
		w.Item.Index = map[ledger.Index]ledger.Key{ledger.Scope: key("x", sk)}
		b.commit(t, w)
	}
	ends := []string{"", "0", "a", "b", "b#", "b#1", "b$", "bb", "d", "e"}
	for _, q := range []ledger.Query{{PK: "p"}, {PK: "x", Index: ledger.Scope}} {
		for _, q.From = range ends {
			for _, q.To = range ends {
				var want []string
				for _, sk := range sks {
					if sk >= q.From && (q.To == "" || sk < q.To) {
						want = append(want, "p/"+sk)
					}
				}
				for _, q.Limit = range []int{0, 2} {
					q.Reverse = false
					b.finds(t, q, want...)
					slices.Reverse(want)
					q.Reverse = true
					b.finds(t, q, want...)
					slices.Reverse(want)
				}
			}
		}
	}
	b.finds(t, ledger.Query{PK: "nobody"})
}

func testPaging(t *testing.T, b *bench) {
	const n = 25
	var want []string
	for i := range n {
		b.commit(t, put("p", fmt.Sprintf("%02d", i), "", 0))
		want = append(want, fmt.Sprintf("p/%02d", i))
	}
	for _, limit := range []int{1, 2, 7, n - 1, n, n + 1, 0} {
		b.finds(t, ledger.Query{PK: "p", Limit: limit}, want...)
		b.finds(t, ledger.Query{PK: "p", Limit: limit, From: "03", To: "20"}, want[3:20]...)
		slices.Reverse(want)
		b.finds(t, ledger.Query{PK: "p", Limit: limit, Reverse: true}, want...)
		slices.Reverse(want)
	}
	// The item that a page ended at may be gone when the next one is read.
	page := b.first(t, ledger.Query{PK: "p", Limit: 5})
	if page.Next == "" {
		t.Fatalf("first page of %d items has no Next", len(page.Items))
	}
	last := len(page.Items) - 1
	b.commit(t, del("p", page.Items[last].SK, 1))
	b.finds(t, ledger.Query{PK: "p", Limit: 5, After: page.Next}, want[last+1:]...)
}

func testPagingWhileOthersWrite(t *testing.T, b *bench) {
	const n = 60
	var want []string
	for i := range n {
		b.commit(t, put("p", fmt.Sprintf("%03d", i), "", 0))
		want = append(want, fmt.Sprintf("p/%03d", i))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for g := range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				at := fmt.Sprintf("%03d", (i*37)%n)
				for _, w := range []ledger.Write{
					put("p", fmt.Sprintf("%s-%d", at, g), "", ledger.AnyVersion),
					put("p", at, "again", ledger.AnyVersion),
					del("p", fmt.Sprintf("%s-%d", at, g), ledger.AnyVersion),
				} {
					if err := b.Commit(context.WithoutCancel(t.Context()), w); err != nil && !errors.Is(err, ledger.ErrConflict) && !errors.Is(err, ledger.ErrUnavailable) {
						t.Errorf("commit: %v", err)
						return
					}
				}
			}
		})
	}
	for i := range 10 {
		items, err := b.all(t.Context(), ledger.Query{PK: "p", Limit: 4, Reverse: i%2 == 1})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			slices.Reverse(items)
		}
		if !slices.IsSortedFunc(items, func(a, b ledger.Item) int { return strings.Compare(a.SK, b.SK) }) {
			t.Fatalf("out of order: %s", names(items))
		}
		items = slices.DeleteFunc(items, func(it ledger.Item) bool { return strings.Contains(it.SK, "-") })
		if got := names(items); got != strings.Join(want, " ") {
			t.Fatalf("items that stayed: got %s", got)
		}
	}
}
