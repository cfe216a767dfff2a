package notify

import (
	"context"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Planes before this one kept what an Alertmanager is told by the alert, not by its
// labels, and made no mark of it. Such a delivery is taken over at the first event of
// its alert, or when it is due: what it told of goes on, or ends, under the labels that
// it was told with.

// earlyID is the id that the delivery of an alert to an Alertmanager had.
func earlyID(receiver, alert string) string { return id.Derive(id.Delivery, receiver, "alert", alert) }

func earlyKey(p *pair) ledger.Key { return record.DeliveryKey(p.r.ID, earlyID(p.r.ID, p.a.ID)) }

// early is the delivery of the pair's alert that an earlier plane left to send, or nil.
func (s *Service) early(ctx context.Context, b *draft, p *pair) *Delivery {
	it, ok := b.get(earlyKey(p))
	if !ok {
		return nil
	}
	d, err := decodeDelivery(it)
	if err != nil { // it is put aside when it is due
		s.unreadable(ctx, it.Key, err)
		return nil
	}
	if !d.open() || d.Push == nil {
		return nil
	}
	return d
}

// takeOver takes the early delivery of the pair's alert out of the outbox, and returns
// what its Alertmanager knows by it to fire, as of the delivery of its labels; nil: it
// knows nothing, or another alert has those labels by now. An end that is to be told is
// told on by the delivery of the labels.
func (s *Service) takeOver(ctx context.Context, b *draft, p *pair) *Delivery {
	d := s.early(ctx, b, p)
	if d == nil {
		return nil
	}
	b.set(earlyKey(p), nil)
	b.set(d.pointer(), nil)
	next := pushID(p.r.ID, d.Push.Labels)
	was := &Delivery{}
	if it, ok := b.get(record.DeliveryKey(p.r.ID, next)); ok {
		var err error
		if was, err = decodeDelivery(it); err != nil {
			s.unreadable(ctx, it.Key, err)
			was = &Delivery{}
		}
		if was.open() && was.Push != nil && was.Push.EndsAt == nil {
			return nil
		}
	}
	if d.Push.EndsAt != nil {
		d.ID = next
		b.put(was, d)
		return nil
	}
	// It is not put there: whoever asked does, with what becomes of it.
	known := *was
	known.ID, known.Alert, known.CreatedAt, known.Push = next, d.Alert, d.CreatedAt, d.Push
	return &known
}

// adopt takes over those of the deliveries that are early, as if their alerts were told
// of once more. true: there were some, and what is due is other by now.
func (s *Service) adopt(ctx context.Context, r *target, due []*Delivery, now time.Time) (bool, error) {
	early := map[ledger.Key]*Delivery{}
	var keys []ledger.Key
	for _, d := range due {
		if k := record.AlertKey(d.Alert); d.ID == earlyID(r.ID, d.Alert) {
			early[k], keys = d, append(keys, k)
		}
	}
	told := false
	err := s.tellAlerts(ctx, r, keys, true, now, func(it ledger.Item) *pair {
		d := early[it.Key]
		// One whose alert is gone is over.
		a := &alert.Alert{ID: d.Alert, Rule: d.Rule, Cluster: d.Cluster, Stream: d.Stream, State: alert.Resolved}
		if it.Version > 0 {
			is, err := record.Decode[alert.Alert](it)
			if err != nil {
				s.unreadable(ctx, it.Key, err)
				return nil // it is told on as it was
			}
			a = &is
		}
		e := &event.Event{ID: d.Event, Type: d.Type, Stream: d.Stream, Sequence: d.Sequence, ReceivedAt: d.Received, Timestamp: now}
		if a.State == alert.Resolved {
			e.Type = alert.TypeResolved
		}
		told = true
		return &pair{e, a, r.ready}
	})
	return told, err
}
