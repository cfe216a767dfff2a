package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// mixed are facts of two types by turns, with a name that HTML would escape.
func mixed(n int) []Event {
	evs := make([]Event, n)
	for i := range evs {
		evs[i] = fact([]string{"node.ready", "device.xid"}[i%2], "a<b>", i)
	}
	return evs
}

// bare tells which of the events have lost their details.
func bare(t *testing.T, evs []Event) string {
	t.Helper()
	var b strings.Builder
	for _, e := range evs {
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			Detail  map[string]any `json:"detail"`
			Expired bool           `json:"detail_expired"`
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		if v.Expired != (v.Detail == nil) || v.Expired != e.DetailExpired || v.Expired != (e.Detail == nil) {
			t.Fatalf("%s", raw)
		}
		if v.Expired {
			b.WriteByte('.')
		} else {
			b.WriteByte('d')
		}
	}
	return b.String()
}

func at(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }

func TestExpireDetails(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	evs := mixed(12)
	evs[1].Detail = nil // it has nothing to lose
	put(t, db, "clu_a", 4, evs...)
	before, _ := drain(t, &Reader{Ledger: db}, Query{Cluster: "clu_a"})
	for _, tt := range []struct {
		types  string
		before int
		most   int
		looked int
		want   string
	}{
		{"device.*", 0, 100, 3, "dddddddddddd"},
		{"device.*", 7, 100, 3, "ddd.dddddddd"}, // the run that the time falls into stays
		{"device.*", 9, 1, 1, "ddd.d.d.dddd"},   // bounded, and goes on where it was
		{"node.ready", 100, 2, 2, ".d....." + ".dddd"},
		{"node.ready", 100, 2, 1, ".d......" + ".d.d"},
		{"node.ready", 100, 2, 0, ".d......" + ".d.d"},
		{"device.xid", 100, 100, 3, ".d......" + "...."},
	} {
		n, err := ExpireDetails(ctx, db, "clu_a", tt.types, at(tt.before), tt.most)
		if err != nil {
			t.Fatal(err)
		}
		after, _ := drain(t, &Reader{Ledger: db}, Query{Cluster: "clu_a"})
		if got := bare(t, after); got != tt.want || n != tt.looked {
			t.Errorf("%s before %d: %s after %d runs, want %s after %d", tt.types, tt.before, got, n, tt.want, tt.looked)
		}
		for i := range after { // all but the detail is as it was
			e := after[i]
			e.Detail, e.DetailExpired = before[i].Detail, false
			if fmt.Sprint(e) != fmt.Sprint(before[i]) {
				t.Errorf("event %d is %+v, was %+v", i, e, before[i])
			}
		}
	}
	// Filters, times and cursors do not hang on details.
	got, _ := drain(t, &Reader{Ledger: db}, Query{Cluster: "clu_a", Types: []string{"device.*"}, Since: at(5), Limit: 1})
	if len(got) != 4 {
		t.Errorf("%v", sequences(got))
	}
	if head, _, err := Trim(ctx, db, "clu_a", at(8)); err != nil || head.Low != 9 {
		t.Errorf("low %d, %v", head.Low, err)
	}
	if n, err := ExpireDetails(ctx, db, "clu_a", "operation.*", at(100), 100); err != nil || n != 1 {
		t.Errorf("a new family after a trim: %d runs, %v", n, err)
	}
	if n, err := ExpireDetails(ctx, db, "nobody", "operation.*", at(100), 100); err != nil || n != 0 {
		t.Errorf("a stream without events: %d runs, %v", n, err)
	}
	for _, types := range []string{"", "*", "Node", "node"} {
		if _, err := ExpireDetails(ctx, db, "clu_a", types, at(100), 100); !errors.Is(err, ErrInvalidQuery) {
			t.Errorf("%q: %v", types, err)
		}
	}
}

// TestExpireKeepsWhatItDoesNotKnow: a later version's members of an event stay.
func TestExpireKeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	in := []byte(`{"at":5,"events":[{"t":"node.left","d":{"a":"<"},"later":{"b":[1]}},{"t":"x.y","d":{"a":1}},{"t":"node.left","d":{}}]}`)
	want := `{"at":5,"events":[{"later":{"b":[1]},"t":"node.left","x":true},{"t":"x.y","d":{"a":1}},{"t":"node.left","d":{}}]}`
	out, changed, err := withoutDetails(in, "node.")
	if err != nil || !changed || string(out) != want {
		t.Errorf("%s, %v, %v", out, changed, err)
	}
	if _, changed, err = withoutDetails(out, "node."); err != nil || changed {
		t.Errorf("again: %v, %v", changed, err)
	}
	if _, _, err = withoutDetails([]byte(`{"events":[{}]}`), "node."); err == nil {
		t.Error("an event without a type")
	}
}

