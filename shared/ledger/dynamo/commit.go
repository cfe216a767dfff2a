package dynamo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/opsplane/opsplane/shared/ledger"
)

// tokenWindow is for how long a token surely tells DynamoDB a repeated
// transaction from a new one: a minute less than AWS promises
// (TransactWriteItems, "Idempotency": 10 minutes).
const tokenWindow = 9 * time.Minute

// Commit implements ledger.Ledger. A single put is one UpdateItem and a single
// check one strongly consistent read; anything else, a single delete too, is
// one TransactWriteItems, at twice the write units.
//
// When ctx ends before anything was sent, or while it is known that nothing was
// written, ctx's error is returned. An attempt under way is waited for, at most
// a second; see ledger.ErrUnknown for when even that does not settle it.
func (db *DB) Commit(ctx context.Context, writes ...ledger.Write) error {
	if err := ledger.Validate(writes); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	a, err := db.newAttempt(writes)
	if err != nil {
		return err
	}
	switch {
	case len(a.writes) == 0:
	case len(a.writes) == 1 && a.writes[0].Kind == ledger.Check:
		err = db.check(ctx, &a.writes[0])
	default:
		err = db.settle(ctx, a)
	}
	switch {
	case err == nil:
		db.counts.commits.Add(1)
	case errors.Is(err, ledger.ErrConflict):
		db.counts.conflicts.Add(1)
	}
	return err
}

// check is a commit that only requires one item's version.
func (db *DB) check(ctx context.Context, act *action) error {
	it, err := db.Get(ctx, act.Item.Key)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	if it.Version != act.Expect {
		return &ledger.ConflictError{Keys: []ledger.Key{act.Item.Key}}
	}
	return nil
}

// settle sends the attempt until its outcome is known: the SDK's own retries
// would not tell a conflict with another writer from one with ourselves.
func (db *DB) settle(ctx context.Context, a *attempt) error {
	began := time.Now()
	// life outlives ctx a little: an outcome that is unknown must be found out.
	life, end := context.WithTimeout(context.WithoutCancel(ctx), db.pause.budget+db.pause.attempt)
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(db.pause.settle, end) })()

	doubt := false // an earlier attempt may have been applied
	for try := 0; ; try++ {
		out := db.send(life, a)
		switch out.verdict {
		case applied:
			return nil
		case refused:
			again, err := db.weigh(ctx, a, out, doubt, began)
			if !again {
				return err
			}
			doubt = false
			a.renew(db)
		case invalid:
			if !doubt {
				return fmt.Errorf("%w: DynamoDB takes %d bytes an item, %d a transaction: %w", ledger.ErrInvalid, maxItem, maxTransaction, out.err)
			}
		case forbidden:
			if !doubt {
				return fmt.Errorf("commit %d writes: %w: %w", len(a.writes), ledger.ErrUnavailable, out.err)
			}
		case contended:
			db.counts.contended.Add(1)
		case throttled:
			db.counts.throttled.Add(1)
		case unanswered:
			db.counts.unanswered.Add(1)
			if !doubt && life.Err() == nil { // at once: the sooner, the less has happened to the items since
				doubt = true
				continue
			}
			doubt = true
		}
		over := time.Since(began) >= db.pause.budget // no attempt begins that would be cut off
		if doubt {
			if over || db.pause.wait(life, try) != nil {
				return fmt.Errorf("commit %d writes: %w: %w", len(a.writes), ledger.ErrUnknown, errors.Join(ctx.Err(), out.err))
			}
			continue
		}
		if !over && db.pause.wait(ctx, try) == nil && life.Err() == nil {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("commit %d writes: %w: %w", len(a.writes), ledger.ErrUnavailable, out.err)
	}
}

// weigh says what failed conditions mean: nil when the commit itself had made
// them fail, a conflict, or that it must be sent again in another form.
func (db *DB) weigh(ctx context.Context, a *attempt, out outcome, doubt bool, began time.Time) (again bool, err error) {
	var conflict ledger.ConflictError
	for i, old := range out.failed {
		act := &a.writes[i]
		if act.Kind == ledger.Put && a.wrote(old) {
			db.counts.recovered.Add(1)
			db.log.InfoContext(ctx, "ledger commit found applied after its answer was lost", slog.Int("writes", len(a.writes)))
			return false, nil // one of its writes is there, so all are
		}
		if act.Expect != ledger.AnyVersion {
			continue
		}
		act.revive = expired(old, a.now)
		again = true
	}
	for i := range a.writes { // in the order of the call
		if _, ok := out.failed[i]; ok && a.writes[i].Expect != ledger.AnyVersion {
			conflict.Keys = append(conflict.Keys, a.writes[i].Item.Key)
		}
	}
	transaction := len(a.writes) > 1 || a.writes[0].Kind != ledger.Put
	if doubt && (!transaction || elapsed(began) > tokenWindow) && !a.missed(out.failed) {
		return false, fmt.Errorf("commit %d writes: %w: its answer was lost, and the items have been written since", len(a.writes), ledger.ErrUnknown)
	}
	if conflict.Keys != nil {
		return false, &conflict
	}
	return again, nil
}

// wrote tells whether the commit was one of the last three to put the item.
func (a *attempt) wrote(old attributes) bool {
	for _, name := range []string{attrWrite, attrBefore, attrEarlier} {
		if b, ok := old[name].(*types.AttributeValueMemberB); ok && bytes.Equal(b.Value, a.name) {
			return true
		}
	}
	return false
}

// missed tells whether one of the items proves that the commit was not applied:
// a put would have left its version there, and its name until the third write
// after it.
func (a *attempt) missed(failed map[int]attributes) bool {
	for i := range a.writes {
		act := &a.writes[i]
		if act.Kind != ledger.Put || act.Expect == ledger.AnyVersion {
			continue
		}
		old, ok := failed[i]
		if !ok { // it still has the version from before
			return true
		}
		v, err := versionAt(old, a.now)
		if err == nil && v > act.Expect && v <= act.Expect+3 {
			return true
		}
	}
	return false
}

// elapsed is the longer of what the monotonic and the wall clock say: the
// former may stand still while a function is frozen.
func elapsed(since time.Time) time.Duration {
	return max(time.Since(since), time.Now().Round(0).Sub(since.Round(0)))
}
