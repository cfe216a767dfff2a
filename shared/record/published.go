package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// Published is how far relay is with an operation: the last journal entry that
// is in the stream.
type Published struct {
	Seq int64 `json:"seq"`
	// Version of the item, for the conditional write; not stored.
	Version int64 `json:"-"`
}

// PublishedWrite keeps how far relay is, conditional on the version read.
func PublishedWrite(id string, p Published) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: pubKey(id), Data: Encode(p)}, Expect: p.Version}
}

// LateWrite notes that an operation could not be published, and is to be at the
// time.
func LateWrite(id string, due time.Time) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: lateKey(id), Data: []byte("{}"), Due: dueMilli(due)}, Expect: ledger.AnyVersion}
}

// LateDone takes a note of that version back.
func LateDone(id string, version int64) ledger.Write {
	return ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: lateKey(id)}, Expect: version}
}

// Glance is the part of an operation's state that relay decides by: most feed
// records need no more, and reading less is what it costs least.
type Glance struct {
	Format     int                      `json:"format"`
	ID         string                   `json:"id"`
	Cluster    string                   `json:"cluster"`
	Parent     string                   `json:"parent"`
	Phase      operation.Phase          `json:"phase"`
	Generation int64                    `json:"generation"`
	Lease      *struct{}                `json:"lease"`
	Cancel     *operation.CancelRequest `json:"cancel"`
	RungAt     *time.Time               `json:"rung_at"`
	Rings      int                      `json:"rings"`
	Journal    operation.JournalHead    `json:"journal"`
	PlaneLocal bool                     `json:"plane_local"`

	RawTail json.RawMessage `json:"tail"` // decoded when it is wanted
	entries []operation.Entry
}

// tail are the newest entries of the journal, as they rode with the state.
func (g *Glance) tail() ([]operation.Entry, error) {
	if g.entries == nil && len(g.RawTail) > 0 {
		if err := json.Unmarshal(g.RawTail, &g.entries); err != nil {
			return nil, fmt.Errorf("decode journal of %s: %w", g.ID, err)
		}
	}
	return g.entries, nil
}

func glanceOf(s *operation.State) Glance {
	g := Glance{ID: s.ID, Cluster: s.Cluster, Parent: s.Parent, Phase: s.Phase, Generation: s.Generation, Cancel: s.Cancel,
		RungAt: s.RungAt, Rings: s.Rings, Journal: s.Journal, PlaneLocal: s.PlaneLocal, entries: s.Tail}
	if s.Lease != nil {
		g.Lease = &struct{}{}
	}
	return g
}

// Glances reads that part of those operations that exist, and how far relay is
// with each.
func (st *Store) Glances(ctx context.Context, ids []string) (map[string]Glance, map[string]Published, error) {
	glances, pubs := make(map[string]Glance, len(ids)), make(map[string]Published, len(ids))
	for len(ids) > 0 {
		part := ids[:min(ledger.MaxWrites/2, len(ids))]
		ids = ids[len(part):]
		keys := make([]ledger.Key, 0, 2*len(part))
		for _, id := range part {
			if r := st.current(id); r != nil {
				glances[id] = glanceOf(&r.state)
			} else {
				keys = append(keys, StateKey(id))
			}
			keys = append(keys, pubKey(id))
		}
		items, err := st.Ledger.GetMany(ctx, keys)
		if err != nil {
			return nil, nil, fmt.Errorf("glance at operations: %w", err)
		}
		for _, id := range part {
			if it, ok := items[StateKey(id)]; ok {
				if glances[id], err = Decode[Glance](it); err != nil {
					return nil, nil, err
				}
			}
			it, ok := items[pubKey(id)]
			if !ok {
				continue
			}
			p, err := Decode[Published](it)
			if err != nil {
				return nil, nil, err
			}
			p.Version = it.Version
			pubs[id] = p
		}
	}
	return glances, pubs, nil
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

// ForgetPositions drops how far readers were that have come to their end, at most
// ledger.MaxWrites.
func (st *Store) ForgetPositions(ctx context.Context, readers ...string) error {
	ws := make([]ledger.Write, len(readers))
	for i, r := range readers {
		ws[i] = ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: FeedKey(r)}}
	}
	return st.Ledger.Commit(ctx, ws...)
}

// SavePosition keeps how far a reader of the feed is.
func (st *Store) SavePosition(ctx context.Context, reader, at string) error {
	return st.Ledger.Commit(ctx, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{Key: FeedKey(reader), Data: Encode(position{at})}})
}
