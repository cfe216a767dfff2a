package event

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
)

// t0 is when the tests' events begin to happen.
// t0 is when tests begin by their own clock. It lies ahead: a table that has a time
// to live deletes by the clock of the world, and would take what is new to a test.
var t0 = time.Date(2076, 7, 1, 12, 0, 0, 0, time.UTC)

func openDB(t testing.TB) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(context.Background(), sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// fact is an event that happened and was received n seconds after t0.
func fact(typ, name string, n int) Event {
	at := t0.Add(time.Duration(n) * time.Second)
	return Event{
		ID: id.Derive(id.Event, typ, name, strconv.Itoa(n)), Type: typ,
		Subject:   Subject{Kind: "node", ID: id.Derive(id.Node, name), Name: name},
		Timestamp: at, ReceivedAt: at, Detail: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Severity: Info,
	}
}

func facts(n int) []Event {
	evs := make([]Event, n)
	for i := range evs {
		evs[i] = fact("node.ready", "a", i)
	}
	return evs
}

// put appends the events, each batch of size in a commit.
func put(t testing.TB, db *sqlite.DB, stream string, size int, evs ...Event) {
	t.Helper()
	for len(evs) > 0 {
		part := evs[:min(size, len(evs))]
		evs = evs[len(part):]
		if _, err := Append(context.Background(), db, stream, part, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// drain reads to the end with pages of limit, and returns the last cursor.
func drain(t testing.TB, r *Reader, q Query) ([]Event, string) {
	t.Helper()
	var all []Event
	for range 10_000 {
		p, err := r.Read(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p.Events...)
		if q.Cursor = p.NextCursor; q.Cursor == "" {
			t.Fatal("no next cursor")
		}
		if !p.More {
			return all, q.Cursor
		}
	}
	t.Fatal("no end")
	return nil, ""
}

// sequences are the events' places.
func sequences(evs []Event) []string {
	out := make([]string, len(evs))
	for i, e := range evs {
		out[i] = fmt.Sprintf("%s/%d", e.Stream, e.Sequence)
	}
	return out
}

func list(streams ...string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return streams, nil }
}
