package dynamo

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

var _ ledger.Foreseer = (*DB)(nil)

// NextDue implements ledger.Foreseer by the due index alone: one key from each
// of its parts, and no item.
func (db *DB) NextDue(ctx context.Context, after, until time.Time) (time.Time, error) {
	m := &merge{}
	s := span{low: storedTime(after.Add(time.Millisecond)), high: storedTime(until)}
	for n := range db.shards {
		m.runs = append(m.runs, &run{index: indexDue, place: placeDue, partition: duePartition(n), span: s, page: 1})
	}
	hints, err := m.take(ctx, db, 1)
	if err != nil {
		return time.Time{}, fmt.Errorf("read what is due next: %w", err)
	}
	if len(hints) == 0 {
		return time.Time{}, nil
	}
	return timeOf(hints[0].sort)
}
