package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/ledger"
)

func testConditions(t *testing.T, b *bench) {
	b.commit(t, put("p", "there", "1", 0))
	b.commit(t, put("p", "there", "2", 1))
	there, gone := []ledger.Key{key("p", "there")}, []ledger.Key{key("p", "gone")}
	for _, kind := range []ledger.WriteKind{ledger.Put, ledger.Delete, ledger.Check} {
		for _, expect := range []int64{0, 1, 3} {
			b.conflicts(t, there, ledger.Write{Kind: kind, Item: ledger.Item{Key: there[0]}, Expect: expect})
		}
		b.conflicts(t, gone, ledger.Write{Kind: kind, Item: ledger.Item{Key: gone[0]}, Expect: 1})
	}
	b.holds(t, "p", "there", 2, "2")
	b.lacks(t, "p", "gone")

	b.commit(t, check("p", "there", 2), check("p", "gone", 0))
	b.holds(t, "p", "there", 2, "2") // a check does not count as a write
	b.commit(t, del("p", "gone", 0))
	b.commit(t, del("p", "there", 2))
	b.lacks(t, "p", "there")
	b.commit(t, check("p", "there", 0))
}

func testVersions(t *testing.T, b *bench) {
	for v := range int64(5) {
		w := put("p", "s", fmt.Sprint(v), v)
		w.Item.Version = 77 // ignored
		b.commit(t, w)
		b.holds(t, "p", "s", v+1, fmt.Sprint(v))
	}
	b.commit(t, del("p", "s", 5))
	b.commit(t, put("p", "s", "again", 0))
	b.holds(t, "p", "s", 1, "again")
}

func testAnyVersion(t *testing.T, b *bench) {
	b.commit(t, check("p", "s", ledger.AnyVersion), put("p", "other", "", 0))
	b.commit(t, del("p", "s", ledger.AnyVersion))
	b.commit(t, put("p", "s", "1", ledger.AnyVersion))
	b.holds(t, "p", "s", 1, "1")
	b.commit(t, put("p", "s", "2", ledger.AnyVersion))
	b.holds(t, "p", "s", 2, "2")
	b.commit(t, check("p", "s", ledger.AnyVersion), put("p", "other", "", 1))
	b.commit(t, del("p", "s", ledger.AnyVersion))
	b.lacks(t, "p", "s")
}

func testConflictWritesNothing(t *testing.T, b *bench) {
	b.commit(t, put("p", "049", "old", 0), put("q", "stays", "old", 0))
	var writes []ledger.Write
	for i := range ledger.MaxWrites - 1 {
		w := put("p", fmt.Sprintf("%03d", i), "new", 0)
		w.Item.Index = map[ledger.Index]ledger.Key{ledger.List: key("l", fmt.Sprintf("%03d", i))}
		w.Item.Due, w.Feed = b.now(), true
		writes = append(writes, w)
	}
	writes = append(writes, del("q", "stays", 1))
	b.conflicts(t, []ledger.Key{key("p", "049")}, writes...)
	b.finds(t, ledger.Query{PK: "p"}, "p/049")
	b.holds(t, "p", "049", 1, "old")
	b.holds(t, "q", "stays", 1, "old")
	b.finds(t, ledger.Query{Index: ledger.List, PK: "l"})
	if due, err := b.Due(t.Context(), b.now(), 0); err != nil || len(due) > 0 {
		t.Fatalf("due: got %s, %v, want nothing", names(due), err)
	}

	writes[49].Expect = 1
	b.commit(t, writes...)
	items, err := b.all(t.Context(), ledger.Query{PK: "p"})
	if err != nil || len(items) != ledger.MaxWrites-1 {
		t.Fatalf("got %d items, %v, want %d", len(items), err, ledger.MaxWrites-1)
	}
	b.holds(t, "p", "049", 2, "new")
	b.lacks(t, "q", "stays")
}

func testConflictNamesAll(t *testing.T, b *bench) {
	b.commit(t, put("p", "a", "", 0), put("p", "b", "", 0), put("p", "c", "", 0))
	b.conflicts(t, []ledger.Key{key("p", "a"), key("p", "c"), key("q", "d")},
		put("p", "a", "x", 0), put("p", "b", "x", 1), del("p", "c", 9), check("q", "d", 1), put("q", "e", "x", 0))
	b.holds(t, "p", "b", 1, "")
	b.lacks(t, "q", "e")
}

