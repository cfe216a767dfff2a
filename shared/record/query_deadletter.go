package record

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// DeadLetter is a message that no reader could deal with, kept by the sweep
// when it takes it off its queue's engine.
type DeadLetter struct {
	ID        string     `json:"id"`
	Queue     string     `json:"queue"`
	Cluster   string     `json:"cluster,omitempty"`
	Operation string     `json:"operation,omitempty"` // of a doorbell
	Body      string     `json:"body"`
	Reason    string     `json:"reason"`
	At        time.Time  `json:"at"`
	Redriven  *time.Time `json:"redriven,omitempty"`
}

// DeadLetterKept is how long dead letters are kept.
const DeadLetterKept = 90 * 24 * time.Hour

// DeadLetterItem is the item of a dead letter.
func DeadLetterItem(d DeadLetter) ledger.Item {
	return ledger.Item{Key: DeadLetterKey(d.ID), Data: Encode(d), Expires: d.At.Add(DeadLetterKept), Index: map[ledger.Index]ledger.Key{
		ledger.List: {PK: ListDead, SK: TimeSort(d.At, d.ID)},
	}}
}

// DeadLetter reads a dead letter with the version of its item.
func (st *Store) DeadLetter(ctx context.Context, id string) (DeadLetter, int64, error) {
	it, err := st.Ledger.Get(ctx, DeadLetterKey(id))
	if err != nil {
		return DeadLetter{}, 0, fmt.Errorf("dead letter %s: %w", id, err)
	}
	d, err := Decode[DeadLetter](it)
	return d, it.Version, err
}

// DeadLetters reads a part of the list of dead letters, by time.
func (st *Store) DeadLetters(ctx context.Context, sp Span) (letters []DeadLetter, more bool, err error) {
	p, err := st.Ledger.Query(ctx, sp.query(ledger.Query{Index: ledger.List, PK: ListDead}))
	if err != nil {
		return nil, false, fmt.Errorf("list dead letters: %w", err)
	}
	for _, it := range p.Items {
		d, err := Decode[DeadLetter](it)
		if err != nil {
			return nil, false, err
		}
		letters = append(letters, d)
	}
	return letters, p.Next != "", nil
}
