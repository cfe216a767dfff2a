package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// historyKey is the key of where the history of operations begins.
var historyKey = ledger.Key{PK: "meta", SK: "history"}

// ProbeKey is the key of an item that is written to see whether the ledger takes
// writes. It says nothing.
var ProbeKey = ledger.Key{PK: "meta", SK: "probe"}

type history struct {
	Begins time.Time `json:"begins"`
}

// HistoryBegins is the instant before which finished operations may have been
// deleted; zero: nothing was.
func (st *Store) HistoryBegins(ctx context.Context) (time.Time, error) {
	it, err := st.Ledger.Get(ctx, historyKey)
	if errors.Is(err, ledger.ErrNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read where history begins: %w", err)
	}
	h, err := Decode[history](it)
	return h.Begins, err
}

// SetHistoryBegins moves the instant forward.
func (st *Store) SetHistoryBegins(ctx context.Context, at time.Time) error {
	have, err := st.HistoryBegins(ctx)
	if err != nil || !at.After(have) {
		return err
	}
	return st.Ledger.Commit(ctx, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{Key: historyKey, Data: Encode(history{at.UTC()})}})
}

// DeleteOperation deletes an ended operation with all its parts and references.
// The state goes last, so that a walk that was cut short is taken up again.
func (st *Store) DeleteOperation(ctx context.Context, id string) error {
	op, err := st.Load(ctx, id)
	if err != nil {
		return err
	}
	if !op.State.Phase.Terminal() {
		return fmt.Errorf("operation %s is %s: %w", id, op.State.Phase, ledger.ErrConflict)
	}
	var keys []ledger.Key
	for _, r := range op.Spec.Resources {
		keys = append(keys, refKey(r, id, op.Spec.CreatedAt))
	}
	q := ledger.Query{PK: OperationPK(id)}
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return fmt.Errorf("read parts of %s: %w", id, err)
		}
		for _, it := range p.Items {
			// How far it was published goes last too: a relay that still comes by
			// must not publish what is left a second time.
			if it.SK != skState && it.SK != skSpec && it.SK != skPub {
				keys = append(keys, it.Key)
			}
		}
		if p.Next == "" {
			break
		}
		q.After = p.Next
	}
	gone := func(k ledger.Key, version int64) ledger.Write {
		return ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: k}, Expect: version}
	}
	last := []ledger.Write{gone(StateKey(id), op.Version), gone(specKey(id), ledger.AnyVersion), gone(pubKey(id), ledger.AnyVersion)}
	for len(keys) > ledger.MaxWrites-len(last) {
		n := min(ledger.MaxWrites-1, len(keys))
		// A retry in the meantime keeps its history.
		ws := []ledger.Write{{Kind: ledger.Check, Item: ledger.Item{Key: StateKey(id)}, Expect: op.Version}}
		for _, k := range keys[:n] {
			ws = append(ws, gone(k, ledger.AnyVersion))
		}
		keys = keys[n:]
		if err := st.Ledger.Commit(ctx, ws...); err != nil {
			return fmt.Errorf("delete parts of %s: %w", id, err)
		}
	}
	for _, k := range keys { // mostly all: a check beside them would cost as much as the state
		last = append(last, gone(k, ledger.AnyVersion))
	}
	return st.Ledger.Commit(ctx, last...)
}
