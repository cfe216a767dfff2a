package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// An operation's place in the due index, State.DueAt, is when the sweep looks at
// it: at what is due next, or earlier. What becomes due later than the state has
// said stays where it is until that time has come, for a move costs two index
// entries, and most due times (that of a doorbell, of each lease) are overtaken
// by the next one. The sweep that comes early puts the operation where it
// belongs by then.

// dueAt settles an operation's place: it moves to what is due earlier.
func (st *Store) dueAt(s *operation.State) time.Time {
	due := dueMilli(st.Timing.Due(s))
	if due.IsZero() || s.DueAt.IsZero() || due.Before(s.DueAt) {
		s.DueAt = due
	}
	return s.DueAt
}

// dueMilli is an instant as a place in the due index, which has milliseconds:
// the first at which it has come. A sweep that found an item a part of one before
// it is due would do nothing, and could be the last to look for a minute.
func dueMilli(t time.Time) time.Time {
	if ms := t.Truncate(time.Millisecond); ms.Before(t) {
		return ms.Add(time.Millisecond)
	}
	return t
}

// lookAgain gives up a place whose time has come, so that the change finds a new
// one. What an agent says of running work leaves it: it comes often, and the
// sweep that was woken for that time is about to look.
func (st *Store) lookAgain(s *operation.State, c operation.Change) {
	switch c.(type) {
	case operation.Renew, operation.Report:
		return
	}
	if !s.DueAt.After(st.Now()) {
		s.DueAt = time.Time{}
	}
}

// Reschedule puts an operation that the sweep found before anything was due to
// the time at which something is. That may have come meanwhile: then it is due
// there, and whoever wakes the sweep is told of it by the commit.
func (st *Store) Reschedule(ctx context.Context, id string) error {
	err := Again(ctx, func() error {
		op, err := st.Load(ctx, id)
		if err != nil || op.State.DueAt.After(st.Now()) {
			return err // somebody else did
		}
		next := op.State
		next.DueAt = time.Time{}
		if st.dueAt(&next).Equal(op.State.DueAt) { // likewise, or it has ended
			return nil
		}
		writes := st.StateWrites(&next, op.Version, nil)
		writes[0].WasDue = op.State.DueAt
		if err := st.Ledger.Commit(ctx, writes...); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		st.committed(&next, op.Version+1)
		return nil
	})
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reschedule operation %s: %w", id, err)
	}
	return nil
}
