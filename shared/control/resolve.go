package control

import (
	"context"
	"errors"
	"slices"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// ResolveInput settles a step by evidence.
type ResolveInput struct {
	Step     string `json:"step"`    // its id or name
	Outcome  string `json:"outcome"` // operation.Resolve*
	Evidence string `json:"evidence"`
	Reason   string `json:"reason"`
}

// resolveOutcomes are what a person may know of a step.
var resolveOutcomes = []string{operation.ResolveDone, operation.ResolveFailed, operation.ResolveNotDone}

// Resolve settles what no probe could: a person says what became of a step,
// and how they know.
func (s *Service) Resolve(ctx context.Context, call admission.Call, opID string, in ResolveInput) (Changed, error) {
	errs := text(nil, "step", in.Step, true, 128)
	errs = text(errs, "evidence", in.Evidence, true, MaxEvidenceBytes)
	errs = text(errs, "reason", in.Reason, true, MaxReasonBytes)
	if !slices.Contains(resolveOutcomes, in.Outcome) {
		errs = append(errs, operation.FieldError{Pointer: "/outcome", Code: "enum", Detail: "must be one of succeeded, failed, not_done"})
	}
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
		if err := invalid(errs); err != nil {
			return nil, nil, err
		}
		i := slices.IndexFunc(op.Spec.Steps, func(p operation.PlanStep) bool { return p.ID == in.Step || p.Name == in.Step })
		switch {
		case i < 0:
			return nil, nil, operation.Invalid(operation.FieldError{Pointer: "/step", Code: "not_found", Detail: "is no step of the operation's plan"})
		case op.State.Phase != operation.Reconciling:
			return nil, nil, refuseAbout(op, "not_resolvable", "it is %s: only what is reconciling is resolved", op.State.Phase)
		case op.State.Lease != nil:
			return nil, nil, refuseAbout(op, "not_resolvable", "agent %s holds the lease and is probing", op.State.Lease.Agent)
		case op.State.Steps[i].Phase.Settled():
			return nil, nil, refuseAbout(op, "not_resolvable", "step %s is %s already", op.Spec.Steps[i].Name, op.State.Steps[i].Phase)
		}
		return operation.Resolve{StepID: op.Spec.Steps[i].ID, Outcome: in.Outcome, By: call.Caller.Actor, Evidence: in.Evidence, Reason: in.Reason},
			append(admission.Keep(s.Store, call, fp, opID), s.audit(call, "operation.resolve", opID, 200, in.Reason)), nil
	})
	if errors.Is(err, operation.ErrIllegal) || errors.Is(err, operation.ErrInvalidReport) {
		return Changed{}, refuseAbout(&op, "not_resolvable", "%v", err)
	}
	if err != nil {
		return Changed{}, missing(err, "operation", opID)
	}
	if replayed {
		op, err = s.Store.Load(ctx, opID)
	}
	return Changed{Operation: op, Replayed: replayed}, err
}
