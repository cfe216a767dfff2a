package react

import (
	"context"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Take follows the streams that the records are about. One that fails leaves the
// others alone; it returns those that failed, with the first errors.
func (r *Reactor) Take(ctx context.Context, changes []ledger.Change) (failed []string, err error) {
	streams, all := record.Wakes(changes)
	if all {
		return r.All(ctx)
	}
	return r.Each(ctx, streams)
}

// Each follows the streams; see Take.
func (r *Reactor) Each(ctx context.Context, streams []string) (failed []string, err error) {
	for _, s := range streams {
		if e := r.Follow(ctx, s); e != nil {
			failed = append(failed, s)
			if len(failed) <= 5 { // enough to tell
				err = errors.Join(err, e)
			}
		}
	}
	return failed, err
}

// All follows every stream that there is.
func (r *Reactor) All(ctx context.Context) (failed []string, err error) {
	streams, err := event.Streams(ctx, r.Store)
	if err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	return r.Each(ctx, streams)
}
