package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// markersPerAppend bounds the operations of one append: their markers and the
// events share a commit of ledger.MaxWrites, and event.Fit bounds the events.
const markersPerAppend = 30

// pending is what one operation has yet to publish: its events, each with the
// entry that it is, and how far its marker moves once all are in the stream.
type pending struct {
	op     string
	pub    record.Published
	events []event.Event
	seqs   []int64
	last   int64
}

// Publish puts the journals of the operations into their streams, from the last
// entry that is there. The append and the markers are one commit, so that a
// redelivered record finds nothing left to do and nothing is doubled.
func (r *Relay) Publish(ctx context.Context, ids []string) error {
	return r.publishBy(ctx, ids, nil)
}

// glances are what a look at operations showed.
type glances struct {
	states map[string]record.Glance
	pubs   map[string]record.Published
}

// publishBy is Publish by a look that was taken before (nil: none), as long as
// that holds.
func (r *Relay) publishBy(ctx context.Context, ids []string, seen *glances) error {
	for try := 0; ; try++ {
		if seen == nil {
			states, pubs, err := r.Store.Glances(ctx, ids)
			if err != nil {
				return err
			}
			seen = &glances{states, pubs}
		}
		streams, err := r.collect(ctx, ids, seen)
		if err != nil {
			return err
		}
		seen = nil
		err = nil
		for stream, ps := range streams {
			err = errors.Join(err, r.appendAll(ctx, stream, ps))
		}
		if err == nil || !errors.Is(err, ledger.ErrConflict) || try == 5 {
			return err
		}
	}
}

// collect finds what each operation has yet to publish, by stream.
func (r *Relay) collect(ctx context.Context, ids []string, seen *glances) (map[string][]pending, error) {
	behind := make([]string, 0, len(ids))
	for _, id := range ids {
		if g, ok := seen.states[id]; ok && g.Journal.Seq > seen.pubs[id].Seq {
			behind = append(behind, id)
		}
	}
	specs, err := r.Store.Specs(ctx, behind)
	if err != nil {
		return nil, err
	}
	streams := map[string][]pending{}
	for _, id := range behind {
		spec, ok := specs[id]
		if !ok { // deleted since
			continue
		}
		pub, g := seen.pubs[id], seen.states[id]
		entries, err := r.Store.JournalOf(ctx, &g, pub.Seq+1)
		if err != nil {
			return nil, err
		}
		p := pending{op: id, pub: pub, last: pub.Seq}
		for _, e := range entries {
			p.last = e.Seq
			if ev, ok := event.FromEntry(&spec, e); ok {
				p.events = append(p.events, ev)
				p.seqs = append(p.seqs, e.Seq)
			}
		}
		stream := event.StreamOf(spec.Cluster)
		streams[stream] = append(streams[stream], p)
	}
	return streams, nil
}

func (r *Relay) appendAll(ctx context.Context, stream string, ps []pending) error {
	for len(ps) > 0 {
		var evs []event.Event
		for _, p := range ps[:min(markersPerAppend, len(ps))] {
			evs = append(evs, p.events...)
		}
		evs = evs[:event.Fit(evs)]
		var marks []ledger.Write
		for room := len(evs); len(ps) > 0 && len(marks) < markersPerAppend; ps = ps[1:] {
			p := &ps[0]
			if n := len(p.events); n > room { // its journal goes on in the next append
				if room > 0 {
					p.pub.Seq = p.seqs[room-1]
					marks = append(marks, record.PublishedWrite(p.op, p.pub))
					p.pub.Version++
					p.events, p.seqs = p.events[room:], p.seqs[room:]
				}
				break
			}
			room -= len(p.events)
			p.pub.Seq = p.last
			marks = append(marks, record.PublishedWrite(p.op, p.pub))
		}
		var err error
		if len(evs) == 0 {
			err = r.Store.Ledger.Commit(ctx, marks...)
		} else {
			_, err = event.Append(ctx, r.Store.Ledger, stream, evs, func() ([]ledger.Write, error) { return marks, nil })
		}
		if err != nil {
			return fmt.Errorf("publish to %s: %w", stream, err)
		}
	}
	return nil
}

// busPosition is the data of a stream's bus item.
type busPosition struct {
	Next int64 `json:"next"` // the first sequence that is not on the bus
}

// BusFrom is the item that has a stream put on the bus from a sequence on, and
// nothing before it: for a stream that comes from elsewhere, whose events were
// told there.
func BusFrom(stream string, next int64) ledger.Item {
	return ledger.Item{Key: record.StreamBusKey(stream), Data: record.Encode(busPosition{Next: next})}
}

