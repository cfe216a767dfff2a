package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// busBehindFor is how long an event may wait for the bus before it counts as
// forgotten: until then whoever appended it may still be at it.
const busBehindFor = 30 * time.Second

// Mend publishes and dispatches whatever fell behind among the operations that
// were created since then (the zero time: all), ended ones too: some records of
// the feed were never seen. Nothing that is up to date is written.
//
// It goes on behind the place at which an earlier call stopped ("": it begins).
// With an error it returns the place up to which all is done.
func (r *Relay) Mend(ctx context.Context, since time.Time, after string) (stopped string, err error) {
	q := ledger.Query{Index: ledger.List, PK: record.ListOperations, Limit: 200, After: after}
	if !since.IsZero() {
		q.From = record.TimeSort(since, "")
	}
	return r.walk(ctx, q, func(ids []string) error {
		if _, _, _, err := r.dispatchAll(ctx, ids, nil); err != nil {
			return err
		}
		_, _, err := r.publishAll(ctx, ids, nil)
		return err
	})
}

// MendLive publishes whatever fell behind among the operations that have not
// ended. What is to be dispatched the due index tells of.
func (r *Relay) MendLive(ctx context.Context) error {
	_, err := r.walk(ctx, ledger.Query{Index: ledger.Live, PK: record.ListOperations, Limit: 200}, func(ids []string) error {
		_, _, err := r.publishAll(ctx, ids, nil)
		return err
	})
	return err
}

// walk goes through a list of operations, a page at a time. With an error it
// returns the place of the page that it is about.
func (r *Relay) walk(ctx context.Context, q ledger.Query, do func(ids []string) error) (stopped string, err error) {
	for {
		p, err := r.Store.Ledger.Query(ctx, q)
		if err != nil {
			return q.After, fmt.Errorf("list operations: %w", err)
		}
		ids := make([]string, 0, len(p.Items))
		for _, it := range p.Items {
			if id := record.OperationOf(it.Key); id != "" {
				ids = append(ids, id)
			}
		}
		if err := do(ids); err != nil {
			return q.After, err
		}
		if p.Next == "" {
			return "", nil
		}
		q.After = p.Next
	}
}

// MendBus puts on the bus what was forgotten in any stream: its head is ahead of
// the bus, and has been for a while. It costs two reads a stream when nothing is
// behind.
func (r *Relay) MendBus(ctx context.Context) error {
	if r.Bus == nil {
		return nil
	}
	streams, err := event.Streams(ctx, r.Store)
	if err != nil {
		return err
	}
	var errs error
	for len(streams) > 0 {
		part := streams[:min(ledger.MaxWrites/2, len(streams))]
		streams = streams[len(part):]
		keys := make([]ledger.Key, 0, 2*len(part))
		for _, s := range part {
			keys = append(keys, record.StreamHeadKey(s), record.StreamBusKey(s))
		}
		items, err := r.Store.Ledger.GetMany(ctx, keys)
		if err != nil {
			return errors.Join(errs, fmt.Errorf("read heads of streams: %w", err))
		}
		for _, s := range part {
			errs = errors.Join(errs, r.mendBus(ctx, s, items))
		}
	}
	return errs
}

// mendBus mends one stream, by its head and its position on the bus.
func (r *Relay) mendBus(ctx context.Context, stream string, items map[ledger.Key]ledger.Item) error {
	it, ok := items[record.StreamHeadKey(stream)]
	if !ok {
		return nil
	}
	head, err := record.Decode[event.Head](it)
	if err != nil {
		return err
	}
	pos, _, err := position(items[record.StreamBusKey(stream)])
	if err != nil || pos.Next >= head.Next {
		return err
	}
	evs, head, err := event.ReadStream(ctx, r.Store.Ledger, stream, max(pos.Next, head.Low), 1)
	var expired *event.ExpiredError
	if err != nil && !errors.As(err, &expired) {
		return err
	}
	if len(evs) > 0 && r.Store.Now().Sub(head.Truly(&evs[0])) < busBehindFor {
		return nil
	}
	r.Logger.WarnContext(ctx, "a stream was forgotten on its way to the bus", "stream", stream, "from", pos.Next, "to", head.Next-1)
	return r.PublishBus(ctx, stream)
}
