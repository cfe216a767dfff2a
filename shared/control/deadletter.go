package control

import (
	"context"
	"fmt"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Redriven is what became of a dead letter that was sent again.
type Redriven struct {
	Letter    record.DeadLetter
	Operation operation.Operation
	Replayed  bool
}

// Redrive runs the operation of a dead doorbell again: its death failed the
// operation, so this is a retry of it. Other letters cannot be redriven.
func (s *Service) Redrive(ctx context.Context, call admission.Call, letterID string, in RetryInput) (Redriven, error) {
	d, _, err := s.Store.DeadLetter(ctx, letterID)
	if err != nil {
		return Redriven{}, missing(err, "dead letter", letterID)
	}
	if err := visible(call, d.Cluster, "dead letter", letterID); err != nil {
		return Redriven{}, err
	}
	if d.Operation == "" {
		return Redriven{}, operation.Refuse("not_retryable", "the letter is no doorbell of an operation: nothing waits for it")
	}
	if in.Reason == "" {
		in.Reason = fmt.Sprintf("redrive of dead letter %s", letterID)
	}
	next := d
	now := s.Store.Now().UTC()
	next.Redriven = &now
	changed, err := s.retry(ctx, call, d.Operation, in, record.AuditRedrive, letterID, func() []ledger.Write {
		return []ledger.Write{{Item: record.DeadLetterItem(next), Expect: ledger.AnyVersion}}
	})
	if err != nil {
		return Redriven{}, err
	}
	if changed.Replayed {
		if next, _, err = s.Store.DeadLetter(ctx, letterID); err != nil {
			return Redriven{}, missing(err, "dead letter", letterID)
		}
	}
	return Redriven{Letter: next, Operation: changed.Operation, Replayed: changed.Replayed}, nil
}
