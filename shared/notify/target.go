package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/record"
)

// target is a receiver with what signs its messages, as they are now.
type target struct {
	*ready
	secrets secrets
}

// fits is how many messages a round may have that is to be over, and kept, in the
// time left, however long each of them takes.
func (t *target) fits(left time.Duration) int {
	waves := max(0, int((left-keepWithin)/t.timeout()))
	if t.Kind == KindAlertmanager {
		return min(waves, 1) * pushRound // one request has them all
	}
	return waves * perHost
}

// longest is how long a whole round may take.
func (t *target) longest() time.Duration { return webhookRound / perHost * t.timeout() }

// lease is how long a lane is held for a round: past it, others take the holder for
// dead. Where one process alone has the ledger, the next knows sooner (Release).
func (t *target) lease() time.Duration { return t.longest() + leaseBeyond }

func (s *Service) target(ctx context.Context, receiver string) (*target, error) {
	it, err := s.Store.Ledger.Get(ctx, record.ReceiverKey(receiver))
	if err != nil {
		return nil, fmt.Errorf("read receiver %s: %w", receiver, err)
	}
	t := &target{ready: s.readReceiver(ctx, it)}
	if t.Kind != KindWebhook || t.broken {
		return t, nil
	}
	if t.secrets, _, err = s.loadSecrets(ctx, receiver); errors.Is(err, errUnreadable) {
		s.unreadable(ctx, record.ReceiverSecretsKey(receiver), err)
		t.broken, err = true, nil
	}
	return t, err
}

// missed tells whether a message that is not due is to be sent all the same: what an
// Alertmanager knows to fire may have ended while the receiver was disabled, and what was
// refused may be taken since the receiver was changed.
func (t *target) missed(d *Delivery, now time.Time) bool {
	since := func(at time.Time) bool { return d.LastAt.Before(at) && !at.After(now) }
	return d.State == Active && since(t.EnabledAt) || d.LastError != "" && since(t.UpdatedAt)
}

// sendable tells whether a message has what the receiver is to be sent.
func (t *target) sendable(d *Delivery) bool {
	if t.Kind == KindAlertmanager {
		return d.Push != nil
	}
	return len(d.Payload) > 0
}
