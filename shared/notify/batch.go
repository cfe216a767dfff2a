package notify

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

const (
	// patience is for how long a batch holds up the next one, and for how long one that is
	// refused is tried in parts, in at most refusedTries requests. An Alertmanager that
	// takes longer to answer has its whole timeout, and gets nothing else meanwhile.
	patience     = 5 * time.Second
	refusedTries = 64
	// lookAgain is how often it is looked for something new to send while nothing but
	// such answers is waited for.
	lookAgain = time.Second
)

// batch is what Alertmanagers are told in one round. An alert is taken when all of them
// took it: to those that did, the next time is only one more.
type batch struct {
	due       []*Delivery // nil: another message is in its place by now
	answers   []answer    // what came of each so far
	open      int         // Alertmanagers that have not answered
	postponed bool
}

// reply is what one Alertmanager answers to a batch.
type reply struct {
	to      endpoint
	of      *batch
	answers []answer
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
	case a.out:
		return 1
	case a.held:
		return 2
	}
	return 3
}

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
		switch {
		case h.asking[to.url] != nil:
			h.miss(to, due)
			b.add(r, to, slices.Repeat([]answer{{err: "it has not answered yet", out: true}}, len(due)))
		case !h.lane.heldUntil(to, now).IsZero():
			b.add(r, to, slices.Repeat([]answer{{err: "not asked: " + h.lane.Holds[to.url].Error, held: true}}, len(due)))
		default:
			s.ask(ctx, h, r, to, b, now)
		}
	}
	late := time.NewTimer(s.waits())
	defer late.Stop()
	for b.open > 0 {
		select {
		case a := <-h.answered:
			if err := s.answered(ctx, h, r, a); err != nil {
				return err
			}
		case <-late.C:
			return s.postpone(ctx, r, b)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// waits is patience.
func (s *Service) waits() time.Duration { return cmp.Or(s.patience, patience) }

// ask begins a request to one Alertmanager, whose reply comes by h.answered.
func (s *Service) ask(ctx context.Context, h *held, r *target, to endpoint, b *batch, now time.Time) {
	within := r.longest()
	if at, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(at)-keepWithin)
	}
	one, cancel := context.WithTimeout(ctx, within)
	h.asking[to.url] = cancel
	h.missed[to.url] = slices.DeleteFunc(h.missed[to.url], func(id string) bool {
		return slices.ContainsFunc(b.due, func(d *Delivery) bool { return d.ID == id })
	})
	b.open++
	due := slices.Clone(b.due)
	go func() { h.answered <- reply{to, b, s.pushTo(one, r, to, due, now)} }()
}

// answered takes over a reply. With the last of its batch, what came of it is kept.
func (s *Service) answered(ctx context.Context, h *held, r *target, a reply) error {
	h.asking[a.to.url]()
	delete(h.asking, a.to.url)
	if ctx.Err() != nil {
		return nil // it was cut off
	}
	s.came(ctx, h, r, a.to, a.answers)
	a.of.add(r, a.to, a.answers)
	if a.of.open--; a.of.open > 0 {
		return nil
	}
	return each(a.of.due, func(i int, d *Delivery) error {
		if !a.of.answers[i].out {
			return unlessOther(s.settle(ctx, r, d, a.of.answers[i]))
		}
		if a.of.postponed { // it is told those that have not answered when they have
			return nil
		}
		return unlessOther(s.postponeOne(ctx, r, a.of, i))
	})
}

