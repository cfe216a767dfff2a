package notify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// target is a receiver with what signs its messages, as they are now.
type target struct {
	*ready
	secrets secrets
}

// fits is how many messages a round may have that is to be over, and kept, in the
// time left, however long each of a webhook's takes. Alertmanagers are waited for so long.
func (t *target) fits(left, waits time.Duration) int {
	left -= keepWithin
	if t.Kind == KindAlertmanager {
		// One request has them all; what is cut off counts as not sent. But for the one
		// that is slow they are over by then.
		if left < min(t.timeout(), waits) {
			return 0
		}
		return pushRound
	}
	return max(0, int(left/t.timeout())) * perHost
}

// room is fits for the time that ctx leaves.
func (s *Service) room(ctx context.Context, r *target) int {
	at, bounded := ctx.Deadline()
	if !bounded {
		return math.MaxInt
	}
	return r.fits(time.Until(at), s.waits())
}

// postponed is for how long a message is not due that some have not answered, should
// whoever waits for that be gone: they answer what they were told before it, and then it.
func (t *target) postponed() time.Duration { return 2 * (t.timeout() + patience) }

// longest is more than what is under way may take: a lane is kept when half of its lease is
// over.
func (t *target) longest() time.Duration { return webhookRound / perHost * t.timeout() }

// lease is how long a lane is held for a round: past it, others take the holder for
// dead. Where one process alone has the ledger, the next knows sooner (Release).
func (t *target) lease() time.Duration { return t.longest() + leaseBeyond }

// target reads a receiver. A webhook that nothing signs for is broken: it is sent nothing
// that is not signed. Errors: ledger.ErrNotFound.
func (s *Service) target(ctx context.Context, receiver string) (*target, error) {
	key, signs := record.ReceiverKey(receiver), record.ReceiverSecretsKey(receiver)
	items, err := s.Store.Ledger.GetMany(ctx, []ledger.Key{key, signs})
	if err != nil {
		return nil, fmt.Errorf("read receiver %s: %w", receiver, err)
	}
	it, ok := items[key]
	if !ok {
		return nil, fmt.Errorf("read receiver %s: %w", receiver, ledger.ErrNotFound)
	}
	t := &target{ready: s.readReceiver(ctx, it)}
	if t.Kind != KindWebhook || t.broken {
		return t, nil
	}
	if t.secrets, err = record.Decode[secrets](items[signs]); err == nil && len(t.secrets.Keys) == 0 {
		err = errUnsigned
	}
	if err != nil {
		s.unreadable(ctx, signs, err)
		t.broken = true
	}
	return t, nil
}

// errUnsigned is that a webhook has no secret.
var errUnsigned = errors.New("there is no secret")

// sendable tells whether a message has what the receiver is to be sent.
func (t *target) sendable(d *Delivery) bool {
	if t.Kind == KindAlertmanager {
		return d.Push != nil
	}
	return len(d.Payload) > 0
}
