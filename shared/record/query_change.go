package record

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// ManualChange is a repair that a person made by hand.
type ManualChange struct {
	ID            string          `json:"id"`
	TargetID      string          `json:"target_id"`
	TargetName    string          `json:"target_name"`
	Cluster       string          `json:"cluster,omitempty"`
	Reason        string          `json:"reason"`
	Runbook       string          `json:"runbook,omitempty"`
	Actor         operation.Actor `json:"actor"`
	At            time.Time       `json:"at"`
	CorrelationID string          `json:"correlation_id"`
}

// ChangeWrites are the writes that keep a manual change, with the reference
// from what was changed.
func ChangeWrites(c ManualChange) []ledger.Write {
	return []ledger.Write{
		{Item: ledger.Item{Key: ChangeKey(c.ID), Data: Encode(c), Index: map[ledger.Index]ledger.Key{
			ledger.List: {PK: ListChanges, SK: TimeSort(c.At, c.ID)},
		}}},
		{Item: ledger.Item{Key: refKey(c.TargetID, c.ID, c.At), Data: []byte("{}")}},
	}
}

// ManualChange reads a manual change, or ledger.ErrNotFound.
func (st *Store) ManualChange(ctx context.Context, id string) (ManualChange, error) {
	it, err := st.Ledger.Get(ctx, ChangeKey(id))
	if err != nil {
		return ManualChange{}, fmt.Errorf("manual change %s: %w", id, err)
	}
	return Decode[ManualChange](it)
}

// ManualChanges reads a part of the list of manual changes, by time.
func (st *Store) ManualChanges(ctx context.Context, sp Span) (changes []ManualChange, more bool, err error) {
	p, err := st.Ledger.Query(ctx, sp.query(ledger.Query{Index: ledger.List, PK: ListChanges}))
	if err != nil {
		return nil, false, fmt.Errorf("list manual changes: %w", err)
	}
	for _, it := range p.Items {
		c, err := Decode[ManualChange](it)
		if err != nil {
			return nil, false, err
		}
		changes = append(changes, c)
	}
	return changes, p.Next != "", nil
}
