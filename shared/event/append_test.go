package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

func big(n, bytes int) []Event {
	evs := facts(n)
	for i := range evs {
		evs[i].Detail = json.RawMessage(`{"x":"` + strings.Repeat("<", bytes) + `"}`)
	}
	return evs
}

func TestAppendWritesSplitsRuns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		evs  []Event
		runs int
	}{
		{"one", facts(1), 1},
		{"a full run", facts(200), 1},
		{"one more", facts(201), 2},
		{"by bytes", big(20, 30<<10), 3}, // 8 of 30 KiB fit in 256 KiB
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			writes, next, err := AppendWrites(Head{Next: 5, Low: 2, At: 1}, 7, "clu_a", tt.evs)
			if err != nil {
				t.Fatal(err)
			}
			if err := ledger.Validate(writes); err != nil {
				t.Error(err)
			}
			if h := writes[0]; h.Item.Key != record.StreamHeadKey("clu_a") || h.Expect != 7 || !h.Feed {
				t.Errorf("the head's write is %+v", h)
			}
			if len(writes)-1 != tt.runs {
				t.Errorf("%d runs, want %d", len(writes)-1, tt.runs)
			}
			if next.Next != 5+int64(len(tt.evs)) || next.Low != 2 {
				t.Errorf("next head is %+v", next)
			}
			seq := int64(5)
			for _, w := range writes[1:] {
				if w.Expect != 0 || w.Item.Key != record.StreamRunKey("clu_a", seq) || len(w.Item.Data) > MaxRunBytes {
					t.Errorf("run at %d: %s, expects %d, %d bytes", seq, w.Item.Key, w.Expect, len(w.Item.Data))
				}
				r, err := decodeRun("clu_a", w.Item)
				if err != nil {
					t.Fatal(err)
				}
				seq = r.end
			}
		})
	}
}

func TestAppendLimits(t *testing.T) {
	t.Parallel()
	evs := big(90, 30<<10)
	if _, _, err := AppendWrites(Head{}, 0, "s", evs); !errors.Is(err, ErrTooLarge) {
		t.Errorf("2.7 MB in one append: %v", err)
	}
	n := Fit(evs)
	if _, _, err := AppendWrites(Head{}, 0, "s", evs[:n]); err != nil {
		t.Errorf("Fit says %d: %v", n, err)
	}
	if _, _, err := AppendWrites(Head{}, 0, "s", evs[:n+1]); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one more than Fit's %d: %v", n, err)
	}
	if n := Fit(facts(6_000)); n < 2000 {
		t.Errorf("Fit takes %d small events", n)
	} else if _, _, err := AppendWrites(Head{}, 0, "s", facts(n)); err != nil {
		t.Errorf("Fit says %d: %v", n, err)
	}
	if Fit(nil) != 0 || Fit(facts(1)) != 1 {
		t.Error("Fit of none and of one")
	}
	for name, spoil := range map[string]func(*Event){
		"no id":     func(e *Event) { e.ID = "" },
		"bad type":  func(e *Event) { e.Type = "Node" },
		"no time":   func(e *Event) { e.Timestamp = time.Time{} },
		"too large": func(e *Event) { e.Detail = big(1, MaxRunBytes)[0].Detail },
	} {
		e := fact("a.b", "n", 1)
		spoil(&e)
		if _, _, err := AppendWrites(Head{}, 0, "s", []Event{e}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if w, h, err := AppendWrites(Head{Next: 3}, 1, "s", nil); w != nil || h.Next != 3 || err != nil {
		t.Errorf("no events: %v %v %v", w, h, err)
	}
}

// TestAppendConflict: appenders race for one head, each with a marker of its own
// in the same commit; none is lost or doubled, and no sequence is missing.
func TestAppendConflict(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	const appenders, each = 4, 25
	var wg sync.WaitGroup
	var mu sync.Mutex
	places := map[int64]string{}
	for a := range appenders {
		wg.Go(func() {
			marker := ledger.Key{PK: fmt.Sprintf("marker#%d", a), SK: "n"}
			for i := range each {
				calls := 0
				evs, err := Append(ctx, db, "clu_a", []Event{fact("a.b", fmt.Sprint(a), i), fact("a.c", fmt.Sprint(a), i)}, func() ([]ledger.Write, error) {
					calls++
					return []ledger.Write{{Item: ledger.Item{Key: marker, Data: []byte(fmt.Sprint(i))}, Expect: int64(i)}}, nil
				})
				if err != nil || calls == 0 {
					t.Errorf("append: %v after %d calls", err, calls)
					return
				}
				mu.Lock()
				for _, e := range evs {
					places[e.Sequence] = e.ID
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got, head, err := ReadStream(ctx, db, "clu_a", 1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2*appenders*each || head.Next != int64(len(got))+1 {
		t.Fatalf("%d events, head %+v", len(got), head)
	}
	for i, e := range got {
		if e.Sequence != int64(i)+1 || places[e.Sequence] != e.ID {
			t.Fatalf("at %d: %s/%d, told as %s", i, e.ID, e.Sequence, places[e.Sequence])
		}
	}
}

func TestAppendExtra(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	ctx := context.Background()
	mine := errors.New("done before")
	if _, err := Append(ctx, db, "s", facts(1), func() ([]ledger.Write, error) { return nil, mine }); !errors.Is(err, mine) {
		t.Errorf("extra's error: %v", err)
	}
	marker := func() ([]ledger.Write, error) {
		return []ledger.Write{{Item: ledger.Item{Key: ledger.Key{PK: "m", SK: "m"}, Data: []byte("1")}}}, nil
	}
	if _, err := Append(ctx, db, "s", facts(1), marker); err != nil {
		t.Fatal(err)
	}
	// The marker is there: its conflict is the caller's, and nothing is appended.
	if _, err := Append(ctx, db, "s", facts(1), marker); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("marker's conflict: %v", err)
	}
	if evs, err := Append(ctx, db, "s", nil, nil); evs != nil || err != nil {
		t.Errorf("nothing to append: %v %v", evs, err)
	}
	if h, _, err := LoadHead(ctx, db, "s"); err != nil || h.Next != 2 {
		t.Errorf("head %+v, %v", h, err)
	}
}

// TestBurst: 10,000 events at once, whole and in order.
func TestBurst(t *testing.T) {
	t.Parallel()
	db := openDB(t)
	evs := facts(10_000)
	for rest := evs; len(rest) > 0; {
		n := Fit(rest)
		put(t, db, "clu_a", n, rest[:n]...)
		rest = rest[n:]
	}
	got, _ := drain(t, &Reader{Ledger: db}, Query{Cluster: "clu_a", Limit: 200})
	if len(got) != len(evs) {
		t.Fatalf("%d events", len(got))
	}
	if !slices.EqualFunc(got, evs, func(a, b Event) bool { return a.ID == b.ID && string(a.Detail) == string(b.Detail) }) {
		t.Error("not the same events")
	}
}
