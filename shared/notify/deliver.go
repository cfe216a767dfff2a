package notify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
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
	webhookRound = 24 // messages of one round
	pushRound    = 64 // alerts of one push
	probeRound   = 4  // messages of a round to a receiver that fails
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
	for {
		more, err := s.round(ctx, h)
		if ctx.Err() != nil { // what was cut off is tried by whoever comes next
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
		}
		if err != nil {
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
		return s.purge(ctx, h)
	case err != nil:
		return false, err
	case r.broken:
		return false, s.leave(ctx, h, s.now().Add(brokenAgain))
	case !r.Active():
		return false, s.leave(ctx, h, time.Time{})
	}
	now := s.now()
	if h.lane.Revision != r.Revision {
		h.lane.Revision, h.lane.Fails, h.lane.Hold, h.lane.Away = r.Revision, 0, time.Time{}, nil
	}
	if at := h.holds(r, now); !at.IsZero() {
		return false, s.leave(ctx, h, at)
	}
	limit := webhookRound
	switch {
	case r.Kind == KindAlertmanager:
		limit = pushRound
	case h.lane.Fails > 0:
		limit = probeRound
	}
	if deadline, ok := ctx.Deadline(); ok {
		if limit = min(limit, r.fits(time.Until(deadline))); limit == 0 {
			return false, s.leave(ctx, h, now)
		}
	}
	standing := s.tellStanding(ctx, h, r, now)
	due, next, err := s.pending(ctx, r, limit, now)
	if err != nil {
		return false, err
	}
	if len(due) == 0 && isDue(standing, now) {
		return true, s.keep(ctx, h, r.lease())
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
	}
	sum, err := s.send(ctx, h, r, due)
	if err != nil || ctx.Err() != nil {
		return false, err
	}
	if r.Kind == KindAlertmanager { // each of them is held for itself
		return true, s.keep(ctx, h, r.lease())
	}
	h.lane.Fails, h.lane.Hold = h.lane.Fails+1, time.Time{}
	if sum.taken > 0 || sum.failed == 0 {
		h.lane.Fails = 0
	} else {
		h.lane.Hold = s.now().Add(failHold(h.lane.Fails))
	}
	if sum.pause > 0 {
		h.lane.Hold = s.now().Add(min(sum.pause, maxHold))
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
	if len(p.Items) == 0 {
		return nil, next, nil
	}
	var keys []ledger.Key
	for _, it := range p.Items {
		keys = append(keys, record.DeliveryKey(r.ID, record.PendingOf(it.Key)))
	}
	items, err := s.Store.Ledger.GetMany(ctx, keys)
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
		case !isDue(d.Next, now) && !r.missed(d, now):
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

// answer is what came of one try.
type answer struct {
	status int
	err    string        // "" is taken
	pause  time.Duration // that the receiver asks for
	gone   bool          // 410
	body   string        // its beginning
}

func (a *answer) taken() bool { return a.err == "" }

// summary is what came of a round.
type summary struct {
	taken, failed int
	pause         time.Duration
}

func (sum *summary) add(a *answer) {
	if a.taken() {
		sum.taken++
	} else {
		sum.failed++
	}
	sum.pause = max(sum.pause, a.pause)
}

// send sends deliveries, several at once, and keeps what came of each.
func (s *Service) send(ctx context.Context, h *held, r *target, due []*Delivery) (sum summary, err error) {
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, perHost)
	)
	settle := func(d *Delivery, a answer) {
		e := s.settle(ctx, r, d, a)
		mu.Lock()
		defer mu.Unlock()
		sum.add(&a)
		if e != nil && !errors.Is(e, ledger.ErrConflict) { // else it is another message by now
			err = errors.Join(err, e)
		}
	}
	if r.Kind == KindAlertmanager {
		if err := s.refresh(ctx, r, due); err != nil {
			return sum, err
		}
		answers := s.push(ctx, h, r, due)
		if ctx.Err() != nil {
			return sum, nil
		}
		for i, d := range due {
			slots <- struct{}{}
			wg.Go(func() { defer func() { <-slots }(); settle(d, answers[i]) })
		}
		wg.Wait()
		return sum, err
	}
	for _, d := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if a := s.webhook(ctx, r, d.Event, d.Payload); ctx.Err() == nil {
				settle(d, a)
			}
		})
	}
	wg.Wait()
	return sum, err
}

