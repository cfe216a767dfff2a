package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// RetryInput asks for another run of a failed operation.
type RetryInput struct {
	Reason string `json:"reason"`
	// Deadline is an RFC 3339 timestamp; empty: the type's default from now.
	Deadline string `json:"deadline,omitempty"`
}

// Changed is what a call did to an operation.
type Changed struct {
	Operation operation.Operation
	// Replayed: an earlier call with the same idempotency key did it.
	Replayed bool
}

// Retry runs a failed operation again: it takes the locks again and runs the
// failed steps once more.
func (s *Service) Retry(ctx context.Context, call admission.Call, opID string, in RetryInput) (Changed, error) {
	return s.retry(ctx, call, opID, in, record.AuditRetry, opID, nil)
}

// retry is Retry as part of another action, whose writes go into its commit.
func (s *Service) retry(ctx context.Context, call admission.Call, opID string, in RetryInput, action, resource string, extra func() []ledger.Write) (Changed, error) {
	fp, err := admission.Fingerprint(in)
	if err != nil {
		return Changed{}, err
	}
	replayed := false
	op, err := s.Store.Update(ctx, opID, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		if err := visible(call, op.Spec.Cluster, "operation", opID); err != nil {
			return nil, nil, err
		}
		earlier, err := admission.Earlier(ctx, s.Store, call, fp)
		if replayed = earlier != ""; err != nil || replayed {
			return nil, nil, err
		}
		deadline, err := s.retryDeadline(op, in)
		if err != nil {
			return nil, nil, err
		}
		if op.State.Phase != operation.Failed {
			return nil, nil, refuseAbout(op, "not_retryable", "it is %s: only a failed operation runs again", op.State.Phase)
		}
		if err := operation.Retryable(&op.Spec, &op.State); err != nil {
			return nil, nil, refuseAbout(op, "not_retryable", "%v", err)
		}
		writes := append(admission.Keep(s.Store, call, fp, opID), s.audit(call, action, resource, 202, in.Reason))
		if extra != nil {
			writes = append(writes, extra()...)
		}
		return operation.Retry{By: call.Caller.Actor, Reason: in.Reason, Deadline: deadline}, writes, nil
	})
	if locked, ok := errors.AsType[*operation.LockedError](err); ok {
		return Changed{}, s.conflict(ctx, locked)
	}
	if err != nil {
		return Changed{}, missing(err, "operation", opID)
	}
	if replayed {
		op, err = s.Store.Load(ctx, opID) // what was read before the key may be older
	}
	return Changed{Operation: op, Replayed: replayed}, err
}

func refuseAbout(op *operation.Operation, code, format string, args ...any) error {
	r := operation.Refuse(code, format, args...)
	r.OperationID = op.Spec.ID
	return r
}

// retryDeadline checks the input and gives the new run's deadline.
func (s *Service) retryDeadline(op *operation.Operation, in RetryInput) (time.Time, error) {
	errs := text(nil, "reason", in.Reason, true, MaxReasonBytes)
	now := s.Store.Now().UTC()
	limits := operation.DeadlinesOf(op.Spec.Request.Type)
	deadline := now.Add(limits.Default).Truncate(time.Millisecond)
	if in.Deadline != "" {
		t, err := operation.ParseTime(in.Deadline)
		fail := func(code, detail string) {
			errs = append(errs, operation.FieldError{Pointer: "/deadline", Code: code, Detail: detail})
		}
		switch {
		case err != nil:
			fail("format", err.Error())
		case !t.After(now):
			fail("past", "is in the past; it is "+now.Format(time.RFC3339)+" now")
		case t.Sub(now) > limits.Max:
			fail("range", fmt.Sprintf("is more than %s away, the limit for %s", limits.Max, op.Spec.Request.Type))
		}
		deadline = t.Truncate(time.Millisecond)
	}
	return deadline, invalid(errs)
}