func testLimits(t *testing.T, b *bench) {
	indexed := func(x ledger.Index, k ledger.Key) ledger.Write {
		w := put("p", "s", "", 0)
		w.Item.Index = map[ledger.Index]ledger.Key{x: k}
		return w
	}
	many := make([]ledger.Write, ledger.MaxWrites+1)
	for i := range many {
		many[i] = put("p", fmt.Sprint(i), "", 0)
	}
	heavy := make([]ledger.Write, 10)
	for i := range heavy {
		heavy[i] = put("p", fmt.Sprint(i), strings.Repeat("x", ledger.MaxCommitBytes/9), 0)
	}
	long := strings.Repeat("k", ledger.MaxKeyBytes+1)
	for name, writes := range map[string][]ledger.Write{
		"empty":               {},
		"too many writes":     many,
		"too many bytes":      heavy,
		"too big an item":     {put("p", "s", strings.Repeat("x", ledger.MaxItemBytes+1), 0)},
		"no partition":        {put("", "s", "", 0)},
		"no sort key":         {put("p", "", "", 0)},
		"long partition":      {put(long, "s", "", 0)},
		"long sort key":       {put("p", long, "", 0)},
		"not UTF-8":           {put("p", "\xff", "", 0)},
		"one key twice":       {put("p", "s", "", 0), check("p", "s", 0)},
		"negative version":    {put("p", "s", "", -2)},
		"unknown kind":        {{Kind: 9, Item: ledger.Item{Key: key("p", "s")}}},
		"unknown index":       {indexed("nope", key("a", "b"))},
		"primary as index":    {indexed(ledger.Primary, key("a", "b"))},
		"empty index key":     {indexed(ledger.List, key("a", ""))},
		"no index key":        {indexed(ledger.List, ledger.Key{})},
		"long index key":      {indexed(ledger.Live, key("a", long))},
		"index key not UTF":   {indexed(ledger.Live, key("a", "\xc0"))},
		"index keys together": {indexed(ledger.Live, key("a", strings.Repeat("k", ledger.MaxIndexBytes-1)))},
		"index key of 0x00":   {indexed(ledger.Live, key("a", strings.Repeat("\x00", ledger.MaxIndexBytes/2)))},
	} {
		if err := b.Commit(t.Context(), writes...); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	b.finds(t, ledger.Query{PK: "p"})

	// At the limits.
	full := strings.Repeat("k", ledger.MaxKeyBytes)
	b.commit(t, put(full, full, "x", 0))
	b.holds(t, full, full, 1, "x")
	w := put("pk", "sk", "x", 0)
	w.Item.Index = map[ledger.Index]ledger.Key{}
	longest := strings.Repeat("k", ledger.MaxIndexBytes-len("pksk"))
	for _, x := range ledger.Indexes {
		w.Item.Index[x] = key(full, longest)
	}
	b.commit(t, w)
	b.holds(t, "pk", "sk", 1, "x")
	b.finds(t, ledger.Query{Index: ledger.Scope, PK: full}, "pk/sk")
	b.finds(t, ledger.Query{Index: ledger.Scope, PK: full, From: longest, Reverse: true}, "pk/sk")
	b.finds(t, ledger.Query{Index: ledger.Scope, PK: full, From: longest + "\x00"})
	// Bytes that may have to be escaped count twice.
	controls := strings.Repeat("\x00\x01", (ledger.MaxIndexBytes-len("pk2sk"))/4)
	w = indexed(ledger.Lookup, key(strings.Repeat("\x00", ledger.MaxKeyBytes), controls))
	w.Item.Key = key("pk2", "sk")
	b.commit(t, w)
	b.finds(t, ledger.Query{Index: ledger.Lookup, PK: w.Item.Index[ledger.Lookup].PK, From: "\x00"}, "pk2/sk")
}

func testCancelledContext(t *testing.T, b *bench) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Commit(ctx, put("p", "s", "", 0)); err == nil {
		t.Error("commit with a cancelled context: got no error")
	}
	b.lacks(t, "p", "s")
	if _, err := b.Get(ctx, key("p", "s")); err == nil || errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("get with a cancelled context: got %v", err)
	}
}

func testBigValues(t *testing.T, b *bench) {
	var writes []ledger.Write
	left := ledger.MaxCommitBytes
	for i := 0; left > 0; i++ {
		n := min(left, ledger.MaxItemBytes)
		left -= n
		w := put("p", fmt.Sprint(i), "", 0)
		w.Item.Data = bytes.Repeat([]byte{0, byte(i), 0xff, 'x'}, n/4+1)[:n]
		writes = append(writes, w)
	}
	b.commit(t, writes...)
	for _, w := range writes {
		b.holds(t, "p", w.Item.SK, 1, string(w.Item.Data))
	}
	items, err := b.all(t.Context(), ledger.Query{PK: "p"})
	if err != nil || len(items) != len(writes) {
		t.Fatalf("query: got %d items, %v, want %d", len(items), err, len(writes))
	}
	for i, it := range items {
		if !bytes.Equal(it.Data, writes[i].Item.Data) {
			t.Errorf("item %s: other data than was put", it.Key)
		}
	}
}