// settle keeps what came of one try.
func (s *Service) settle(ctx context.Context, r *target, d *Delivery, a answer) error {
	now := s.now()
	n := *d
	if d.LastError == "" {
		n.Tries = 0 // none, or an Alertmanager's that was taken and is told again
	}
	n.Tries++
	n.LastAt, n.LastStatus, n.LastError = now, a.status, a.err
	switch {
	case a.taken() && d.Push != nil && d.Push.EndsAt == nil:
		n.State, n.Next = Active, now.Add(s.spread(resend))
	case a.taken():
		n.State, n.Next, n.DoneAt = Delivered, time.Time{}, now
	default:
		n.Next = s.nextTry(r, &n, now, a.pause)
		if a.gone {
			n.Next = time.Time{}
		}
		if n.Next.IsZero() {
			n.State, n.DoneAt = Failed, now
		}
	}
	s.Metrics.tried(d, &n, now)
	if err := s.keepDelivery(ctx, r, d, &n); err != nil {
		return err
	}
	if a.gone {
		return s.disable(ctx, r.ID)
	}
	return nil
}

// keepDelivery commits a delivery's change, with its event when it was given up.
func (s *Service) keepDelivery(ctx context.Context, r *target, was, d *Delivery) error {
	writes := moved(was, d)
	var err error
	if d.State != Failed {
		err = s.Store.Ledger.Commit(ctx, writes...)
	} else {
		var e event.Event
		e, err = s.fact(event.TypeNotifyFailed, &r.Receiver, event.NotifyFailedDetail{Delivery: d.ID, Event: d.Event, Alert: d.Alert, Rule: d.Rule,
			Status: d.LastStatus, Error: d.LastError, Tries: d.Tries}, d.ID, strconv.Itoa(d.Redeliver), strconv.FormatInt(was.version, 10))
		if err != nil {
			return err
		}
		s.Logger.WarnContext(ctx, "a receiver could not be told", "receiver", r.Name, "delivery", d.ID, "tries", d.Tries, "status", d.LastStatus)
		_, err = event.Append(ctx, s.Store.Ledger, event.PlaneStream, []event.Event{e}, func() ([]ledger.Write, error) { return writes, nil })
	}
	if err != nil {
		return fmt.Errorf("keep delivery %s: %w", d.ID, err)
	}
	return nil
}

func (s *Service) fact(typ string, r *Receiver, detail any, parts ...string) (event.Event, error) {
	e, err := event.New(typ, "", event.Subject{Kind: "receiver", ID: r.ID, Name: r.Name}, s.now(), Actor, detail, parts...)
	if err != nil {
		return e, fmt.Errorf("tell of receiver %s: %w", r.ID, err)
	}
	return e, nil
}

// disable ends what is told to a receiver that says that it is gone, until somebody
// enables it.
func (s *Service) disable(ctx context.Context, receiver string) error {
	return s.change(ctx, func(all []Receiver) ([]Receiver, []ledger.Write, []event.Event, error) {
		i, err := find(all, receiver)
		if err != nil || all[i].Disabled != nil {
			return nil, nil, nil, nil // deleted, or said before
		}
		r, now := &all[i], s.now()
		r.Disabled = &Disabled{At: now, Reason: "it answered 410 Gone"}
		e, err := s.fact(event.TypeNotifyDisabled, r, event.NotifyDisabledDetail{Reason: r.Disabled.Reason}, r.ID, strconv.FormatInt(r.Revision, 10))
		return all, []ledger.Write{
			{Expect: r.Revision, Item: receiverItem(r)},
			record.AuditWrite(record.Audit{ID: id.New(id.Audit, now), At: now, Actor: Actor, Action: "receiver.disable", Resource: r.ID, Status: http.StatusOK, Reason: r.Disabled.Reason}),
		}, []event.Event{e}, err
	})
}

// spread is a pause with jitter: a tenth less to a tenth more.
func (s *Service) spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*s.random()))
}

// nextTry is when to try again, or zero when that was the last time.
func (s *Service) nextTry(r *target, d *Delivery, now time.Time, pause time.Duration) time.Time {
	wait := resend
	later := func(began time.Time) time.Time {
		return slices.MaxFunc([]time.Time{began, d.RedeliveredAt, r.EnabledAt}, time.Time.Compare)
	}
	if d.Push != nil {
		if d.Push.EndsAt != nil && now.Sub(later(*d.Push.EndsAt)) > resolvedFor {
			return time.Time{}
		}
		if d.Tries <= len(pauses) {
			wait = min(wait, pauses[d.Tries-1])
		}
	} else {
		if d.Tries > len(pauses) || now.Sub(later(d.CreatedAt)) > maxAge {
			return time.Time{}
		}
		wait = pauses[d.Tries-1]
	}
	return now.Add(max(s.spread(wait), min(pause, maxHold))).Truncate(time.Millisecond)
}
