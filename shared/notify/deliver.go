package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// MaxTries is how often a webhook is tried before it is given up, beside the tries that
// changes of its receiver bring before their time.
var MaxTries = len(pauses) + 1

// minAge is how old a webhook is at least when it is given up, however often it was tried:
// all pauses, each a tenth less.
var minAge = func() (sum time.Duration) {
	for _, p := range pauses {
		sum += p * 9 / 10
	}
	return sum - time.Second // times are cut to milliseconds
}()

const (
	webhookRound = 24  // messages that a webhook is sent at a time, at most, or takes none of until it is given a pause
	pushRound    = 256 // alerts of one push; Prometheus has as many (notifier: DefaultMaxBatchSize)
	probeRound   = 4   // of one that fails, or has enough
	// keepWithin is what a round leaves of its time to keep what came of it.
	keepWithin = 2 * time.Second
	// againAfter is when a lane is due again whose messages the ledger did not keep.
	againAfter = 2 * time.Second
	// maxAge is how old a webhook may get: past it, a try that fails is the last.
	// It counts, as minAge does, from when it was redelivered, or its receiver enabled, if
	// that is later.
	maxAge = 48 * time.Hour
)

// Deliver sends what is due to the receiver whose lane the key is. It returns when
// nothing more is due, when the receiver asks for a pause or fails, or when ctx
// ends: where that is cancelled, after what a webhook was sent is answered, or stopsWithin; at its
// deadline in time to keep what came of it: a message is tried only where all of the
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
		next, err := s.round(ctx, h)
		if ctx.Err() != nil {
			return s.stop(ctx, h)
		}
		var mine bool
		switch {
		case err != nil && !errors.Is(err, ledger.ErrConflict):
		case err == nil && next.gone:
			return nil
		case err == nil && next.leave && h.idle():
			if err = s.leave(ctx, h, next.until); err == nil {
				return nil
			}
			if errors.Is(err, ledger.ErrConflict) { // there is something new, or another has it
				mine, err = s.again(ctx, h)
			}
		default:
			wait := err == nil && next.leave
			if wait {
				h.await(ctx)
			}
			if mine = true; !wait || h.keepNow(s.now()) {
				if mine, err = s.own(ctx, h, func() error { return s.keep(ctx, h) }); errors.Is(err, ledger.ErrConflict) {
					mine, err = true, nil // it is woken all the time
				}
			}
		}
		switch {
		case ctx.Err() != nil: // the next round tells
		case err != nil:
			h.drop()
			_ = s.giveBack(ctx, h, s.now().Add(againAfter)) // else its lease ends
			return fmt.Errorf("deliver to %s: %w", receiver, err)
		case !mine:
			return nil
		}
	}
}

// stop gives a lane back when ctx ended. What a webhook has not answered within stopsWithin, and
// what an Alertmanager has not answered by now, is tried by whoever comes next.
func (s *Service) stop(ctx context.Context, h *held) error {
	h.asks.drop()
	h.flights.landings.collect(len(h.flights.out))
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepWithin)
	defer cancel()
	if r, err := s.target(after, h.receiver); err == nil {
		_, _ = s.land(after, h, r) // of what is not kept the messages are due still
	}
	return s.giveBack(after, h, s.now())
}

// then says how a lane goes on after a round: with another one; not before the time, or,
// where that is zero, before something is due; or not at all.
type then struct {
	leave bool
	until time.Time
	gone  bool
}

// round sends one round of what is due.
func (s *Service) round(ctx context.Context, h *held) (then, error) {
	r, err := s.target(ctx, h.receiver)
	if err == nil || errors.Is(err, ledger.ErrNotFound) {
		if waits, err := s.land(ctx, h, r); waits || err != nil {
			return then{leave: true}, err
		}
	}
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		h.asks.drop()
		return then{gone: true}, s.purge(ctx, h)
	case err != nil:
		return then{}, err
	case r.broken:
		h.asks.drop()
		return then{leave: true, until: s.now().Add(brokenAgain)}, nil
	case !r.Active():
		h.asks.drop()
		return then{leave: true}, nil
	}
	now := s.now()
	h.lease = r.lease()
	if h.lane.Revision != r.Revision {
		h.asks.only(r.endpoints())
		h.asks.forget() // all that waits is made due
		h.asks.doubts = &doubts{}
		h.lane.Revision, h.lane.Holds, h.lane.Apart, h.lane.Hasten = r.Revision, nil, time.Time{}, hasten{Began: now}
		h.tookAt(time.Time{})
		return then{}, nil // the lease may be another
	}
	if err := s.goOn(ctx, h, r); err != nil {
		return then{}, err
	}
	if ok, at := h.free(r, now); !ok {
		return then{leave: true, until: at}, nil
	}
	limit := webhookRound
	switch {
	case r.Kind == KindAlertmanager:
		limit = s.pushAtMost()
	case h.lane.Holds[r.URL].probed():
		limit = probeRound
	}
	if limit = min(limit, s.room(ctx, r)); limit == 0 {
		return then{leave: true, until: now}, nil
	}
	if more, err := s.hasten(ctx, h, r, now); more || err != nil {
		return then{}, err
	}
	if r.Kind == KindWebhook {
		return s.fly(ctx, h, r, limit, now)
	}
	standing := s.tellStanding(ctx, h, r, now)
	due, next, err := s.pending(ctx, r, limit, now)
	switch {
	case err != nil:
		return then{}, err
	case len(due) == 0 && isDue(standing, now):
		return then{}, nil
	case len(due) == 0:
		if len(h.asks.out) == 0 {
			err = s.tidy(ctx, h, now)
		}
		return then{leave: true, until: sooner(next, standing)}, err
	}
	if more, err := s.adopt(ctx, r, due, now); more || err != nil {
		return then{}, err
	}
	return then{}, s.push(ctx, h, r, due)
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
	return s.open(ctx, r, r.worthReading(p.Items, now), now)
}

// open reads the messages of pointers, and returns what is due, one an alert, and when the
// next one is.
func (s *Service) open(ctx context.Context, r *target, pointers []ledger.Item, now time.Time) (due []*Delivery, next time.Time, err error) {
	if len(pointers) == 0 {
		return nil, next, nil
	}
	var keys []ledger.Key
	for _, it := range pointers {
		keys = append(keys, record.DeliveryKey(r.ID, record.PendingOf(it.Key)))
	}
	items, err := s.getMany(ctx, keys)
	if err != nil {
		return nil, next, fmt.Errorf("read deliveries: %w", err)
	}
	alerts := map[string]bool{}
	for i, it := range pointers {
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
