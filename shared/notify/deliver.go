package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// pauses are those before the second try of a webhook and the later ones. They are
// a day, all together: Standard Webhooks gives three as an example ("Deliverability
// and reliability"), which is long for an alert.
var pauses = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute,
	time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour}

// MaxTries is how often a webhook is tried before it is given up.
var MaxTries = len(pauses) + 1

const (
	webhookRound = 24  // messages of one round
	pushRound    = 256 // alerts of one push; Prometheus has as many (notifier: DefaultMaxBatchSize)
	probeRound   = 4   // messages of a round to a receiver that fails
	// keepWithin is what a round leaves of its time to keep what came of it.
	keepWithin = 2 * time.Second
	// againAfter is when a lane is due again whose messages the ledger did not keep.
	againAfter = 2 * time.Second
	// maxAge is how old a webhook may get: past it, a try that fails is the last.
	// It counts from when it was redelivered, or its receiver enabled, if that is later.
	maxAge = 48 * time.Hour
)

// Deliver sends what is due to the receiver whose lane the key is. It returns when
// nothing more is due, when the receiver asks for a pause or fails, or when ctx
// ends, in time to keep what came of it: a message is tried only where all of the
// receiver's timeout is left. What a receiver answers is no error: errors
// are those of the ledger. Where another has the lane, it does nothing.
func (s *Service) Deliver(ctx context.Context, key ledger.Key) error {
	receiver := record.LaneOf(key)
	if receiver == "" {
		return nil
	}
	lease := leaseBeyond
	if r, err := s.target(ctx, receiver); err == nil {
		lease = r.lease()
	} else if !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	h, err := s.take(ctx, receiver, uuid.NewString(), lease)
	if err != nil || h == nil {
		return err
	}
	defer h.drop()
	for {
		more, err := s.round(ctx, h)
		if ctx.Err() != nil { // what was cut off is tried by whoever comes next
			h.drop()
			after, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepWithin)
			defer cancel()
			if ok, aerr := s.again(after, h); aerr != nil || !ok {
				return errors.Join(err, aerr)
			}
			return s.leave(after, h, s.now())
		}
		if errors.Is(err, ledger.ErrConflict) {
			if more, err = s.again(ctx, h); !more && err == nil {
				return nil // another has it
			}
			if err == nil {
				err = unlessOther(s.keep(ctx, h, lease)) // else it is written after the next round
			}
		}
		if err != nil {
			h.drop()
			if ok, aerr := s.again(ctx, h); aerr == nil && ok {
				_ = s.leave(ctx, h, s.now().Add(againAfter)) // else its lease ends
			}
			return fmt.Errorf("deliver to %s: %w", receiver, err)
		}
		if !more {
			return nil
		}
	}
}

// round sends one round of what is due. false: the lane was left.
func (s *Service) round(ctx context.Context, h *held) (more bool, err error) {
	r, err := s.target(ctx, h.receiver)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		h.drop()
		return s.purge(ctx, h)
	case err != nil:
		return false, err
	case r.broken:
		h.drop()
		return false, s.leave(ctx, h, s.now().Add(brokenAgain))
	case !r.Active():
		h.drop()
		return false, s.leave(ctx, h, time.Time{})
	}
	now := s.now()
	if h.lane.Revision != r.Revision {
		h.drop()
		h.lane.Revision, h.lane.Holds, h.lane.Hasten = r.Revision, nil, hasten{Began: now}
	}
	if err := s.replies(ctx, h, r); err != nil {
		return false, err
	}
	if ok, at := h.free(r, now); !ok {
		return s.rest(ctx, h, r, at)
	}
	limit := webhookRound
	switch {
	case r.Kind == KindAlertmanager:
		limit = pushRound
	case h.lane.Holds[r.URL].Fails > 0:
		limit = probeRound
	}
	if deadline, ok := ctx.Deadline(); ok {
		if limit = min(limit, r.fits(time.Until(deadline))); limit == 0 {
			return s.rest(ctx, h, r, now)
		}
	}
	if more, err := s.hasten(ctx, h, r, now); more || err != nil {
		return more, err
	}
	standing := s.tellStanding(ctx, h, r, now)
	var next time.Time
	due, err := s.missed(ctx, h, r, limit, now)
	if len(due) == 0 && err == nil {
		due, next, err = s.pending(ctx, r, limit, now)
	}
	if err != nil {
		return false, err
	}
	if len(due) == 0 && isDue(standing, now) {
		return true, s.keep(ctx, h, r.lease())
	}
	if len(due) == 0 && len(h.asking) > 0 {
		return s.rest(ctx, h, r, now)
	}
	if len(due) == 0 {
		if err := s.tidy(ctx, h, now); err != nil {
			return false, err
		}
		return false, s.leave(ctx, h, sooner(next, standing))
	}
	if r.Kind == KindAlertmanager {
		if more, err := s.adopt(ctx, r, due, now); more || err != nil {
			return more, err
		}
		err = s.push(ctx, h, r, due)
	} else {
		err = s.send(ctx, h, r, due)
	}
	if err != nil || ctx.Err() != nil {
		return false, err
	}
	return true, s.keep(ctx, h, r.lease())
}

