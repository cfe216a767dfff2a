package relay

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// dispatchTries bounds how often what could not be dispatched is tried again
// before it is left to the sweep.
const dispatchTries = 3

// DispatchFeed moves on what the records tell of: see Dispatch. Operations that
// fail are tried again, and left to the sweep in the end: they must not hold up
// the others.
//
// With an error (the ledger is unavailable or lost an answer, or ctx has ended) it returns the
// records that must come again; the others are dealt with.
func (r *Relay) DispatchFeed(ctx context.Context, changes []ledger.Change) (again []ledger.Change, err error) {
	_, failed, _, err := r.dispatchAll(ctx, Operations(changes), nil)
	if err != nil {
		return about(changes, failed), err
	}
	return nil, nil
}

// dispatchAll dispatches all of the operations, first by a look that was taken
// before (nil: none). With an error failed are those that are not done; passed
// are those that it passed over.
func (r *Relay) dispatchAll(ctx context.Context, ids []string, seen map[string]record.Glance) (moved map[string]int64, failed, passed []string, err error) {
	moved = map[string]int64{}
	for try := range dispatchTries {
		if seen == nil {
			var unread []string
			if seen, unread, err = r.look(ctx, ids); err != nil {
				return moved, ids, passed, err
			}
			passed = append(passed, unread...)
		}
		var now map[string]int64
		now, failed, err = r.dispatchBy(ctx, ids, seen)
		maps.Copy(moved, now)
		if err == nil || stops(ctx, err) {
			return moved, failed, passed, err
		}
		ids, seen = failed, nil
		r.Logger.WarnContext(ctx, "operations not dispatched", "count", len(failed), "operation", failed[0], "err", err)
		pause(ctx, time.Duration(try+1)*100*time.Millisecond)
	}
	return moved, nil, append(passed, ids...), nil
}

// look glances at the operations. Those that cannot be read are told, and left out.
func (r *Relay) look(ctx context.Context, ids []string) (seen map[string]record.Glance, unread []string, err error) {
	if seen, _, err = r.Store.Glances(ctx, ids); err == nil || stops(ctx, err) {
		return seen, nil, err
	}
	seen = map[string]record.Glance{}
	for _, id := range ids { // to find out whose fault it is
		one, _, err := r.Store.Glances(ctx, []string{id})
		if stops(ctx, err) {
			return nil, nil, err
		}
		if err != nil {
			unread = append(unread, id)
			r.Logger.ErrorContext(ctx, "an operation cannot be read", "operation", id, "err", err)
		}
		maps.Copy(seen, one)
	}
	return seen, unread, nil
}

// PublishFeed puts the journals that the records tell of into their streams: see
// Publish. An operation that cannot be published is told and passed over, so
// that the others go on; its next record, or the sweep by a note, tries again.
//
// With an error (the ledger is unavailable or lost an answer, or ctx has ended) it returns the
// records that must come again; the others are dealt with.
func (r *Relay) PublishFeed(ctx context.Context, changes []ledger.Change) (again []ledger.Change, err error) {
	failed, _, err := r.publishAll(ctx, Operations(changes), nil)
	if err != nil {
		return about(changes, failed), err
	}
	return nil, nil
}

// publishAll publishes all of the operations, like dispatchAll.
func (r *Relay) publishAll(ctx context.Context, ids []string, seen *glances) (failed, passed []string, err error) {
	if err := r.publishBy(ctx, ids, seen); err == nil {
		return nil, nil, nil
	} else if stops(ctx, err) {
		return ids, nil, err
	}
	for i, id := range ids {
		err := r.Publish(ctx, []string{id})
		if stops(ctx, err) {
			return ids[i:], passed, err
		}
		if err != nil {
			passed = append(passed, id)
			r.Logger.ErrorContext(ctx, "an operation's events cannot be published", "operation", id, "err", err)
			if err := r.later(ctx, id); stops(ctx, err) {
				return ids[i:], passed, err
			} else if err != nil {
				r.Logger.ErrorContext(ctx, "that it is to be tried again cannot be noted", "operation", id, "err", err)
			}
		}
	}
	return nil, passed, nil
}

// BusFeed puts the streams whose heads the records tell of on the bus: see
// PublishBus. A stream that fails leaves the others alone.
func (r *Relay) BusFeed(ctx context.Context, changes []ledger.Change) error {
	var errs error
	seen := map[string]bool{}
	for _, c := range changes {
		if stream := record.StreamOf(c.Key); stream != "" && !seen[stream] {
			seen[stream] = true
			errs = errors.Join(errs, r.PublishBus(ctx, stream))
		}
	}
	return errs
}

// stops tells whether an error is no operation's own: nothing more can be done
// now, for any of them, or it is not known what was.
func stops(ctx context.Context, err error) bool {
	return err != nil && (errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrUnknown) || ctx.Err() != nil)
}

// about returns the records that are about the operations.
func about(changes []ledger.Change, ids []string) []ledger.Change {
	wanted := make(map[string]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	var out []ledger.Change
	for _, c := range changes {
		if wanted[record.OperationOf(c.Key)] {
			out = append(out, c)
		}
	}
	return out
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