// crash fails one commit: before it when even, with its answer lost when odd.
type crash struct {
	ledger.Ledger
	mu sync.Mutex
	n  int
	at int
}

func (c *crash) Commit(ctx context.Context, ws ...ledger.Write) error {
	c.mu.Lock()
	c.n++
	hit := c.n == c.at/2+1
	c.mu.Unlock()
	if hit && c.at%2 == 0 {
		return ledger.ErrUnavailable
	}
	err := c.Ledger.Commit(ctx, ws...)
	if hit && err == nil {
		return ledger.ErrUnknown
	}
	return err
}

// TestExpireCutOff: wherever a pass ends, the next one does the rest.
func TestExpireCutOff(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for when := 0; ; when++ {
		db := openDB(t)
		put(t, db, "clu_a", 1, mixed(45)...) // more than are read at once
		c := &crash{Ledger: db, at: when}
		_, err := ExpireDetails(ctx, c, "clu_a", "device.*", at(100), 1000)
		if err == nil {
			if c.n > when/2 {
				t.Fatalf("crash %d was not told", when)
			}
			if when < 8 {
				t.Errorf("only %d commits", c.n)
			}
			return
		}
		if _, err := ExpireDetails(ctx, db, "clu_a", "device.*", at(100), 1000); err != nil {
			t.Fatal(err)
		}
		got, _ := drain(t, &Reader{Ledger: db}, Query{Cluster: "clu_a", Limit: 200})
		if s := bare(t, got); s != strings.Repeat("d.", 22)+"d" {
			t.Errorf("crash %d: %s", when, s)
		}
		if n, err := ExpireDetails(ctx, db, "clu_a", "device.*", at(100), 1000); err != nil || n != 0 {
			t.Errorf("crash %d: looked at %d again, %v", when, n, err)
		}
	}
}

// TestExpireMeanwhile: two passes at once, a trim and appends around them: readers
// see each event once and in order, and what is old has no detail in the end.
func TestExpireMeanwhile(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	const total = 400
	evs := mixed(total)
	put(t, db, "clu_a", 3, evs[:200]...)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := 200; i < total; i += 5 {
			put(t, db, "clu_a", 5, evs[i:i+5]...)
			if _, _, err := Trim(ctx, db, "clu_a", at(i-200)); err != nil {
				t.Errorf("trim: %v", err)
			}
		}
	})
	for _, types := range []string{"device.*", "node.ready", "device.xid"} {
		wg.Go(func() {
			for over := false; !over; {
				select {
				case <-done:
					over = true
				default:
				}
				if _, err := ExpireDetails(ctx, db, "clu_a", types, at(300), 7); err != nil {
					t.Errorf("expire: %v", err)
				}
			}
		})
	}
	wg.Go(func() {
		q, next := Query{Cluster: "clu_a", Limit: 30}, int64(0)
		for next <= total {
			p, err := (&Reader{Ledger: db}).Read(ctx, q)
			var expired *ExpiredError
			if errors.As(err, &expired) {
				q.Cursor, next = expired.Cursor, expired.Streams["clu_a"]
				continue
			}
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			for _, e := range p.Events {
				if next != 0 && e.Sequence != next {
					t.Errorf("event %d, want %d", e.Sequence, next)
				}
				next = e.Sequence + 1
			}
			q.Cursor = p.NextCursor
		}
	})
	wg.Wait()
	for _, types := range []string{"device.*", "node.*"} {
		if _, err := ExpireDetails(ctx, db, "clu_a", types, at(300), 1000); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := drain(t, &Reader{Ledger: db}, Query{Cluster: "clu_a", Limit: 200})
	for _, e := range got {
		if old := e.ReceivedAt.Before(at(295)); old && !e.DetailExpired || e.ReceivedAt.After(at(300)) && e.DetailExpired {
			t.Errorf("event %d: expired %v", e.Sequence, e.DetailExpired)
		}
	}
}
