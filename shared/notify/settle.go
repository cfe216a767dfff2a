package notify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// answer is what came of one try.
type answer struct {
	status int
	err    string        // "" is taken
	pause  time.Duration // that the receiver asks for
	gone   bool          // 410
	late   bool          // there was none in time
	others bool          // a webhook took another message since it was sent this one
	beside bool          // or since it answered this one with its pace
	body   string        // its beginning
	// The rest is of one of several Alertmanagers. at is where it is among them, until when
	// nothing is sent there, notAsked that nothing was for that, and cut that it is not
	// known what came of it.
	at            int
	until         time.Time
	notAsked, cut bool
}

func (a *answer) taken() bool { return a.err == "" }

// refused tells whether an Alertmanager, or what is before it, does not take these alerts;
// it is there.
func (a *answer) refused() bool {
	return a.status == http.StatusBadRequest || a.status == http.StatusRequestEntityTooLarge || a.status == http.StatusUnprocessableEntity
}

// supersededMost is how many writes go with the one that a message was taken, beside those
// of its own.
const supersededMost = ledger.MaxWrites / 2

// settle keeps what came of one try.
func (s *Service) settle(ctx context.Context, r *target, d *Delivery, a answer) (err error) {
	if a.gone {
		if a.gone, err = s.disable(ctx, r); err != nil {
			return err
		}
	}
	now := s.now()
	n := *d
	if !d.failed() {
		n.Tries, n.Early, n.Paced, n.Beside = 0, 0, 0, 0 // none, or an Alertmanager's that was taken and is told again
	}
	if n.LastStatus, n.LastError = a.status, a.err; !a.notAsked {
		n.Tries++
		n.LastAt = now
	}
	paced := d.Push == nil && a.paces()
	if isAhead(d.Planned, now) || paced {
		n.Early++
	}
	if paced {
		if n.Paced++; a.beside {
			n.Beside++
		}
	} else {
		n.Planned = time.Time{}
	}
	switch {
	case a.taken() && d.Push != nil && d.Push.EndsAt == nil:
		n.State, n.Next = Active, now.Add(s.spread(resend))
	case a.taken():
		n.State, n.Next, n.DoneAt = Delivered, time.Time{}, now
	default:
		n.Next = s.nextTry(r, &n, now, a.pause, d.Planned)
		if isAhead(a.until, now) && !n.Next.IsZero() { // one that failed is asked again then
			if n.Next = a.until; len(r.URLs) > 1 { // and others are told each minute
				n.Next = sooner(n.Next, now.Add(resend))
			}
			n.Next = n.Next.Truncate(time.Millisecond)
		}
		if a.gone {
			n.Next = time.Time{}
		}
		if n.Next.IsZero() {
			n.State, n.DoneAt = Failed, now
		}
	}
	if !a.notAsked || n.State == Failed {
		s.Metrics.tried(d, &n, now)
	}
	return s.keepDelivery(ctx, r, d, &n)
}

// keepDelivery commits a delivery's change, with its event when it was given up.
func (s *Service) keepDelivery(ctx context.Context, r *target, was, d *Delivery) error {
	writes := moved(was, d)
	var err error
	switch {
	case d.State == Delivered && d.After != "":
		err = s.keepLast(ctx, d, writes)
	case d.State == Failed:
		var e event.Event
		e, err = s.fact(event.TypeNotifyFailed, &r.Receiver, event.NotifyFailedDetail{Delivery: d.ID, Event: d.Event, Alert: d.Alert, Rule: d.Rule,
			Status: d.LastStatus, Error: d.LastError, Tries: d.Tries}, d.ID, strconv.Itoa(d.Redeliver), strconv.FormatInt(was.version, 10))
		if err != nil {
			return err
		}
		s.Logger.WarnContext(ctx, "a receiver could not be told", "receiver", r.Name, "delivery", d.ID, "tries", d.Tries, "status", d.LastStatus)
		_, err = event.Append(ctx, s.Store.Ledger, event.PlaneStream, []event.Event{e}, func() ([]ledger.Write, error) { return writes, nil })
	default:
		err = s.Store.Ledger.Commit(ctx, writes...)
	}
	if err != nil {
		return fmt.Errorf("keep delivery %s: %w", d.ID, err)
	}
	return nil
}

// keepLast commits a message that was taken, together with what it supersedes. What races
// with those is read again; a race for the message itself is lost.
func (s *Service) keepLast(ctx context.Context, d *Delivery, writes []ledger.Write) error {
	var lost error
	superseded := 0
	err := record.Again(ctx, func() error {
		before, n, err := s.supersede(ctx, d)
		if err != nil {
			return err
		}
		err = s.Store.Ledger.Commit(ctx, slices.Concat(writes, before)...)
		if c := (*ledger.ConflictError)(nil); errors.As(err, &c) && slices.Contains(c.Keys, record.DeliveryKey(d.Receiver, d.ID)) {
			lost = err
			return nil
		}
		superseded = n
		return err
	})
	if err == nil {
		err = lost
	}
	if err == nil {
		s.Metrics.supersede(superseded)
	}
	return err
}

