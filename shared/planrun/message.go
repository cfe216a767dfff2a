package planrun

import (
	"context"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/relay"
)

// Burier puts aside messages that nobody can read; a queue.Queue is one.
type Burier interface {
	Bury(ctx context.Context, queue string, m queue.Message, reason string) error
}

// Take deals with one message of the plane's queue: what cannot be read is put
// aside, what can be read brings its plan on. After nil the message is dealt with
// and may be deleted; after an error it is to come again.
func (r *Runner) Take(ctx context.Context, q Burier, m queue.Message) error {
	pm, err := relay.ParsePlane(m.Body)
	if errors.Is(err, relay.ErrUnreadable) {
		if err := q.Bury(ctx, relay.PlaneQueue, m, err.Error()); err != nil {
			return fmt.Errorf("put a message aside: %w", err)
		}
		return nil
	}
	if err := r.Advance(ctx, pm.Operation); err != nil {
		return fmt.Errorf("advance plan %s: %w", pm.Operation, err)
	}
	return nil
}
