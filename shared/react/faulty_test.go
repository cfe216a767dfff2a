package react

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// faulty is a ledger whose calls fail now and then: before they do anything, or,
// of commits, after. It says so or says that it does not know.
type faulty struct {
	ledger.Ledger
	mu     sync.Mutex
	rand   *rand.Rand
	chance float64
	failed int
}

func (l *faulty) fails() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rand.Float64() >= l.chance {
		return false
	}
	l.failed++
	return true
}

func unavailable(what string) error { return fmt.Errorf("%s: %w", what, ledger.ErrUnavailable) }

func (l *faulty) Get(ctx context.Context, k ledger.Key) (ledger.Item, error) {
	if l.fails() {
		return ledger.Item{}, unavailable("get")
	}
	return l.Ledger.Get(ctx, k)
}

func (l *faulty) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	if l.fails() {
		return nil, unavailable("get many")
	}
	return l.Ledger.GetMany(ctx, ks)
}

func (l *faulty) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	if l.fails() {
		return ledger.Page{}, unavailable("query")
	}
	return l.Ledger.Query(ctx, q)
}

func (l *faulty) Due(ctx context.Context, until time.Time, limit int) ([]ledger.Item, error) {
	return l.Ledger.Due(ctx, until, limit)
}

func (l *faulty) Commit(ctx context.Context, ws ...ledger.Write) error {
	if l.fails() {
		return unavailable("commit")
	}
	err := l.Ledger.Commit(ctx, ws...)
	if err == nil && l.fails() {
		return fmt.Errorf("commit: %w", ledger.ErrUnknown) // it was applied
	}
	return err
}
