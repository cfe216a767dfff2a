package sweep

import (
	"cmp"
	"context"
	"errors"
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
// of that is done. That may take longer than one look has: the next goes on where
// it stopped, before it begins with what was given up since.
func (s *Sweep) GivenUp(ctx context.Context, q queue.Receiver) (int, error) {
	ms, err := q.Receive(ctx, GivenUpQueue, queue.MaxBatch, 0, givenUpHeld)
	if err != nil {
		return 0, fmt.Errorf("look for records given up: %w", err)
	}
	if len(ms) == 0 {
		return 0, nil
	}
	ms, place, err := s.begun(ctx, ms)
	if err != nil {
		return 0, err
	}
	now := s.Store.Now()
	s.Logger.ErrorContext(ctx, "records of the change feed were given up: going through the operations", "notices", len(ms))
	receipts, walks := make([]string, len(ms)), make([]string, len(ms))
	for i, m := range ms {
		receipts[i], walks[i] = m.Receipt, walkFor(m)
		l := queue.DeadLetter{ID: m.ID, Queue: GivenUpQueue, Body: m.Body, Reason: "records of the change feed were given up", At: now}
		if err := Keep(ctx, s.Store, l); err != nil {
			return 0, fmt.Errorf("keep a notice of records given up: %w", err)
		}
	}
	if stopped, err := s.Relay.Mend(ctx, now.Add(-mendSince), place); err != nil {
		err = fmt.Errorf("mend what given up records told of: %w", err)
		for _, w := range walks {
			err = errors.Join(err, s.Store.SavePosition(context.WithoutCancel(ctx), w, stopped))
		}
		return 0, err
	}
	if place != "" {
		if err := s.Store.ForgetPositions(ctx, walks...); err != nil {
			return 0, fmt.Errorf("forget where mending stopped: %w", err)
		}
	}
	if err := q.Delete(ctx, GivenUpQueue, receipts...); err != nil {
		return 0, fmt.Errorf("delete notices of records given up: %w", err)
	}
	return len(ms), nil
}

// walkFor names the walk through the operations that a notice asks for.
func walkFor(m queue.Message) string { return GivenUpQueue + "#" + m.ID }

// begun picks the notices whose walk began in an earlier look, and the place at
// which it stopped; when there are none, all, and the beginning. What is left out
// comes again: the part that was walked does not count for it.
func (s *Sweep) begun(ctx context.Context, ms []queue.Message) (of []queue.Message, place string, err error) {
	at := map[string][]queue.Message{}
	for _, m := range ms {
		p, err := s.Store.Position(ctx, walkFor(m))
		if err != nil {
			return nil, "", fmt.Errorf("read where mending stopped: %w", err)
		}
		at[p] = append(at[p], m)
		place = cmp.Or(place, p)
	}
	return at[place], place, nil
}
