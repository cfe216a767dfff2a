package notify

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// told is the data of the mark that a receiver was told that an alert fires.
type told struct {
	// Delivery is the last by which it was. An Alertmanager's has the labels that it knows
	// the alert by.
	Delivery string `json:"delivery,omitempty"`
}

// toldBy is the delivery that a mark names, or "".
func (s *Service) toldBy(ctx context.Context, mark ledger.Item) string {
	t, err := record.Decode[told](mark)
	if err != nil {
		s.unreadable(ctx, mark.Key, err)
		return ""
	}
	return t.Delivery
}

// pushed is what an Alertmanager knows of the pair's alert, or nil: that it fires,
// under the labels that it was told with.
func (s *Service) pushed(ctx context.Context, b *draft, p *pair, now time.Time) *Delivery {
	early := s.takeOver(ctx, b, p)
	mark, ok := b.get(record.ToldOfKey(p.r.ID, p.a.ID))
	if !ok {
		return early
	}
	id := s.toldBy(ctx, mark)
	if early != nil && early.ID != id { // it was told under other labels since
		s.end(b, p, early, p.e.Timestamp, now)
	}
	key := record.DeliveryKey(p.r.ID, id)
	it, ok := b.get(key)
	if !ok {
		return nil
	}
	d, err := decodeDelivery(it)
	if err != nil { // it begins anew; a pointer that is left leads to nothing
		s.unreadable(ctx, key, err)
		push := s.pushOf(&p.r.Receiver, p.a)
		push.EndsAt = nil // that it fires is known, for all that one can tell
		return &Delivery{ID: id, Alert: p.a.ID, CreatedAt: now, Push: push}
	}
	if d.Alert != p.a.ID || d.Push == nil || d.Push.EndsAt != nil {
		return nil // another has its labels by now, or it is told of its end
	}
	return d
}

// pushes makes what an Alertmanager is told of an alert by an event. What is over,
// silenced or inhibited, or is not for it any more, ends there; and where the alert has
// other labels by now, the one of the labels before does, for to an Alertmanager that
// is another alert.
func (s *Service) pushes(ctx context.Context, b *draft, p *pair, now time.Time) {
	known, mark := s.pushed(ctx, b, p, now), record.ToldOfKey(p.r.ID, p.a.ID)
	over := p.e.Type == alert.TypeResolved
	if over || p.a.Muted() || !p.r.wants(p.a) {
		if known != nil {
			end := p.e.Timestamp
			if over && p.a.ResolvedAt != nil {
				end = *p.a.ResolvedAt
			}
			s.end(b, p, known, end, now)
		}
		b.set(mark, nil)
		return
	}
	push := s.pushOf(&p.r.Receiver, p.a)
	id := pushID(p.r.ID, push.Labels)
	if known != nil && known.ID != id {
		s.end(b, p, known, p.e.Timestamp, now)
	}
	d := newDelivery(id, p.r, p.e, p.a, now)
	d.Push = push
	if known != nil && known.ID == id {
		d.CreatedAt = known.CreatedAt
	}
	was := &Delivery{}
	if it, ok := b.get(record.DeliveryKey(p.r.ID, id)); ok {
		var err error
		if was, err = decodeDelivery(it); err != nil {
			if known == nil || known.ID != id { // else it is told
				s.unreadable(ctx, it.Key, err)
			}
			was = &Delivery{}
		} else if was.Alert == p.a.ID {
			d.CreatedAt = was.CreatedAt
		}
	}
	b.put(was, d)
	b.set(mark, &ledger.Item{Key: mark, Data: record.Encode(told{Delivery: id})})
}

// end makes of what an Alertmanager knows to fire that it is over, under the labels that
// it knows.
func (s *Service) end(b *draft, p *pair, known *Delivery, at, now time.Time) {
	d := newDelivery(known.ID, p.r, p.e, p.a, now)
	push, as := *known.Push, s.pushOf(&p.r.Receiver, p.a)
	if push.EndsAt = &at; maps.Equal(push.Labels, as.Labels) { // else it goes on as another, with other texts
		push.Annotations, push.GeneratorURL = as.Annotations, as.GeneratorURL
	}
	d.CreatedAt, d.Push, d.Type = known.CreatedAt, &push, alert.TypeResolved
	b.put(known, d)
}

// readMarked reads, too, the deliveries that marks of the pairs name, and those of the
// labels that early ones have.
func (s *Service) readMarked(ctx context.Context, b *draft, pairs []pair) error {
	var keys []ledger.Key
	add := func(receiver, id string) {
		key := record.DeliveryKey(receiver, id)
		if _, is := b.read[key]; id != "" && !is && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, p := range pairs {
		if mark, ok := b.read[record.ToldOfKey(p.r.ID, p.a.ID)]; ok {
			add(p.r.ID, s.toldBy(ctx, mark))
		}
		if p.r.Kind != KindAlertmanager {
			continue
		}
		if d := s.early(ctx, b, &p); d != nil {
			add(p.r.ID, pushID(p.r.ID, d.Push.Labels))
		}
	}
	return s.readMore(ctx, b, keys)
}