// position reads a stream's bus item, and its version. There is none (its zero
// value) before the first publication.
func position(it ledger.Item) (busPosition, int64, error) {
	if it.Version == 0 {
		return busPosition{Next: 1}, 0, nil
	}
	pos, err := record.Decode[busPosition](it)
	return pos, it.Version, err
}

// PublishBus puts a stream's events on the bus, from the first that is not
// there. The position moves after the bus has taken them: delivery is at least
// once, and the event's id tells repeats. One that the bus will never take, unlike
// those behind it, is told and passed over: it must not hold them up. Where two publish at once,
// the slower goes on from where the faster is.
func (r *Relay) PublishBus(ctx context.Context, stream string) error {
	if r.Bus == nil {
		return nil
	}
	return record.Again(ctx, func() error { return r.publishBus(ctx, stream) })
}

func (r *Relay) publishBus(ctx context.Context, stream string) error {
	key := record.StreamBusKey(stream)
	it, err := r.Store.Ledger.Get(ctx, key)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return fmt.Errorf("read bus position: %w", err)
	}
	pos, version, err := position(it)
	if err != nil {
		return fmt.Errorf("read bus position: %w", err)
	}
	if !r.attended() {
		return r.passBy(ctx, stream, pos, version)
	}
	for {
		evs, head, err := event.ReadStream(ctx, r.Store.Ledger, stream, pos.Next, 500)
		var expired *event.ExpiredError
		if errors.As(err, &expired) {
			r.Logger.WarnContext(ctx, "events passed retention before they were on the bus", "stream", stream, "from", pos.Next, "through", head.Low-1)
			pos.Next = head.Low
			continue
		}
		if err != nil || len(evs) == 0 {
			return err
		}
		ms := make([]bus.Message, len(evs))
		for i, e := range evs {
			detail, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("encode event %s: %w", e.ID, err)
			}
			ms[i] = bus.Message{ID: e.ID, Type: e.Type, Time: e.Timestamp, Detail: detail}
		}
		taken, perr := r.put(ctx, stream, ms)
		if taken == 0 {
			return perr
		}
		pos.Next = evs[taken-1].Sequence + 1
		err = r.Store.Ledger.Commit(ctx, ledger.Write{Expect: version, Item: ledger.Item{Key: key, Data: record.Encode(pos)}})
		if err != nil {
			return errors.Join(perr, fmt.Errorf("keep bus position: %w", err))
		}
		if perr != nil {
			return perr
		}
		version++
	}
}

// put puts events on the bus and returns how many of the first are done with:
// they are on it, or will never be.
func (r *Relay) put(ctx context.Context, stream string, ms []bus.Message) (int, error) {
	err := r.Bus.Publish(ctx, ms...)
	if err == nil {
		return len(ms), nil
	}
	err = fmt.Errorf("publish to the bus: %w", err)
	partial, ok := errors.AsType[*bus.PartialError](err)
	if !ok {
		return 0, err
	}
	first := partial.Failed[0] // whose error it names
	own := errors.Is(partial.Err, bus.ErrInvalid) || errors.Is(partial.Err, bus.ErrTooLarge)
	// That the bus took one behind it tells that the fault is the event's own: a
	// bus that is named wrong says the same of all.
	if own && len(ms)-first > len(partial.Failed) {
		r.Logger.ErrorContext(ctx, "the bus takes an event under no circumstances", "stream", stream, "event", ms[first].ID, "err", partial.Err)
		return first + 1, nil
	}
	return first, err
}

// attended tells whether someone may hear the bus.
func (r *Relay) attended() bool {
	a, ok := r.Bus.(bus.Audience)
	return !ok || a.Attended()
}

// passBy moves a stream's bus position to its head unread: nobody hears the bus,
// and who comes later hears what is published from then on.
func (r *Relay) passBy(ctx context.Context, stream string, pos busPosition, version int64) error {
	head, _, err := event.LoadHead(ctx, r.Store.Ledger, stream)
	if err != nil || head.Next <= pos.Next {
		return err
	}
	if r.attended() {
		return r.publishBus(ctx, stream) // someone came meanwhile
	}
	pos.Next = head.Next
	err = r.Store.Ledger.Commit(ctx, ledger.Write{Expect: version, Item: ledger.Item{Key: record.StreamBusKey(stream), Data: record.Encode(pos)}})
	if err != nil {
		return fmt.Errorf("keep bus position: %w", err)
	}
	return nil
}
