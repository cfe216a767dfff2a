package notify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// hasten says how far what waits for a later time was gone through since a receiver was
// changed: what was refused may be taken by now, and what an Alertmanager knows to fire
// may have ended while nobody told it.
type hasten struct {
	// Began is when that began; zero: it is over.
	Began time.Time `json:"began,omitzero"`
	// After is how far it is, in the receiver's outbox.
	After string `json:"after,omitempty"`
	// Waits: only what an Alertmanager was asked that nobody waits for any more.
	Waits bool `json:"waits,omitempty"`
}

// hastenPage is how many messages are looked at in one round: each is three writes, and a
// commit has at most ledger.MaxWrites.
const hastenPage = 3 * hastenAtOnce

const hastenAtOnce = ledger.MaxWrites / 3

// hasten makes a page due of what waits of a receiver that was changed. true: there may be
// more, which goes before anything is sent.
func (s *Service) hasten(ctx context.Context, h *held, r *target, now time.Time) (more bool, err error) {
	st := h.lane.Hasten
	if st.Began.IsZero() {
		return false, nil
	}
	if st.Waits && r.Kind == KindWebhook {
		h.lane.Hasten = hasten{}
		return false, nil
	}
	_, to := record.PendingSpan()
	p, err := s.Store.Ledger.Query(ctx, ledger.Query{PK: record.OutboxPK(r.ID), From: record.PendingKey(r.ID, st.Began, 0, "").SK, To: to,
		After: st.After, Limit: hastenPage})
	if err != nil {
		return false, fmt.Errorf("read what waits: %w", err)
	}
	var ids []string
	for _, it := range p.Items {
		ids = append(ids, record.PendingOf(it.Key))
	}
	all, err := s.readOpen(ctx, r, ids)
	if err != nil {
		return false, fmt.Errorf("read deliveries: %w", err)
	}
	var writes [][]ledger.Write
	for i, it := range p.Items {
		// What cannot be read, or is not where the pointer says, is told when it is due.
		if d := all[ids[i]]; d != nil && d.pointer() == it.Key && d.Next.After(now) && (d.Waits || !st.Waits) {
			n := *d
			switch n.Next = now; {
			case setBack(d.LastAt, now):
				n.Planned = time.Time{} // it would be by another clock
			case d.Push == nil && !d.untried() && !isAhead(d.Planned, now):
				n.Planned = d.Next
			}
			writes = append(writes, moved(d, &n))
		}
	}
	for some := range slices.Chunk(writes, hastenAtOnce) {
		if err := s.Store.Ledger.Commit(ctx, slices.Concat(some...)...); err != nil {
			return false, fmt.Errorf("have what waits be due: %w", err)
		}
	}
	if h.lane.Hasten.After = p.Next; p.Next == "" {
		h.lane.Hasten = hasten{}
	}
	return p.Next != "", nil // kept with the lane
}

// readOpen reads those of a receiver's messages that are to be sent, by id, without those
// that cannot be read.
func (s *Service) readOpen(ctx context.Context, r *target, ids []string) (map[string]*Delivery, error) {
	var keys []ledger.Key
	for _, id := range ids {
		keys = append(keys, record.DeliveryKey(r.ID, id))
	}
	items, err := s.getMany(ctx, keys)
	if err != nil {
		return nil, err
	}
	out := map[string]*Delivery{}
	for _, it := range items {
		if d, err := decodeDelivery(it); err == nil && d.open() && r.sendable(d) {
			out[d.ID] = d
		}
	}
	return out, nil
}
