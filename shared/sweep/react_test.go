package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/sweep"
)

// A stream of which an alert rule's timer is due is judged; one that is not due
// yet is left, and one that cannot be judged is due again.
func TestStreamsAreJudgedWhenDue(t *testing.T) {
	t.Parallel()
	now := t0
	db, err := ledgersqlite.Open(t.Context(), ledgersqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for i, stream := range []string{"clu_a", "clu_b", "plane"} {
		it := ledger.Item{Key: record.JudgedKey(stream), Data: []byte("{}"), Due: t0.Add(time.Duration(i) * time.Minute)}
		if err := db.Commit(t.Context(), ledger.Write{Item: it}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var judged []string
	s := &sweep.Sweep{Store: &record.Store{Ledger: db, Now: func() time.Time { return now }}, Logger: slog.New(slog.DiscardHandler),
		React: func(_ context.Context, stream string) error {
			mu.Lock()
			defer mu.Unlock()
			judged = append(judged, stream)
			if stream == "clu_b" {
				return errors.New("no")
			}
			return db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: record.JudgedKey(stream), Data: []byte("{}")}, Expect: 1})
		}}
	for _, want := range []struct {
		after  time.Duration
		judged []string
		failed int
	}{{0, []string{"clu_a"}, 0}, {time.Minute, []string{"clu_b"}, 1}, {2 * time.Minute, []string{"clu_b", "plane"}, 1}} {
		now, judged = t0.Add(want.after), nil
		res, err := s.Pass(t.Context())
		slices.Sort(judged)
		if err != nil || !slices.Equal(judged, want.judged) || res.Failed != want.failed {
			t.Errorf("after %s: judged %v, failed %d, %v; want %v", want.after, judged, res.Failed, err, want.judged)
		}
	}
}

// TestHandedOnHoldsUpNothing: streams that are handed on stay due until they have
// been judged; however many there are, the sweep comes to its end, and to what is due
// behind them.
func TestHandedOnHoldsUpNothing(t *testing.T) {
	t.Parallel()
	db, err := ledgersqlite.Open(t.Context(), ledgersqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Now: func() time.Time { return t0 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	put := func(key ledger.Key, due time.Time) {
		t.Helper()
		if err := db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: key, Data: []byte("{}"), Due: due}}); err != nil {
			t.Fatal(err)
		}
	}
	const n = 1100 // more than a page of the ledger's
	for i := range n {
		put(record.JudgedKey(fmt.Sprint("clu_", i)), t0.Add(-time.Hour+time.Duration(i/400)*time.Second))
	}
	last := record.LaneKey("rcv_last")
	put(last, t0.Add(-time.Minute))
	served := make(chan struct{}, 1)
	var handedOn atomic.Int64
	s := &sweep.Sweep{Store: &record.Store{Ledger: db, Now: func() time.Time { return t0 }}, Logger: slog.New(slog.DiscardHandler),
		React: func(context.Context, string) error {
			handedOn.Add(1)
			return fmt.Errorf("judge: %w", sweep.ErrHandedOn)
		},
		Notify: func(ctx context.Context, key ledger.Key) error {
			served <- struct{}{}
			return db.Commit(ctx, ledger.Write{Kind: ledger.Delete, Expect: 1, Item: ledger.Item{Key: key}})
		}}
	for range 2 { // the second pass knows how many there are
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		res, err := s.Run(ctx)
		cancel()
		if err != nil || res.Failed != 0 || res.Err != nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if len(served) != 1 || handedOn.Load() < n {
		t.Errorf("served %d, handed on %d of %d", len(served), handedOn.Load(), n)
	}
}
