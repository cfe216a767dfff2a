package auth

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
)

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// counting is the ledger with a count of its calls and a switch.
type counting struct {
	ledger.Ledger
	reads, writes atomic.Int64
	down          atomic.Bool
}

func (l *counting) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	l.reads.Add(1)
	if l.down.Load() {
		return nil, ledger.ErrUnavailable
	}
	return l.Ledger.GetMany(ctx, ks)
}

func (l *counting) Commit(ctx context.Context, ws ...ledger.Write) error {
	l.writes.Add(1)
	if l.down.Load() {
		return ledger.ErrUnavailable
	}
	return l.Ledger.Commit(ctx, ws...)
}

type bundle struct {
	*testing.T
	clock  *clock
	ledger *counting
	store  *Store
}

func setup(t *testing.T) *bundle {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bundle{T: t, clock: newClock(), ledger: &counting{Ledger: db}}
	b.store = b.other()
	return b
}

// other is the store of another process.
func (b *bundle) other() *Store { return NewStore(b.ledger, b.clock.now) }

func (b *bundle) create(spec TokenSpec) (Token, string) {
	b.Helper()
	if spec.Name == "" {
		spec.Name = "test"
	}
	t, bearer, err := b.store.Create(b.Context(), spec)
	if err != nil {
		b.Fatal(err)
	}
	return t, bearer
}
