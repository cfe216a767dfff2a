package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// DeadLetters takes dead letters off the queue's engine, keeps each in the
// ledger with an event, and fails the operation whose doorbell nobody could
// deal with. A letter that is handed over twice is kept once.
func (s *Sweep) DeadLetters(ctx context.Context) (int, error) {
	letters, err := s.Queue.TakeDead(ctx, 50)
	if err != nil {
		return 0, fmt.Errorf("take dead letters: %w", err)
	}
	kept := 0
	var errs error
	for _, l := range letters { // one that fails leaves the others alone
		err := s.dead(ctx, l)
		if err == nil {
			err = s.Queue.DropDead(ctx, l.ID)
		}
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("keep dead letter %s of %s: %w", l.ID, l.Queue, err))
			continue
		}
		kept++
	}
	return kept, errs
}

func (s *Sweep) dead(ctx context.Context, l queue.DeadLetter) error {
	d := letter(l)
	var bell protocol.Doorbell
	if json.Unmarshal(l.Body, &bell) == nil && id.Valid(id.Operation, bell.Operation) && bell.Kind == protocol.KindOperation {
		d.Operation = bell.Operation
	}
	if d.Operation != "" {
		op, err := s.Store.Load(ctx, d.Operation)
		switch {
		case errors.Is(err, ledger.ErrNotFound):
			d.Operation = ""
		case err != nil:
			return err
		default:
			d.Cluster = op.Spec.Cluster
			if err := s.failDead(ctx, d, l.Queue, bell.Generation); err != nil {
				return err
			}
		}
	}
	return keep(ctx, s.Store, d)
}

// Keep keeps what a reader of the named source could not read as a dead letter,
// with an event, where people look for such. One that is kept already, by its
// source and id, is no error.
func Keep(ctx context.Context, st *record.Store, l queue.DeadLetter) error {
	return keep(ctx, st, letter(l))
}

// letter is how a dead letter is recorded, but for what it was about.
func letter(l queue.DeadLetter) record.DeadLetter {
	d := record.DeadLetter{ID: id.Derive(id.DeadLetter, l.Queue, l.ID), Queue: l.Queue, Reason: l.Reason, At: l.At.UTC(), Body: string(l.Body)}
	if len(d.Body) > 8<<10 || !operation.CleanText(d.Body) {
		d.Body = fmt.Sprintf("%.1024q", d.Body)
	}
	if !operation.CleanText(d.Reason) {
		d.Reason = fmt.Sprintf("%.512q", d.Reason)
	}
	return d
}

func keep(ctx context.Context, st *record.Store, d record.DeadLetter) error {
	e, err := event.New(event.TypeDeadLetter, d.Cluster, event.Subject{Kind: "queue", ID: d.Queue, Name: d.Queue}, d.At, operation.Sweep,
		map[string]any{"dead_letter": d.ID, "reason": d.Reason, "operation": d.Operation}, d.ID)
	if err != nil {
		return err
	}
	_, err = event.Append(ctx, st.Ledger, event.StreamOf(d.Cluster), []event.Event{e}, func() ([]ledger.Write, error) {
		return []ledger.Write{{Item: record.DeadLetterItem(d)}}, nil
	})
	if errors.Is(err, ledger.ErrConflict) {
		if _, _, e := st.DeadLetter(ctx, d.ID); e == nil {
			return nil // kept before
		}
	}
	return err
}

// failDead ends an operation whose own, newest doorbell died. One that an agent
// took in the meantime, or another cluster's, is left alone.
func (s *Sweep) failDead(ctx context.Context, d record.DeadLetter, queueName string, generation int64) error {
	_, err := s.Store.Update(ctx, d.Operation, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		if op.State.Phase != operation.Dispatched || op.State.Generation != generation || queueName != fleet.QueueName(op.Spec.Cluster) {
			return nil, nil, nil
		}
		return operation.CannotStart{Retryable: true,
			Cause:      operation.Cause{ErrorCode: "dead_letter", Detail: "its doorbell was received again and again and never dealt with: " + d.Reason},
			NextAction: operation.NextAction{Code: operation.ActRecoverAgent, Text: "mend the cluster's agent, then redrive dead letter " + d.ID + " or retry"}}, nil, nil
	})
	return err
}
