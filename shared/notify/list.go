package notify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Deliveries reads a part of the list of a receiver's deliveries in a state (""
// is all), by when they were made, without those that cannot be read.
func (s *Service) Deliveries(ctx context.Context, receiver string, state State, sp record.Span) (out []Delivery, more bool, err error) {
	q := ledger.Query{Index: ledger.List, PK: record.DeliveriesOf(receiver, "")}
	if state != "" {
		q = ledger.Query{Index: ledger.Lookup, PK: record.DeliveriesOf(receiver, string(state))}
	}
	p, err := s.Store.Ledger.Query(ctx, sp.Query(q))
	if err != nil {
		return nil, false, fmt.Errorf("list deliveries: %w", err)
	}
	for _, it := range p.Items {
		d, err := decodeDelivery(it)
		if err != nil {
			s.unreadable(ctx, it.Key, err)
			continue
		}
		out = append(out, *d)
	}
	return out, p.Next != "", nil
}

// Delivery returns one; not_found.
func (s *Service) Delivery(ctx context.Context, receiver, delivery string) (Delivery, error) {
	it, err := s.Store.Ledger.Get(ctx, record.DeliveryKey(receiver, delivery))
	if errors.Is(err, ledger.ErrNotFound) {
		return Delivery{}, operation.Refuse("not_found", "receiver %s has no delivery %.128s", receiver, delivery)
	}
	if err != nil {
		return Delivery{}, fmt.Errorf("read delivery: %w", err)
	}
	d, err := decodeDelivery(it)
	return *d, err
}

// Redeliver sends a delivery at once, one that is over once more, under the id that it
// had and with all tries anew. Errors: not_found.
func (s *Service) Redeliver(ctx context.Context, call admission.Call, ref, delivery string) (Delivery, error) {
	r, err := s.Receiver(ctx, ref)
	if err != nil {
		return Delivery{}, err
	}
	var out Delivery
	err = record.Again(ctx, func() error {
		was, err := s.Delivery(ctx, r.ID, delivery)
		if err != nil {
			return err
		}
		wake, err := s.wake(ctx, r.ID)
		if err != nil {
			return err
		}
		now := s.now()
		d := was
		if !d.open() {
			d.State, d.DoneAt = Pending, time.Time{}
		}
		d.Next, d.Tries, d.RedeliveredAt = now, 0, now
		d.Early, d.Paced, d.Beside, d.Planned = 0, 0, 0, time.Time{}
		d.Redeliver++
		writes := append(moved(&was, &d), wake...)
		d.version++
		out = d
		return s.Store.Ledger.Commit(ctx, append(writes, s.audit(call, "receiver.redeliver", r.ID, http.StatusAccepted, d.ID))...)
	})
	if err != nil {
		return out, fmt.Errorf("redeliver: %w", err)
	}
	if s.Changed != nil {
		s.Changed()
	}
	return out, nil
}

// Tested is what came of a test.
type Tested struct {
	Taken  bool   `json:"taken"`
	Status int    `json:"status" doc:"HTTP; 0 when there was no answer"`
	Error  string `json:"error,omitempty"`
	// Body is the beginning of the answer.
	Body         string `json:"body,omitempty"`
	Milliseconds int64  `json:"milliseconds"`
}

// TypeTest is the type of a test's message.
const TypeTest = "notify.test"

// Test sends one message to a receiver, enabled or not, and waits for its answer.
// To an Alertmanager it is an alert of severity info that ends within a minute.
// Errors: not_found; precondition_failed for one that cannot be read, or has no secret.
func (s *Service) Test(ctx context.Context, call admission.Call, ref string) (Tested, error) {
	r, err := s.Receiver(ctx, ref)
	if err != nil {
		return Tested{}, err
	}
	t, err := s.target(ctx, r.ID)
	if err != nil {
		return Tested{}, err
	}
	if t.broken {
		return Tested{}, operation.Refuse("precondition_failed", "receiver %s, or its secret, cannot be read: replace it, or rotate its secret", r.ID)
	}
	if err := s.Store.Ledger.Commit(ctx, s.audit(call, "receiver.test", r.ID, http.StatusOK, r.Name)); err != nil {
		return Tested{}, fmt.Errorf("record test: %w", err)
	}
	now, began := s.now(), time.Now()
	var a answer
	if r.Kind == KindAlertmanager {
		end := now.Add(time.Minute)
		own := map[string]string{labelName: "OpsplaneTest", labelSeverity: event.Info, "receiver": r.Name}
		p := &push{Labels: joinLabels(own, labels{"receiver_", r.Labels}), StartsAt: now, EndsAt: &end,
			Annotations: map[string]string{"summary": "A test of receiver " + r.Name + ", asked for by " + call.Caller.Actor.ID}}
		a = s.tryPush(ctx, t, p)
	} else {
		body := record.Encode(map[string]any{"type": TypeTest, "timestamp": now, "data": map[string]string{"receiver": r.ID, "name": r.Name}})
		a = s.webhook(ctx, t, id.New(id.Event, now), body)
	}
	return Tested{Taken: a.taken(), Status: a.status, Error: a.err, Body: a.body, Milliseconds: time.Since(began).Milliseconds()}, nil
}
