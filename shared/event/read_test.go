package event

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func TestReadFilters(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	op := fact("operation.failed", "a", 3)
	op.OperationID, op.Severity = id1, Error
	left, degraded := fact("node.left", "b", 1), fact("device.degraded", "a", 2)
	left.Severity, degraded.Severity = Warning, Critical
	put(t, db, "clu_a", 2, fact("node.ready", "a", 0), left, degraded, op, fact("nodes.x", "a", 4))
	put(t, db, PlaneStream, 2, fact("manual.change", "a", 1))
	r := &Reader{Ledger: db, Streams: list("clu_a")}
	at := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }
	for _, tt := range []struct {
		name string
		q    Query
		want []string
	}{
		{"all", Query{}, []string{"clu_a/1", "clu_a/2", "plane/1", "clu_a/3", "clu_a/4", "clu_a/5"}},
		{"one stream", Query{Cluster: "plane"}, []string{"plane/1"}},
		{"type", Query{Types: []string{"node.left"}}, []string{"clu_a/2"}},
		{"family", Query{Types: []string{"node.*"}}, []string{"clu_a/1", "clu_a/2"}},
		{"family by dot", Query{Types: []string{"node.", "manual.change"}}, []string{"clu_a/1", "clu_a/2", "plane/1"}},
		{"severity", Query{Severities: []string{"warning"}}, []string{"clu_a/2"}},
		{"severities", Query{Severities: []string{"error", "critical", "error"}}, []string{"clu_a/3", "clu_a/4"}},
		{"severity and type", Query{Severities: []string{"error", "info"}, Types: []string{"node.*", "operation.*"}}, []string{"clu_a/1", "clu_a/4"}},
		{"subject by name", Query{Subject: "node:b"}, []string{"clu_a/2"}},
		{"subject by id", Query{Subject: fact("x.y", "b", 0).Subject.ID}, []string{"clu_a/2"}},
		{"operation", Query{Subject: id1}, []string{"clu_a/4"}},
		{"since", Query{Since: at(3)}, []string{"clu_a/4", "clu_a/5"}},
		{"until", Query{Until: at(1)}, []string{"clu_a/1"}},
		{"between", Query{Since: at(1), Until: at(2)}, []string{"clu_a/2", "plane/1"}},
		{"nothing", Query{Subject: "node:c"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, limit := range []int{1, 2, 200} {
				tt.q.Limit = limit
				got, _ := drain(t, r, tt.q)
				if limit == 200 && !slices.Equal(sequences(got), tt.want) && len(got)+len(tt.want) > 0 {
					t.Errorf("got %v, want %v", sequences(got), tt.want)
				}
				if len(got) != len(tt.want) {
					t.Errorf("limit %d: got %v, want %v", limit, sequences(got), tt.want)
				}
			}
		})
	}
}

const id1 = "op_01k0000000000000000000000a"