// supersede returns the writes by which those before a webhook's message that was taken, of
// its alert, are not sent any more, and how many those are: they would tell what is over as what
// is so.
func (s *Service) supersede(ctx context.Context, d *Delivery) (out []ledger.Write, many int, err error) {
	for before := d.After; before != "" && len(out) < supersededMost; {
		it, err := s.Store.Ledger.Get(ctx, record.DeliveryKey(d.Receiver, before))
		if errors.Is(err, ledger.ErrNotFound) {
			break
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read what is superseded: %w", err)
		}
		was, err := decodeDelivery(it)
		if err != nil {
			break //nolint:nilerr // what cannot be read is put aside when it is due
		}
		if was.State == Delivered || was.State == Superseded { // when it became so, those before it were
			break
		}
		if was.open() {
			n := *was
			n.State, n.Next, n.Planned, n.DoneAt = Superseded, time.Time{}, time.Time{}, d.DoneAt
			out, many = append(out, moved(was, &n)...), many+1
		}
		before = was.After
	}
	return out, many, nil
}

func (s *Service) fact(typ string, r *Receiver, detail any, parts ...string) (event.Event, error) {
	e, err := event.New(typ, "", event.Subject{Kind: "receiver", ID: r.ID, Name: r.Name}, s.now(), Actor, detail, parts...)
	if err != nil {
		return e, fmt.Errorf("tell of receiver %s: %w", r.ID, err)
	}
	return e, nil
}

// disable ends what is told to a receiver that says that it is gone, until somebody
// enables it. false: it was changed since it was asked, and may lead elsewhere.
func (s *Service) disable(ctx context.Context, asked *target) (gone bool, err error) {
	err = s.change(ctx, func(all []Receiver) ([]Receiver, []ledger.Write, []event.Event, error) {
		i, err := find(all, asked.ID)
		switch {
		case err != nil || all[i].Disabled != nil: // it is deleted, or said so before
			gone = true
			return nil, nil, nil, nil
		case all[i].Revision != asked.Revision:
			gone = false
			return nil, nil, nil, nil
		}
		gone = true
		r, now := &all[i], s.now()
		r.Disabled = &Disabled{At: now, Reason: "it answered 410 Gone"}
		e, err := s.fact(event.TypeNotifyDisabled, r, event.NotifyDisabledDetail{Reason: r.Disabled.Reason}, r.ID, strconv.FormatInt(r.Revision, 10))
		return all, []ledger.Write{
			{Expect: r.Revision, Item: receiverItem(r)},
			record.AuditWrite(record.Audit{ID: id.New(id.Audit, now), At: now, Actor: Actor, Action: "receiver.disable", Resource: r.ID, Status: http.StatusOK, Reason: r.Disabled.Reason}),
		}, []event.Event{e}, err
	})
	return gone, err
}

// spread is a pause with jitter: a tenth less to a tenth more.
func (s *Service) spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*s.random()))
}

// nextTry is when to try again, or zero when that was the last time. One that was tried
// before the time that was planned is tried then.
func (s *Service) nextTry(r *target, d *Delivery, now time.Time, pause time.Duration, planned time.Time) time.Time {
	wait := s.spread(resend)
	later := func(began time.Time) time.Time {
		return slices.MaxFunc([]time.Time{began, d.RedeliveredAt, r.EnabledAt}, time.Time.Compare)
	}
	if d.Push != nil {
		if d.Push.EndsAt != nil && now.Sub(later(*d.Push.EndsAt)) > resolvedFor {
			return time.Time{}
		}
		if d.Tries > 0 && d.Tries <= len(pauses) {
			wait = s.spread(min(resend, pauses[d.Tries-1]))
		}
	} else {
		age, n := now.Sub(later(d.CreatedAt)), d.Tries-d.Early
		if n > len(pauses) && age >= minAge || age > maxAge {
			return time.Time{}
		}
		if d.LastStatus == http.StatusTooManyRequests || pause > 0 { // it says nothing of the message
			return now.Add(max(enoughHold, min(pause, maxHold))).Truncate(time.Millisecond)
		}
		if wait = s.spread(pauses[min(max(n, 1), len(pauses))-1]); isAhead(planned, now) {
			wait = max(planned.Sub(now), s.spread(pauses[0]))
		}
	}
	return now.Add(max(wait, min(pause, maxHold))).Truncate(time.Millisecond)
}
