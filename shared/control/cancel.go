package control

import (
	"context"
	"net/http"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// CancelInput is a request to end an operation.
type CancelInput struct {
	Reason string
	// IfVersion refuses the cancel when the operation has another revision; 0:
	// whichever it has.
	IfVersion int64
}

// Cancel asks for an operation's end. The status is 200 when it ended by it,
// 202 when its holder was asked, 204 when it had ended before.
func (s *Service) Cancel(ctx context.Context, call admission.Call, opID string, in CancelInput) (operation.Operation, int, error) {
	if err := invalid(text(nil, "reason", in.Reason, false, MaxReasonBytes)); err != nil {
		return operation.Operation{}, 0, err
	}
	status, changed := 0, false
	op, err := s.Store.Update(ctx, opID, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		changed = false
		if err := visible(call, op.Spec.Cluster, "operation", opID); err != nil {
			return nil, nil, err
		}
		if in.IfVersion != 0 && in.IfVersion != op.State.Revision {
			r := operation.Refuse("precondition_failed", "the operation is at version %d, If-Match names %d", op.State.Revision, in.IfVersion)
			r.OperationID = opID
			return nil, nil, r.With("version", op.State.Revision)
		}
		switch {
		case op.State.Phase.Terminal():
			status = http.StatusNoContent
			return nil, nil, nil
		case !operation.Cancelable(&op.Spec, &op.State):
			return nil, nil, notCancelable(op)
		case op.State.Phase == operation.Pending || op.State.Phase == operation.Dispatched:
			status = http.StatusOK
		default:
			status = http.StatusAccepted
		}
		if op.State.Cancel != nil {
			return nil, nil, nil
		}
		changed = true
		return operation.RequestCancel{By: call.Caller.Actor, Reason: in.Reason},
			[]ledger.Write{s.audit(call, "operation.cancel", opID, status, in.Reason)}, nil
	})
	if err != nil {
		return op, 0, missing(err, "operation", opID)
	}
	if !changed {
		if err := s.Store.Ledger.Commit(ctx, s.audit(call, "operation.cancel", opID, status, in.Reason)); err != nil {
			return op, 0, err
		}
	}
	return op, status, nil
}

// notCancelable names the step that cannot be interrupted.
func notCancelable(op *operation.Operation) error {
	r := operation.Refuse("not_cancelable", "a step that is running cannot be interrupted")
	for i, st := range op.State.Steps {
		if p := op.Spec.Steps[i]; st.Phase == operation.StepRunning && !p.Interruptible {
			r.Detail = "step " + p.Name + " is running and cannot be interrupted"
			r = r.With("step_id", p.ID)
		}
	}
	r.OperationID = op.Spec.ID
	return r
}
