package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Published is how far relay is with an operation: the last journal entry that
// is in the stream, and the last ring that was sent.
type Published struct {
	Seq  int64      `json:"seq"`
	Rung *time.Time `json:"rung,omitempty"`
	// Version of the item, for the conditional write; not stored.
	Version int64 `json:"-"`
}

// Published reads how far relay is with each of the operations.
func (st *Store) Published(ctx context.Context, ids []string) (map[string]Published, error) {
	out := make(map[string]Published, len(ids))
	for len(ids) > 0 {
		part := ids[:min(ledger.MaxWrites, len(ids))]
		ids = ids[len(part):]
		keys := make([]ledger.Key, len(part))
		for i, id := range part {
			keys[i] = pubKey(id)
		}
		items, err := st.Ledger.GetMany(ctx, keys)
		if err != nil {
			return nil, fmt.Errorf("read published: %w", err)
		}
		for _, id := range part {
			it, ok := items[pubKey(id)]
			if !ok {
				continue
			}
			p, err := Decode[Published](it)
			if err != nil {
				return nil, err
			}
			p.Version = it.Version
			out[id] = p
		}
	}
	return out, nil
}

// PublishedWrite keeps how far relay is, conditional on the version read.
func PublishedWrite(id string, p Published) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: pubKey(id), Data: Encode(p)}, Expect: p.Version}
}

// position is the data of a feed reader's item.
type position struct {
	Position string `json:"position"`
}

// Position reads how far a reader of the feed is; "" at first.
func (st *Store) Position(ctx context.Context, reader string) (string, error) {
	it, err := st.Ledger.Get(ctx, FeedKey(reader))
	if errors.Is(err, ledger.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read feed position: %w", err)
	}
	p, err := Decode[position](it)
	return p.Position, err
}

// SavePosition keeps how far a reader of the feed is.
func (st *Store) SavePosition(ctx context.Context, reader, at string) error {
	return st.Ledger.Commit(ctx, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{Key: FeedKey(reader), Data: Encode(position{at})}})
}
