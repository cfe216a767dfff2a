package export

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/verify"
)

// Ledger is what can be exported: an engine that can be walked.
type Ledger interface {
	ledger.Reader
	ledger.Scanner
}

// LiveOperation is one that has not ended.
type LiveOperation struct {
	ID, Type, Target, Cluster string
	Phase                     operation.Phase
}

// Live lists the operations that have not ended. An operation must not go on in
// two planes: whoever moves a ledger has them end first, or marks them as
// restored on the copy and never starts the source again.
func Live(ctx context.Context, st *record.Store) ([]LiveOperation, error) {
	states, err := record.All[operation.State](ctx, st.Ledger, ledger.Query{Index: ledger.Live, PK: record.ListOperations})
	if err != nil {
		return nil, fmt.Errorf("list live operations: %w", err)
	}
	ids := make([]string, len(states))
	for i, s := range states {
		ids[i] = s.ID
	}
	specs, err := st.Specs(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("list live operations: %w", err)
	}
	found := make([]LiveOperation, len(states))
	for i, s := range states {
		sp := specs[s.ID]
		found[i] = LiveOperation{ID: s.ID, Type: sp.Request.Type, Target: sp.Request.Target, Cluster: s.Cluster, Phase: s.Phase}
	}
	return found, nil
}

// ErrUnsound: the ledger breaks a promise already, so it is not moved.
var ErrUnsound = errors.New("the ledger does not hold")

// holds proves the ledger's promises and counts what it holds.
func holds(ctx context.Context, l Ledger) (Holds, error) {
	r, err := verify.Run(ctx, &record.Store{Ledger: readOnly{l}}, time.Time{}, 0)
	if err != nil {
		return Holds{}, fmt.Errorf("export: verify: %w", err)
	}
	if r.Count > 0 {
		return Holds{}, fmt.Errorf("export: %w: %w", ErrUnsound, r.Err())
	}
	return Holds{Operations: r.Operations, Live: r.Live, Entries: r.Entries, Locks: r.Locks, Streams: r.Streams, Events: r.Events}, nil
}

// Write proves a ledger and writes it. Nobody writes to it meanwhile and its clock
// stands still. It is walked once to count and once for each stage.
func Write(ctx context.Context, l Ledger, source Source, now time.Time, to io.Writer) (Header, error) {
	h := Header{Format: Format, MadeAt: now.UTC().Truncate(time.Second), Source: source, Counts: map[string]int64{}}
	var err error
	if h.Holds, err = holds(ctx, l); err != nil {
		return h, err
	}
	behind, err := behindIn(ctx, l)
	if err != nil {
		return h, err
	}
	var perStage [stages]int64
	err = walk(ctx, l, behind, func(it *ledger.Item, at stage) error {
		h.Items++
		h.Counts[record.Kind(it.Key)]++
		perStage[at]++
		return nil
	})
	if err != nil {
		return h, fmt.Errorf("export: count: %w", err)
	}
	w := newWriter(to)
	if err := w.line(h); err != nil {
		return h, fmt.Errorf("export: %w", err)
	}
	written := int64(0)
	for part := range stages {
		if perStage[part] == 0 {
			continue
		}
		err := walk(ctx, l, behind, func(it *ledger.Item, at stage) error {
			if at != part {
				return nil
			}
			written++
			return w.line(newItem(it, at))
		})
		if err != nil {
			return h, fmt.Errorf("export: %w", err)
		}
	}
	if written != h.Items {
		return h, fmt.Errorf("export: %d items counted, %d written: somebody writes to the ledger", h.Items, written)
	}
	if err := w.line(trailer{End: true, Items: h.Items, Counts: h.Counts, SHA256: hex.EncodeToString(w.sum.Sum(nil))}); err != nil {
		return h, fmt.Errorf("export: %w", err)
	}
	if err := w.w.Flush(); err != nil {
		return h, fmt.Errorf("export: write stream: %w", err)
	}
	return h, nil
}

// walk calls f for each item that moves, and for each stream's place on the new
// bus, which is its end.
func walk(ctx context.Context, l Ledger, behind map[string]bool, f func(it *ledger.Item, at stage) error) error {
	return scan(ctx, l, func(items []ledger.Item) error {
		for i := range items {
			it := &items[i]
			if !moves(it.Key) {
				continue
			}
			at, err := stageOf(it, behind)
			if err != nil {
				return err
			}
			if err := f(it, at); err != nil {
				return err
			}
			if record.Kind(it.Key) != record.KindStream {
				continue
			}
			head, err := record.Decode[event.Head](*it)
			if err != nil {
				return err
			}
			bus := relay.BusFrom(record.StreamOf(it.Key), head.Next)
			if err := f(&bus, atRest); err != nil {
				return err
			}
		}
		return nil
	})
}

func scan(ctx context.Context, l Ledger, f func([]ledger.Item) error) error {
	for after := ""; ; {
		p, err := l.Scan(ctx, after, ledger.MaxPage)
		if err != nil {
			return err
		}
		if err := f(p.Items); err != nil {
			return err
		}
		if after = p.Next; after == "" {
			return nil
		}
	}
}

// behindIn finds the operations whose journals are not yet whole in their
// streams.
func behindIn(ctx context.Context, l Ledger) (map[string]bool, error) {
	st := &record.Store{Ledger: readOnly{l}}
	behind := map[string]bool{}
	err := scan(ctx, l, func(items []ledger.Item) error {
		var ids []string
		for i := range items {
			if id := record.OperationOf(items[i].Key); id != "" {
				ids = append(ids, id)
			}
		}
		glances, pubs, err := st.Glances(ctx, ids)
		if err != nil {
			return err
		}
		for id, g := range glances {
			if g.Journal.Seq > pubs[id].Seq {
				behind[id] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("export: compare journals with streams: %w", err)
	}
	return behind, nil
}

// readOnly is a ledger of which only the reads are used.
type readOnly struct{ ledger.Reader }

func (readOnly) Commit(context.Context, ...ledger.Write) error { return ledger.ErrUnavailable }
