package dynamo

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Commit implements ledger.Ledger.
func (db *DB) Commit(ctx context.Context, writes ...ledger.Write) error {
	return fmt.Errorf("%w: not yet", ledger.ErrUnavailable)
}

// Get implements ledger.Reader.
func (db *DB) Get(ctx context.Context, k ledger.Key) (ledger.Item, error) {
	return ledger.Item{}, fmt.Errorf("%w: not yet", ledger.ErrUnavailable)
}

// GetMany implements ledger.Reader.
func (db *DB) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	return nil, fmt.Errorf("%w: not yet", ledger.ErrUnavailable)
}

// Query implements ledger.Reader.
func (db *DB) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	return ledger.Page{}, fmt.Errorf("%w: not yet", ledger.ErrUnavailable)
}

// Due implements ledger.Reader.
func (db *DB) Due(ctx context.Context, until time.Time, limit int) ([]ledger.Item, error) {
	return nil, fmt.Errorf("%w: not yet", ledger.ErrUnavailable)
}