// sooner is the first of two times, either of which may be zero: never.
func sooner(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}

// pending returns what is due to a receiver, one message an alert, and when the
// next one is.
func (s *Service) pending(ctx context.Context, r *target, limit int, now time.Time) (due []*Delivery, next time.Time, err error) {
	from, to := record.PendingSpan()
	p, err := s.Store.Ledger.Query(ctx, ledger.Query{PK: record.OutboxPK(r.ID), From: from, To: to, Limit: limit})
	if err != nil {
		return nil, next, fmt.Errorf("read what is due: %w", err)
	}
	p.Items = r.worthReading(p.Items, now)
	if len(p.Items) == 0 {
		return nil, next, nil
	}
	var keys []ledger.Key
	for _, it := range p.Items {
		keys = append(keys, record.DeliveryKey(r.ID, record.PendingOf(it.Key)))
	}
	items, err := s.getMany(ctx, keys)
	if err != nil {
		return nil, next, fmt.Errorf("read deliveries: %w", err)
	}
	alerts := map[string]bool{}
	for i, it := range p.Items {
		d, err := decodeDelivery(items[keys[i]])
		if err == nil && d.open() && !r.sendable(d) {
			err = errUnreadable
		}
		if items[keys[i]].Version == 0 || err == nil && (!d.open() || d.pointer() != it.Key) { // it points at nothing
			if err := s.Store.Ledger.Commit(ctx, ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: it.Key}}); err != nil {
				return nil, next, fmt.Errorf("clean up: %w", err)
			}
			next = now
			continue
		}
		if err != nil {
			if err := s.putAside(ctx, r, items[keys[i]], it.Key, err); err != nil {
				return nil, next, err
			}
			next = now
			continue
		}
		switch {
		case !isDue(d.Next, now):
			if next.IsZero() || d.Next.Before(next) {
				next = d.Next
			}
		case !alerts[d.Alert]: // of one alert in order, where nothing fails
			alerts[d.Alert] = true
			due = append(due, d)
		}
	}
	return due, next, nil
}

// worthReading are those of the pointers whose time has come, or that a clock that was
// ahead put there, by their keys, and the next one.
func (r *target) worthReading(pointers []ledger.Item, now time.Time) []ledger.Item {
	later, far := record.PendingKey(r.ID, now.Add(time.Millisecond), 0, "").SK, record.PendingKey(r.ID, now.Add(farAhead), 0, "").SK
	first := true
	return slices.DeleteFunc(pointers, func(it ledger.Item) bool {
		if it.Key.SK < later || it.Key.SK > far {
			return false
		}
		is := first
		first = false
		return !is
	})
}

// send sends a webhook's messages, several at once, and keeps what came of each. It ends
// early when the receiver was changed: the rest may be for another place.
func (s *Service) send(ctx context.Context, h *held, r *target, due []*Delivery) error {
	var (
		mu      sync.Mutex
		answers []answer
		changed = s.changed(ctx, r)
	)
	err := each(due, func(_ int, d *Delivery) error {
		if changed() {
			return nil
		}
		a := s.webhook(ctx, r, d.Event, d.Payload)
		if ctx.Err() != nil {
			return nil // it was cut off
		}
		mu.Lock()
		answers = append(answers, a)
		mu.Unlock()
		return unlessOther(s.settle(ctx, r, d, a))
	})
	if len(answers) > 0 {
		s.came(ctx, h, r, r.endpoints()[0], answers)
	}
	return err
}
