package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// lateAfter is how long after an operation could not be published that is tried
// again: long enough that one which never can be costs little.
const lateAfter = 10 * time.Minute

// later notes that an operation is to be published later: once it has ended, no
// record tells of it any more.
func (r *Relay) later(ctx context.Context, id string) error {
	if err := r.Store.Ledger.Commit(ctx, record.LateWrite(id, r.Store.Now().Add(lateAfter))); err != nil {
		return fmt.Errorf("note that %s is to be published: %w", id, err)
	}
	return nil
}

// PublishLate publishes an operation that could not be published, by its note of
// that version. Where it still cannot be, the note is put off; an error tells that
// the ledger is away.
func (r *Relay) PublishLate(ctx context.Context, id string, version int64) error {
	_, passed, err := r.publishAll(ctx, []string{id}, nil)
	if err != nil || len(passed) > 0 {
		return err
	}
	err = r.Store.Ledger.Commit(ctx, record.LateDone(id, version))
	if errors.Is(err, ledger.ErrConflict) {
		return nil // it was passed over once more, or another was as fast
	}
	return err
}
