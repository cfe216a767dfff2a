package notify

import (
	"maps"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/id"
)

// pushes makes what an Alertmanager is told of an alert by an event; was is what it
// is told so far, or nil. What is over, silenced or inhibited, or is not for it any
// more, ends there; and where the alert has other labels by now, the one of the
// labels before does, for to an Alertmanager that is another alert.
func (s *Service) pushes(b *draft, p *pair, was *Delivery, now time.Time) {
	known := was != nil && was.Push != nil && was.Push.EndsAt == nil
	over := p.e.Type == alert.TypeResolved
	ends := over || p.a.Muted() || !p.r.wants(p.a)
	if ends && !known {
		return // it knows nothing of it, or is told of its end
	}
	d := newDelivery(alertID(p.r.ID, p.a.ID), p.r, p.e, p.a, now)
	d.Push = s.pushOf(&p.r.Receiver, p.a)
	if ends {
		end := p.e.Timestamp
		if over && p.a.ResolvedAt != nil {
			end = *p.a.ResolvedAt
		}
		d.Push.Labels, d.Push.StartsAt, d.Push.EndsAt = was.Push.Labels, was.Push.StartsAt, &end
	}
	if was == nil {
		b.put(&Delivery{}, d)
		return
	}
	d.CreatedAt = was.CreatedAt
	b.put(was, d)
	if ends || !known || maps.Equal(was.Push.Labels, d.Push.Labels) {
		return
	}
	before, push, end := *d, *was.Push, p.e.Timestamp
	push.EndsAt = &end
	before.ID, before.Push, before.CreatedAt = id.Derive(id.Delivery, p.r.ID, "before", p.a.ID, p.e.ID), &push, now
	b.put(&Delivery{}, &before)
}