func TestReadInvalidQuery(t *testing.T) {
	t.Parallel()
	r := &Reader{Ledger: openDB(t)}
	for _, q := range []Query{
		{Limit: -1}, {Limit: 201}, {Wait: -1}, {Wait: MaxWait + 1}, {Types: []string{""}}, {Types: []string{"*"}}, {Types: []string{"Node.x"}},
		{Types: []string{"node*"}}, {Types: []string{"node"}}, {Types: make([]string, 51)}, {Streams: []string{"clu_a"}, Cluster: "clu_b"},
		{Streams: []string{""}}, {Streams: []string{}}, {Streams: []string{}, Cluster: "clu_a"}, {Severities: []string{"Error"}}, {Severities: []string{""}}, {Subject: string(make([]byte, 601))},
	} {
		_, err := r.Read(context.Background(), q)
		if wrong, ok := errors.AsType[*QueryError](err); !errors.Is(err, ErrInvalidQuery) || !ok || wrong.Part == "" {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// TestReadIsBounded: a filter that matches nothing costs no more than its bound,
// and the next cursor goes on from there, in every stream.
func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	for _, s := range []string{"clu_a", "clu_b"} {
		put(t, db, s, 300, facts(1200)...)
	}
	put(t, db, "clu_b", 1, fact("device.left", "a", 1))
	r := &Reader{Ledger: db, Streams: list("clu_a", "clu_b"), maxScan: 2000}
	q := Query{Types: []string{"device.*"}, Wait: MaxWait}
	p, err := r.Read(context.Background(), q)
	if err != nil || len(p.Events) != 0 || !p.More {
		t.Fatalf("first page: %d events, more %t, %v", len(p.Events), p.More, err)
	}
	q.Cursor = p.NextCursor
	if p, err = r.Read(context.Background(), q); err != nil || len(p.Events) != 1 || p.More {
		t.Errorf("second page: %d events, more %t, %v", len(p.Events), p.More, err)
	}
}

// TestReadSharesItsBound: what a stream that ends before has no use for is for the
// others, so that as many events are looked at as the bound says, wherever they are.
func TestReadSharesItsBound(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	for _, s := range []string{"clu_a", "clu_c", "clu_d"} {
		put(t, db, s, 10, facts(10)...)
	}
	put(t, db, "clu_b", 300, facts(1800)...)
	put(t, db, "clu_b", 1, fact("device.left", "a", 1))
	put(t, db, "clu_b", 300, facts(300)...)
	r := &Reader{Ledger: db, Streams: list("clu_a", "clu_b", "clu_c", "clu_d"), maxScan: 2000}
	p, err := r.Read(context.Background(), Query{Types: []string{"device.*"}})
	if err != nil || len(p.Events) != 1 || !p.More {
		t.Errorf("%d events, more %t, %v", len(p.Events), p.More, err)
	}
}

// TestManyStreams: with more streams than a read looks into, none starves.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	var streams []string
	for i := range 2*maxStreams + 7 {
		s := fmt.Sprintf("clu_%04d", i)
		streams = append(streams, s)
		put(t, db, s, 10, facts(3)...)
	}
	r := &Reader{Ledger: db, Streams: list(streams...)}
	q := Query{Limit: maxStreams}
	seen := map[string]int{}
	for page := 1; ; page++ {
		p, err := r.Read(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Events {
			if seen[e.Stream]++; int64(seen[e.Stream]) != e.Sequence {
				t.Fatalf("%s/%d is number %d", e.Stream, e.Sequence, seen[e.Stream])
			}
		}
		if page == 3 && len(seen) != len(streams) {
			t.Errorf("after 3 pages %d streams of %d were seen", len(seen), len(streams))
		}
		if q.Cursor = p.NextCursor; !p.More {
			break
		}
	}
	if len(seen) != len(streams) {
		t.Errorf("%d streams of %d", len(seen), len(streams))
	}
	for s, n := range seen {
		if n != 3 {
			t.Errorf("stream %s: %d events", s, n)
		}
	}
}

// TestSlowClockDoesNotStarveOthers: a stream whose events always claim to be
// older does not keep the others back.
func TestSlowClockDoesNotStarveOthers(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	slow := facts(100)
	for i := range slow {
		slow[i].Timestamp = slow[i].Timestamp.Add(-24 * time.Hour)
	}
	put(t, db, "clu_a", 100, slow...)
	put(t, db, "clu_b", 100, facts(100)...)
	p, err := (&Reader{Ledger: db, Streams: list("clu_a", "clu_b")}).Read(context.Background(), Query{Limit: 20})
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for i, e := range p.Events {
		n[e.Stream]++
		if i > 0 && e.Timestamp.Before(p.Events[i-1].Timestamp) {
			t.Errorf("event %d is older than the one before", i)
		}
	}
	if n["clu_a"] != 10 || n["clu_b"] != 10 {
		t.Errorf("page has %v", n)
	}
}

// TestSince: late, early and impossible timestamps are all found by when they
// happened.
func TestSince(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	evs := facts(500)
	for i := range evs {
		switch {
		case i == 100:
			evs[i].Timestamp = evs[i].Timestamp.Add(10 * time.Minute) // a clock that is ahead
		case i == 150:
			evs[i].Timestamp = evs[i].Timestamp.AddDate(50, 0, 0) // a broken one
		case i%10 == 0:
			evs[i].Timestamp = evs[i].Timestamp.Add(-5 * time.Minute) // told late
		}
	}
	put(t, db, "clu_a", 7, evs...)
	r := &Reader{Ledger: db}
	for _, n := range []int{0, 1, 99, 100, 101, 102, 499, 500, 699, 700, 701, 3749, 3750, 3751, 100_000} {
		q := Query{Cluster: "clu_a", Limit: 200, Since: t0.Add(time.Duration(n) * time.Second)}
		var want []string
		for i := range evs {
			if !evs[i].Happened().Before(q.Since) {
				want = append(want, fmt.Sprintf("clu_a/%d", i+1))
			}
		}
		if got, _ := drain(t, r, q); !slices.Equal(sequences(got), want) {
			t.Errorf("since %d s: %d events, want %d", n, len(got), len(want))
		}
	}
}

// TestWaitWakesEarly: a wait ends with the first event that matches, on an
// engine that signals and on one that does not, and not before its time when
// none does.
func TestWaitWakesEarly(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	plain := struct{ ledger.Ledger }{db}
	for name, tt := range map[string]struct {
		l ledger.Ledger
		q Query
	}{
		"watched":             {db, Query{Cluster: "watched"}},
		"watched all":         {db, Query{}},
		"polled":              {plain, Query{Cluster: "polled"}},
		"polled all":          {plain, Query{}},
		"some that do not":    {db, Query{Cluster: "filtered", Types: []string{"x.*"}}},
		"two streams by name": {db, Query{Streams: []string{"two", "three"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Reader{Ledger: tt.l, Streams: list("all"), Poll: 20 * time.Millisecond}
			if tt.l != plain && len(tt.q.Streams)+len(tt.q.Cluster) > 0 {
				r.Poll = time.Hour // only the signal can wake it
			}
			stream := tt.q.Cluster
			if stream == "" {
				stream = name
				r.Streams = list(name)
			}
			if len(tt.q.Streams) > 0 {
				stream = "three"
			}
			_, cursor := drain(t, r, tt.q)
			q := tt.q
			q.Cursor, q.Wait = cursor, 30*time.Second
			type answer struct {
				p   Page
				err error
			}
			got := make(chan answer, 1)
			begin := time.Now()
			go func() {
				p, err := r.Read(context.Background(), q)
				got <- answer{p, err}
			}()
			put(t, db, stream, 1, fact("node.ready", "a", 1), fact("x.y", "a", 2))
			a := <-got
			if a.err != nil || len(a.p.Events) == 0 {
				t.Fatalf("%d events, %v", len(a.p.Events), a.err)
			}
			if took := time.Since(begin); took >= q.Wait {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	r := &Reader{Ledger: db}
	begin := time.Now()
	p, err := r.Read(context.Background(), Query{Cluster: "clu_a", Wait: 30 * time.Millisecond})
	if err != nil || len(p.Events) != 0 || p.NextCursor == "" || time.Since(begin) < 30*time.Millisecond {
		t.Errorf("%d events, cursor %q, %v, after %s", len(p.Events), p.NextCursor, err, time.Since(begin))
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := r.Read(ctx, Query{Cluster: "clu_a", Wait: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
