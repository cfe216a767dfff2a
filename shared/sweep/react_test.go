package sweep_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
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
