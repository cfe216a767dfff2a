package notify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Items that cannot be read, such as those of another version of the plane, are told,
// counted and left out: one of them holds up no receiver but its own, and of that one
// no message but itself.

// errUnreadable is that an item cannot be read.
var errUnreadable = errors.New("it cannot be read")

const (
	// brokenAgain is when the lane of a receiver is looked at again that cannot be read.
	brokenAgain = 10 * time.Minute
	// asideQueue is what dead letters name as theirs of messages that cannot be read.
	asideQueue = "deliveries"
	// maxAside bounds what a dead letter shows of one, in bytes.
	maxAside = 8 << 10
)

// unreadable tells and counts an item that cannot be read.
func (s *Service) unreadable(ctx context.Context, k ledger.Key, err error) {
	s.Metrics.unread()
	s.Logger.ErrorContext(ctx, "an item of the notifier cannot be read and is left out", "item", k, "err", err)
}

// readReceiver returns the receiver of an item. One that cannot be read, or whose
// matchers or kind cannot, is told and broken, with as much of it as can be read.
func (s *Service) readReceiver(ctx context.Context, it ledger.Item) *ready {
	r, err := record.Decode[Receiver](it)
	r.ID, r.Revision = record.ReceiverOf(it.Key), it.Version
	out := &ready{Receiver: r}
	if err == nil && r.Kind != KindWebhook && r.Kind != KindAlertmanager {
		err = fmt.Errorf("%w: there is no kind %.64q", errUnreadable, r.Kind)
	}
	if err == nil {
		if out.matcher, err = compileMatchers(r.Matchers); err != nil {
			err = fmt.Errorf("compile matchers: %w", err)
		}
	}
	if err != nil {
		s.unreadable(ctx, it.Key, err)
		out.broken = true
		out.Disabled = &Disabled{At: r.UpdatedAt, Reason: "what is kept of it cannot be read: replace it, or delete it"}
	}
	return out
}

// putAside deletes a message that cannot be read, and the pointer by which it was
// found, and keeps it as a dead letter.
func (s *Service) putAside(ctx context.Context, r *target, it ledger.Item, pointer ledger.Key, why error) error {
	s.unreadable(ctx, it.Key, why)
	now := s.now()
	d := record.DeadLetter{ID: id.Derive(id.DeadLetter, it.PK, it.SK, strconv.FormatInt(it.Version, 10)), Queue: asideQueue, At: now,
		Reason: clip(fmt.Sprintf("a message to receiver %s: %v", r.ID, why), maxShown), Body: clip(string(it.Data), maxAside)}
	e, err := event.New(event.TypeDeadLetter, "", event.Subject{Kind: "queue", ID: asideQueue, Name: asideQueue}, now, Actor,
		event.DeadLetterDetail{DeadLetter: d.ID, Reason: d.Reason}, d.ID)
	if err != nil {
		return fmt.Errorf("tell of message %s: %w", it.Key, err)
	}
	_, err = event.Append(ctx, s.Store.Ledger, event.PlaneStream, []event.Event{e}, func() ([]ledger.Write, error) {
		return []ledger.Write{
			{Expect: ledger.AnyVersion, Item: record.DeadLetterItem(d)},
			{Kind: ledger.Delete, Expect: it.Version, Item: ledger.Item{Key: it.Key}},
			{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: pointer}},
		}, nil
	})
	if err != nil {
		return fmt.Errorf("put message %s aside: %w", it.Key, err)
	}
	return nil
}
