package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// spoil writes something else in the place of a run.
func spoil(t testing.TB, db ledger.Ledger, stream string, first int64, change func(data string) string) {
	t.Helper()
	key := record.StreamRunKey(stream, first)
	it, err := db.Get(context.Background(), key)
	if err == nil {
		it.Data = []byte(change(string(it.Data)))
		err = db.Commit(context.Background(), ledger.Write{Item: ledger.Item{Key: key, Data: it.Data}, Expect: it.Version})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func becomes(data string) func(string) string { return func(string) string { return data } }

// seen are events as a reader sees them: their sequences, of unreadable ones the
// first and the last.
func seenAs(evs []Event) []string {
	out := []string{}
	for i := range evs {
		e := &evs[i]
		s := fmt.Sprint(e.Sequence)
		if n := Unreadable(e); n > 0 {
			s = fmt.Sprintf("%d-%d unreadable at %s", e.Sequence-n+1, e.Sequence, e.ReceivedAt.Sub(t0))
		}
		out = append(out, s)
	}
	return out
}

// spoiled is a stream of ten runs of three events, of which some are damaged, and
// what a reader sees of it.
func spoiled(t testing.TB, db ledger.Ledger, stream string) []string {
	t.Helper()
	for i, evs := 0, facts(30); i < 30; i += 3 {
		if _, err := Append(context.Background(), db, stream, evs[i:i+3], nil); err != nil {
			t.Fatal(err)
		}
	}
	spoil(t, db, stream, 1, becomes("{"))
	spoil(t, db, stream, 7, func(s string) string { return strings.Replace(s, `"r":"`, `"r":"yesterday, `, 2)[:len(s)/2] })
	spoil(t, db, stream, 10, becomes(`{"at":1,"events":[]}`))
	spoil(t, db, stream, 16, func(s string) string { return strings.Replace(s, `"t":"node.ready"`, `"t":5`, 1) })
	spoil(t, db, stream, 28, becomes(" "))
	var want []string
	for i := 1; i <= 30; i++ {
		switch i {
		case 1:
			want = append(want, "1-3 unreadable at "+time.UnixMilli(0).Sub(t0).String())
		case 7, 10: // received when the last was before
			want = append(want, fmt.Sprintf("%d-%d unreadable at 5s", i, i+2))
		case 16:
			want = append(want, "16-16 unreadable at 14s")
		case 28:
			want = append(want, "28-30 unreadable at 26s")
		case 2, 3, 8, 9, 11, 12, 29, 30:
		default:
			want = append(want, fmt.Sprint(i))
		}
	}
	return want
}

// TestUnreadableEvents: damaged runs end no stream. Whoever reads sees one event in
// the place of each, once, and everything behind it, from wherever he goes on.
func TestUnreadableEvents(t *testing.T) {
	t.Parallel()
	unreadableEvents(t, openDB(t))
}

func unreadableEvents(t *testing.T, db ledger.Ledger) {
	ctx := context.Background()
	const stream = "clu_a"
	want := spoiled(t, db, stream)
	for _, limit := range []int{1, 2, 7, 200} {
		var all []Event
		for from := int64(1); ; {
			evs, _, err := ReadStream(ctx, db, stream, from, limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(evs) == 0 {
				break
			}
			all, from = append(all, evs...), evs[len(evs)-1].Sequence+1
		}
		if d := cmp.Diff(want, seenAs(all)); d != "" {
			t.Errorf("read %d at a time (-want +got):\n%s", limit, d)
		}
		for _, q := range []Query{{Cluster: stream}, {Streams: []string{stream, "clu_b"}}} {
			q.Limit = limit
			r := &Reader{Ledger: db}
			var listed []Event
			for more := true; more; {
				p, err := r.Read(ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				listed, q.Cursor, more = append(listed, p.Events...), p.NextCursor, p.More
			}
			if d := cmp.Diff(want, seenAs(listed)); d != "" {
				t.Errorf("listed %d at a time (-want +got):\n%s", limit, d)
			}
		}
	}
	// From within a damaged run, it is seen; behind it, it is not.
	for from, n := range map[int64]int{1: len(want), 2: len(want), 3: len(want), 4: len(want) - 1, 29: 1, 30: 1, 31: 0} {
		if evs, _, err := ReadStream(ctx, db, stream, from, 100); err != nil || len(evs) != n {
			t.Errorf("from %d: %v, %v", from, seenAs(evs), err)
		}
	}
	evs, _, err := ReadStream(ctx, db, stream, 7, 1)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := ReadStream(ctx, db, stream, 8, 1)
	if d := cmp.Diff(evs, again); err != nil || d != "" {
		t.Errorf("it is another event from elsewhere: %s, %v", d, err)
	}
	e := evs[0]
	if e.Type != TypeUnreadable || e.Severity != Error || e.Cluster != stream || e.Stream != stream || e.ID == "" {
		t.Errorf("it is %+v", e)
	}
	if _, err := json.Marshal(e); err != nil {
		t.Error(err)
	}
	// Filters and searches by time pass it.
	r := &Reader{Ledger: db}
	got, _ := drain(t, r, Query{Cluster: stream, Types: []string{"stream.*"}})
	if len(got) != 5 {
		t.Errorf("%v are of type stream.*", seenAs(got))
	}
	for since := range 32 {
		got, _ := drain(t, r, Query{Cluster: stream, Since: at(since), Types: []string{"node.ready"}})
		n := 0
		for _, w := range want {
			var seq int
			if _, err := fmt.Sscanf(w, "%d", &seq); err == nil && !strings.Contains(w, "-") && seq > since {
				n++
			}
		}
		if len(got) != n {
			t.Errorf("since %d: %d events, want %d", since, len(got), n)
		}
	}
	// Retention goes on.
	if _, err := ExpireDetails(ctx, db, stream, "node.*", at(100), 1000); err != nil {
		t.Fatal(err)
	}
	got, _ = drain(t, r, Query{Cluster: stream, Types: []string{"node.*"}})
	for _, e := range got {
		if e.DetailExpired != (e.Sequence < 16 || e.Sequence > 18) { // that run cannot be written anew
			t.Errorf("event %d: details expired %v", e.Sequence, e.DetailExpired)
		}
	}
	for _, tt := range []struct {
		before int
		low    int64
	}{{3, 4}, {8, 13}, {26, 25}, {1000, 31}} {
		head, _, err := Trim(ctx, db, stream, at(tt.before))
		if err != nil || head.Low != tt.low {
			t.Errorf("trimmed before %d: low %d, want %d, %v", tt.before, head.Low, tt.low, err)
		}
	}
}

// brokenReads is a ledger that fails when an item is read.
type brokenReads struct{ ledger.Ledger }

var errBroken = errors.New("the disk does not answer")

func (l brokenReads) Get(ctx context.Context, k ledger.Key) (ledger.Item, error) {
	if k.SK != record.StreamHeadKey("").SK {
		return ledger.Item{}, errBroken
	}
	return l.Ledger.Get(ctx, k)
}

// TestUnreadableIsProven: that a run could not be read again proves nothing, and it
// is not passed over.
func TestUnreadableIsProven(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	put(t, db, "clu_a", 3, facts(9)...)
	spoil(t, db, "clu_a", 4, becomes("{"))
	evs, _, err := ReadStream(t.Context(), brokenReads{db}, "clu_a", 4, 10)
	if !errors.Is(err, errBroken) || len(evs) != 0 {
		t.Errorf("%v, %v", seenAs(evs), err)
	}
}
