package notify

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// batch is what Alertmanagers are told in one round. An alert is taken when all of them
// took it: to those that did, the next time is only one more.
type batch struct {
	due     []*Delivery // nil: another message is in its place by now
	answers []answer    // what came of each so far
	open    int         // Alertmanagers that have not answered
}

func newBatch(due []*Delivery) *batch {
	return &batch{due: due, answers: slices.Repeat([]answer{{pause: maxHold, at: MaxURLs}}, len(due))}
}

// add takes over what came of the batch at one of several Alertmanagers. Of what failed it
// keeps that of the first by its place among them, and rather that of one that was asked.
func (b *batch) add(r *target, to endpoint, answers []answer) {
	for i, more := range answers {
		more.at = to.at
		if !more.taken() && len(r.URLs) > 1 {
			more.err = clip(to.name+": "+more.err, maxError)
		}
		kept := &b.answers[i]
		pause := min(kept.pause, more.pause) // the first that may be asked again is
		if d := more.weight() - kept.weight(); d > 0 || d == 0 && more.at < kept.at {
			*kept = more
		}
		kept.pause = pause
	}
}

// weight orders what came of a message at several Alertmanagers: the heaviest is told.
func (a *answer) weight() int {
	switch {
	case a.taken():
		return 0
	case a.missed:
		return 1
	case a.notAsked:
		return 2
	}
	return 3
}

// missedIt is what came of messages at an Alertmanager that has not answered what it was
// told before.
var missedIt = answer{err: "it has not answered yet", missed: true}

// push sends alerts to all of a receiver's Alertmanagers at once, but to those that are
// held or have not answered yet, and keeps what came of them. What is not answered within
// patience is settled when it is.
func (s *Service) push(ctx context.Context, h *held, r *target, due []*Delivery) error {
	if err := s.refresh(ctx, r, due); err != nil {
		return err
	}
	if err := s.replies(ctx, h, r); err != nil {
		return err
	}
	b, now := newBatch(due), s.now()
	for _, to := range r.endpoints() {
		until := h.lane.heldUntil(to, now)
		switch {
		case h.asks.waitsFor(to):
			h.asks.miss(to, due)
			b.add(r, to, slices.Repeat([]answer{missedIt}, len(due)))
		case !until.IsZero():
			b.add(r, to, slices.Repeat([]answer{{err: "not asked: " + h.lane.Holds[to.url].Error, notAsked: true, until: until}}, len(due)))
		default:
			s.ask(ctx, h.asks, r, to, b, now)
		}
	}
	late := time.NewTimer(s.waits())
	defer late.Stop()
	for b.open > 0 {
		select {
		case a := <-h.asks.replies:
			if err := s.answered(ctx, h, r, a); err != nil {
				return err
			}
		case <-late.C:
			return each(due, func(i int, _ *Delivery) error { return s.postpone(ctx, r, b, i, resend) })
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// replies takes over the replies that are there.
func (s *Service) replies(ctx context.Context, h *held, r *target) error {
	for {
		a, ok := h.asks.take()
		if !ok {
			return nil
		}
		if err := s.answered(ctx, h, r, a); err != nil {
			return err
		}
	}
}

// answered takes over a reply. With the last of its batch, what came of it is kept.
func (s *Service) answered(ctx context.Context, h *held, r *target, a reply) error {
	h.asks.over(a.to)
	if ctx.Err() != nil {
		return nil // it was cut off
	}
	if a.cut {
		h.asks.miss(a.to, a.of.due)
		a.answers = slices.Repeat([]answer{missedIt}, len(a.answers))
	} else {
		s.came(ctx, h, r, a.to, a.answers)
	}
	a.of.add(r, a.to, a.answers)
	if a.of.open--; a.of.open > 0 {
		return nil
	}
	return each(a.of.due, func(i int, d *Delivery) error {
		if a.of.answers[i].missed { // it is told those that have not answered when they have
			return s.postpone(ctx, r, a.of, i, missedAgain)
		}
		return unlessOther(s.settle(ctx, r, d, a.of.answers[i]), d)
	})
}

// unlessOther is the error of keeping what came of a message, unless there is another in
// its place by now.
func unlessOther(err error, d *Delivery) error {
	if c, ok := errors.AsType[*ledger.ConflictError](err); ok && slices.Contains(c.Keys, record.DeliveryKey(d.Receiver, d.ID)) {
		return nil
	}
	return err
}

// postpone has a message of a batch be due in a while, should nobody be there to take over
// what comes of it: the process may end before.
func (s *Service) postpone(ctx context.Context, r *target, b *batch, i int, d time.Duration) error {
	was := b.due[i]
	n := *was
	n.Next = s.now().Add(d)
	err := s.keepDelivery(ctx, r, was, &n)
	n.version++
	if b.due[i] = &n; err != nil {
		b.due[i] = nil
	}
	return unlessOther(err, was)
}

// missed are messages that an Alertmanager missed while it had not answered, and can be
// told by now, as they are now.
func (s *Service) missed(ctx context.Context, h *held, r *target, limit int, now time.Time) (due []*Delivery, err error) {
	for _, to := range r.endpoints() {
		ids := h.asks.missed[to.url]
		if h.asks.waitsFor(to) || !h.lane.heldUntil(to, now).IsZero() {
			continue
		}
		some := ids[:min(len(ids), limit)]
		h.asks.missed[to.url] = ids[len(some):]
		all, err := s.readOpen(ctx, r, some)
		if err != nil {
			return nil, err
		}
		for _, id := range some {
			if d := all[id]; d != nil {
				due = append(due, d)
			}
		}
		if len(due) > 0 {
			break
		}
	}
	return due, nil
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

// each calls f for each of the deliveries that are not nil, several at once, and joins the
// errors.
func each(ds []*Delivery, f func(i int, d *Delivery) error) error {
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, perHost)
		errs  = make([]error, len(ds))
	)
	for i, d := range ds {
		if d == nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() { defer func() { <-slots }(); errs[i] = f(i, d) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// tryPush tells all of a receiver's Alertmanagers of an alert, once, and waits for them.
func (s *Service) tryPush(ctx context.Context, r *target, p *push) answer {
	all, b := r.endpoints(), newBatch([]*Delivery{{Push: p}})
	if len(all) == 0 {
		return answer{err: "it has no URL"}
	}
	answers := make([][]answer, len(all))
	var wg sync.WaitGroup
	for i, to := range all {
		wg.Go(func() { answers[i] = s.pushTo(ctx, r, to, b.due, s.now()) })
	}
	wg.Wait()
	for i, to := range all {
		b.add(r, to, answers[i])
	}
	return b.answers[0]
}
