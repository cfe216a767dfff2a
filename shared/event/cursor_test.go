package event

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

func TestCursorDamaged(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	put(t, db, "clu_a", 10, facts(30)...)
	r := &Reader{Ledger: db, Streams: list("clu_a")}
	ctx := context.Background()
	for name, q := range map[string]Query{"one stream": {Cluster: "clu_a", Limit: 5}, "all": {Limit: 5}} {
		p, err := r.Read(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.NextCursor {
			for bit := range 8 {
				b := []byte(p.NextCursor)
				b[i] ^= 1 << bit
				q.Cursor = string(b)
				if _, err := r.Read(ctx, q); !errors.Is(err, ErrInvalidCursor) {
					t.Fatalf("%s: bit %d of character %d flipped: %v", name, bit, i, err)
				}
			}
		}
		for _, c := range []string{p.NextCursor[:8], p.NextCursor + "A", p.NextCursor + "\n", " " + p.NextCursor, "cur_", "x", "\x00"} {
			q.Cursor = c
			if _, err := r.Read(ctx, q); !errors.Is(err, ErrInvalidCursor) {
				t.Errorf("%s: cursor %q: %v", name, c, err)
			}
		}
	}
}

func TestCursorOfAnotherQuery(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	put(t, db, "clu_a", 10, facts(10)...)
	put(t, db, "clu_b", 10, facts(10)...)
	r := &Reader{Ledger: db, Streams: list("clu_a", "clu_b")}
	ctx := context.Background()
	queries := []Query{
		{Cluster: "clu_a"}, {Cluster: "clu_b"}, {}, {Streams: []string{"clu_a", "clu_b"}},
		{Cluster: "clu_a", Types: []string{"node.*"}}, {Cluster: "clu_a", Types: []string{"node.ready"}},
		{Cluster: "clu_a", Subject: "node:a"}, {Cluster: "clu_a", Since: t0}, {Cluster: "clu_a", Until: t0}, {Types: []string{"node.*"}},
		{Cluster: "clu_a", Severities: []string{Info}}, {Cluster: "clu_a", Severities: []string{Info, Error}}, {Severities: []string{Info}},
	}
	cursors := make([]string, len(queries))
	for i, q := range queries {
		q.Limit = 3
		p, err := r.Read(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		cursors[i] = p.NextCursor
	}
	for i, q := range queries {
		for j, c := range cursors {
			q.Cursor, q.Limit, q.Wait = c, 100, time.Duration(i) // limit and wait may change
			_, err := r.Read(ctx, q)
			if i == j && err != nil || i != j && !errors.Is(err, ErrInvalidCursor) {
				t.Errorf("query %d with the cursor of %d: %v", i, j, err)
			}
		}
	}
	// The same question in another spelling.
	if _, err := r.Read(ctx, Query{Streams: []string{"clu_a"}, Types: []string{"node.", "node.*"}, Cursor: cursors[4]}); err != nil {
		t.Error(err)
	}
}

func TestCursorAhead(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	put(t, db, "clu_a", 10, facts(10)...)
	r := &Reader{Ledger: db}
	q := Query{Cluster: "clu_a"}
	n, err := q.normalize()
	if err != nil {
		t.Fatal(err)
	}
	q.Cursor = encodeCursor(streamCursor{Stream: "clu_a", Next: 12, Mark: n.mark()})
	if _, err := r.Read(context.Background(), q); !errors.Is(err, ErrInvalidCursor) {
		t.Errorf("cursor ahead of its stream: %v", err)
	}
}

func TestStoredCursor(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	put(t, db, "clu_a", 10, facts(3)...)
	now := time.Now()
	r := &Reader{Ledger: db, Streams: list("clu_a"), Now: func() time.Time { return now }}
	ctx := context.Background()
	_, c := drain(t, r, Query{})
	if !id.Valid(id.Cursor, c) {
		t.Fatalf("cursor %q", c)
	}
	read := func() (string, ledger.Item) {
		p, err := r.Read(ctx, Query{Cursor: c})
		if err != nil {
			t.Fatal(err)
		}
		it, err := db.Get(ctx, record.CursorKey(p.NextCursor))
		if err != nil {
			t.Fatal(err)
		}
		return p.NextCursor, it
	}
	again, it := read()
	if again != c || it.Version != 1 {
		t.Errorf("the same place again: cursor %s, was %s, written %d times", again, c, it.Version)
	}
	if ttl := it.Expires.Sub(now); ttl < CursorTTL || ttl > CursorTTL+time.Second {
		t.Errorf("kept for %s", ttl)
	}
	// A reader that stands still for days keeps its cursor.
	now = now.Add(6 * 24 * time.Hour)
	again, it = read()
	if again != c || it.Version != 2 || it.Expires.Sub(now) < CursorTTL {
		t.Errorf("after 6 days: cursor %s, was %s, written %d times, kept for %s", again, c, it.Version, it.Expires.Sub(now))
	}
}

func TestNewCluster(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	put(t, db, "clu_a", 10, facts(3)...)
	streams := []string{"clu_a"}
	r := &Reader{Ledger: db, Streams: func(context.Context) ([]string, error) { return slices.Clone(streams), nil }}
	got, c := drain(t, r, Query{})
	if len(got) != 3 {
		t.Fatalf("%d events", len(got))
	}
	streams = append(streams, "clu_new")
	put(t, db, "clu_new", 1, facts(4)...)
	put(t, db, PlaneStream, 1, facts(2)...)
	got, c = drain(t, r, Query{Cursor: c, Limit: 1})
	if len(got) != 6 {
		t.Errorf("after two new streams: %v", sequences(got))
	}
	// A stream that the list misses for once is not read twice.
	streams = []string{"clu_a"}
	_, c = drain(t, r, Query{Cursor: c})
	streams = []string{"clu_a", "clu_new"}
	if got, _ = drain(t, r, Query{Cursor: c}); len(got) != 0 {
		t.Errorf("seen again: %v", sequences(got))
	}
}

// FuzzDecodeCursor: what is not a cursor is refused, and a cursor has one
// spelling.
func FuzzDecodeCursor(f *testing.F) {
	f.Add(encodeCursor(streamCursor{Stream: "clu_a", Next: 1, Mark: "m"}))
	f.Add(encodeCursor(streamCursor{Stream: "plane", Next: 1 << 60, Mark: ""}))
	f.Add("")
	f.Add("cur_01")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := decodeCursor(s)
		if err != nil {
			if !errors.Is(err, ErrInvalidCursor) {
				t.Errorf("error %v", err)
			}
			return
		}
		if c.Stream == "" || c.Next < 1 || encodeCursor(c) != s {
			t.Errorf("%q decodes to %+v", s, c)
		}
	})
}