// replies takes over the answers that are there.
func (s *Service) replies(ctx context.Context, h *held, r *target) error {
	for {
		select {
		case a := <-h.answered:
			if err := s.answered(ctx, h, r, a); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// unlessOther is the error of keeping what came of a message, unless there is another in
// its place by now.
func unlessOther(err error) error {
	if errors.Is(err, ledger.ErrConflict) {
		return nil
	}
	return err
}

// miss notes what falls due while an Alertmanager has not answered: it is told that when it
// has.
func (h *held) miss(to endpoint, due []*Delivery) {
	ids := h.missed[to.url]
	for _, d := range due {
		if !slices.Contains(ids, d.ID) {
			ids = append(ids, d.ID)
		}
	}
	h.missed[to.url] = ids
}

// missed are messages that an Alertmanager missed while it had not answered, and can be
// told by now, as they are now.
func (s *Service) missed(ctx context.Context, h *held, r *target, limit int, now time.Time) (due []*Delivery, err error) {
	for _, to := range r.endpoints() {
		ids := h.missed[to.url]
		if h.asking[to.url] != nil || !h.lane.heldUntil(to, now).IsZero() || len(ids) == 0 {
			continue
		}
		some := ids[:min(len(ids), limit)]
		h.missed[to.url] = ids[len(some):]
		var keys []ledger.Key
		for _, id := range some {
			keys = append(keys, record.DeliveryKey(r.ID, id))
		}
		items, err := s.getMany(ctx, keys)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			if d, err := decodeDelivery(items[k]); err == nil && d.open() && r.sendable(d) {
				due = append(due, d)
			}
		}
		if len(due) > 0 {
			break
		}
	}
	return due, nil
}

// postpone has the messages of a batch that waits for answers be due later, should nobody
// be there to take those: the process may end before.
func (s *Service) postpone(ctx context.Context, r *target, b *batch) error {
	b.postponed = true
	return each(b.due, func(i int, _ *Delivery) error { return unlessOther(s.postponeOne(ctx, r, b, i)) })
}

func (s *Service) postponeOne(ctx context.Context, r *target, b *batch, i int) error {
	n := *b.due[i]
	n.Next = s.now().Add(resend)
	err := s.keepDelivery(ctx, r, b.due[i], &n)
	n.version++
	if b.due[i] = &n; err != nil {
		b.due[i] = nil
	}
	return err
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

// drop cuts off what is not answered yet; those messages are due again, at the latest when
// they were postponed to.
func (h *held) drop() {
	for _, cancel := range h.asking {
		cancel()
	}
	for range h.asking {
		<-h.answered
	}
	clear(h.asking)
	clear(h.missed)
}

// rest waits until something is answered or there may be something new to send, while
// answers are waited for. Else it leaves the lane until the time: false.
func (s *Service) rest(ctx context.Context, h *held, r *target, until time.Time) (more bool, err error) {
	if len(h.asking) == 0 {
		return false, s.leave(ctx, h, until)
	}
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	select {
	case a := <-h.answered:
		return true, s.answered(ctx, h, r, a)
	case <-again.C:
		return true, nil
	case <-ctx.Done():
		return false, nil
	}
}

// pushTo sends alerts to one Alertmanager. Of what it refuses, halves are tried, as long as
// that is not too long: the rest counts as refused.
func (s *Service) pushTo(ctx context.Context, r *target, to endpoint, due []*Delivery, now time.Time) []answer {
	type part struct{ from, to int }
	var refused time.Time // when it was first
	out, parts := make([]answer, len(due)), []part{{0, len(due)}}
	for tries := 0; len(parts) > 0; tries++ {
		p := parts[0]
		parts = parts[1:]
		if tries == refusedTries || !refused.IsZero() && time.Since(refused) > s.waits() {
			break
		}
		a := s.post(ctx, &r.Receiver, alertsURL(to.url), http.Header{}, pushBody(due[p.from:p.to], now))
		for i := p.from; i < p.to; i++ {
			out[i] = a
		}
		if !a.refused() {
			if !a.taken() {
				break // it fails: what is left was refused
			}
			continue
		}
		if refused.IsZero() {
			refused = time.Now()
		}
		if mid := (p.from + p.to) / 2; mid > p.from {
			parts = append(parts, part{p.from, mid}, part{mid, p.to})
		}
	}
	return out
}

// tryPush tells all of a receiver's Alertmanagers of an alert, once, and waits for them.
func (s *Service) tryPush(ctx context.Context, r *target, p *push) answer {
	h, b := newHeld(r.ID), newBatch([]*Delivery{{Push: p}})
	if len(r.endpoints()) == 0 {
		return answer{err: "it has no URL"}
	}
	for _, to := range r.endpoints() {
		s.ask(ctx, h, r, to, b, s.now())
	}
	for range r.endpoints() {
		a := <-h.answered
		h.asking[a.to.url]()
		b.add(r, a.to, a.answers)
	}
	return b.answers[0]
}
