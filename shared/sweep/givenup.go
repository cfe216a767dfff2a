package sweep

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/queue"
)

// GivenUpQueue is where an engine tells of records of its change feed that it
// could not make relay take: that there were some, not which.
const GivenUpQueue = "stream-dead"

const (
	// mendSince is how long before they were given up the operations may have been
	// created that records were about: the longest deadline is 30 days.
	mendSince = 31 * 24 * time.Hour
	// givenUpHeld is how long one look at the queue may take before another may
	// begin.
	givenUpHeld = 5 * time.Minute
)

// GivenUp looks whether records of the change feed were given up. If so, it
// keeps each notice as a dead letter and has relay go through every operation
// that they can have been about: what they told is dispatched and published
// after all. It returns how many notices it dealt with; a notice stays until all
// of that is done.
func (s *Sweep) GivenUp(ctx context.Context, q queue.Receiver) (int, error) {
	ms, err := q.Receive(ctx, GivenUpQueue, queue.MaxBatch, 0, givenUpHeld)
	if err != nil {
		return 0, fmt.Errorf("look for records given up: %w", err)
	}
	if len(ms) == 0 {
		return 0, nil
	}
	now := s.Store.Now()
	s.Logger.ErrorContext(ctx, "records of the change feed were given up: going through the operations", "notices", len(ms))
	receipts := make([]string, len(ms))
	for i, m := range ms {
		receipts[i] = m.Receipt
		l := queue.DeadLetter{ID: m.ID, Queue: GivenUpQueue, Body: m.Body, Reason: "records of the change feed were given up", At: now}
		if err := Keep(ctx, s.Store, l); err != nil {
			return 0, fmt.Errorf("keep a notice of records given up: %w", err)
		}
	}
	if err := s.Relay.Mend(ctx, now.Add(-mendSince)); err != nil {
		return 0, fmt.Errorf("mend what given up records told of: %w", err)
	}
	if err := q.Delete(ctx, GivenUpQueue, receipts...); err != nil {
		return 0, fmt.Errorf("delete notices of records given up: %w", err)
	}
	return len(ms), nil
}
