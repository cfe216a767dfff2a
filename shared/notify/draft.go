package notify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// draft is what a commit will make of items that it has read.
type draft struct {
	read  map[ledger.Key]ledger.Item
	items map[ledger.Key]*ledger.Item // nil: deleted
	order []ledger.Key
	lanes map[string]bool // that have something new
}

// prefetch reads what messages of the pairs depend on.
func (s *Service) prefetch(ctx context.Context, pairs []pair) (*draft, error) {
	b := &draft{items: map[ledger.Key]*ledger.Item{}, lanes: map[string]bool{}}
	var keys []ledger.Key
	for _, p := range pairs {
		reads := []ledger.Key{record.LaneKey(p.r.ID), keyOf(&p), record.ToldOfKey(p.r.ID, p.a.ID)}
		if p.r.Kind == KindAlertmanager {
			reads = append(reads, earlyKey(&p))
		}
		for _, k := range reads {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	var err error
	if b.read, err = s.Store.Ledger.GetMany(ctx, keys); err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	return b, s.readMarked(ctx, b, pairs)
}

// readMore reads items, too, that a draft depends on.
func (s *Service) readMore(ctx context.Context, b *draft, keys []ledger.Key) error {
	if len(keys) == 0 {
		return nil
	}
	more, err := s.Store.Ledger.GetMany(ctx, keys)
	if err != nil {
		return fmt.Errorf("read deliveries: %w", err)
	}
	maps.Copy(b.read, more)
	return nil
}

// keyOf is the key of the delivery of an event to a receiver.
func keyOf(p *pair) ledger.Key {
	if p.r.Kind == KindAlertmanager {
		return record.DeliveryKey(p.r.ID, pushID(p.r.ID, labelsOf(&p.r.Receiver, p.a)))
	}
	return record.DeliveryKey(p.r.ID, webhookID(p.r.ID, p.e.ID))
}

func (b *draft) get(k ledger.Key) (ledger.Item, bool) {
	if it, ok := b.items[k]; ok {
		if it == nil {
			return ledger.Item{}, false
		}
		return *it, true
	}
	it, ok := b.read[k]
	return it, ok
}

// set puts an item, or with nil deletes the one of the key.
func (b *draft) set(k ledger.Key, it *ledger.Item) {
	if _, ok := b.items[k]; !ok {
		b.order = append(b.order, k)
	}
	b.items[k] = it
}

// put takes over a delivery's change.
func (b *draft) put(was, d *Delivery) {
	for _, w := range moved(was, d) {
		if w.Kind == ledger.Delete {
			b.set(w.Item.Key, nil)
			continue
		}
		b.set(w.Item.Key, &w.Item)
	}
	b.lanes[d.Receiver] = true
}

// writes are those of the draft, conditional on what was read.
func (b *draft) writes(now time.Time) ([]ledger.Write, error) {
	var out []ledger.Write
	for _, k := range b.order {
		expect := ledger.AnyVersion // a pointer: it is written with its delivery alone
		if record.PendingOf(k) == "" {
			expect = b.read[k].Version
		}
		if it := b.items[k]; it != nil {
			out = append(out, ledger.Write{Expect: expect, Item: *it})
		} else if expect != 0 {
			out = append(out, ledger.Write{Kind: ledger.Delete, Expect: expect, Item: ledger.Item{Key: k}})
		}
	}
	for r := range b.lanes {
		it, ok := b.read[record.LaneKey(r)]
		if !ok {
			return nil, fmt.Errorf("receiver %s has no lane: %w", r, ledger.ErrConflict)
		}
		out = append(out, wakeItem(it, now))
	}
	return out, nil
}

// message makes the message of an event to a receiver, or changes the one that it
// has.
func (s *Service) message(ctx context.Context, b *draft, p *pair, now time.Time) {
	if p.r.Kind == KindAlertmanager {
		s.pushes(ctx, b, p, now)
		return
	}
	_, exists := b.get(keyOf(p))
	resolved := p.e.Type == alert.TypeResolved
	mark := record.ToldOfKey(p.r.ID, p.a.ID)
	it, was := b.get(mark)
	if resolved && !was || exists {
		return
	}
	if resolved {
		b.set(mark, nil)
		if !p.r.sendsResolved() {
			return
		}
	}
	d := newDelivery(webhookID(p.r.ID, p.e.ID), p.r, p.e, p.a, now)
	d.First = !was
	if was {
		before := s.toldBy(ctx, it)
		is, _ := b.get(record.DeliveryKey(p.r.ID, before))
		d.First = before != "" && !isOpen(is)
		if !d.First || wasGivenUp(is) { // those before one that was given up may be open
			d.After = before
		}
	}
	if !resolved {
		b.set(mark, &ledger.Item{Key: mark, Data: record.Encode(told{Delivery: d.ID})})
	}
	d.Payload = record.Encode(Message{Type: p.e.Type, Timestamp: p.e.Timestamp, Data: Data{Alert: *p.a, Sequence: p.e.Sequence, Links: s.links(p.a)}})
	b.put(&Delivery{}, d)
}
