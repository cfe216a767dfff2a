// Package planrun carries out what never reaches a cluster: plans, whose
// children it admits one by one as slots open.
//
// Advance brings a plan as far as it can go now. Each step is a commit of its
// own, conditional on what was read, so that any number of calls at once and a
// crash between any two steps lead to the same end.
package planrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Runner runs plans; it has no state of its own.
type Runner struct {
	Store     *record.Store
	Admission *admission.Service
}

// Advance brings the plan as far as it can go now. An operation that is none,
// or has ended, is left alone.
// Several may be at one plan, each rung for by another child: who loses a race
// waits a little, and finds most of it done.
func (r *Runner) Advance(ctx context.Context, id string) error {
	return record.Again(ctx, func() error { return r.advance(ctx, id) })
}

func (r *Runner) advance(ctx context.Context, id string) error {
	op, err := r.Store.Load(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !op.State.PlaneLocal || op.State.Phase.Terminal() {
		return nil
	}
	if op.State.Phase == operation.Pending {
		if op, err = r.update(ctx, id, operation.StartLocal{}); err != nil {
			return err
		}
	}
	var limits operation.PlanPayload
	if err := json.Unmarshal(op.Spec.Request.Payload, &limits); err != nil {
		return fmt.Errorf("read plan %s: %w", id, err)
	}
	kids, err := r.Store.Children(ctx, id)
	if err != nil {
		return err
	}
	if err := r.observe(ctx, kids); err != nil {
		return err
	}
	counts := count(kids.Kids)
	if !r.stopped(&op, counts, limits) {
		if err := r.admit(ctx, &op, kids, limits); err != nil {
			return err
		}
		counts = count(kids.Kids)
	}
	stopped := r.stopped(&op, counts, limits)
	if counts.Active > 0 || (counts.Waiting > 0 && !stopped) {
		_, err = r.update(ctx, id, operation.UpdateChildren{Counts: counts})
		return err
	}
	return r.finish(ctx, &op, kids, limits)
}

func (r *Runner) update(ctx context.Context, id string, c operation.Change) (operation.Operation, error) {
	return r.Store.Update(ctx, id, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		if op.State.Phase.Terminal() {
			return nil, nil, nil
		}
		if _, ok := c.(operation.StartLocal); ok && op.State.Phase != operation.Pending {
			return nil, nil, nil
		}
		return c, nil, nil
	})
}

// stopped tells whether no further child is to be admitted.
func (r *Runner) stopped(op *operation.Operation, c operation.ChildCounts, limits operation.PlanPayload) bool {
	return op.State.Cancel != nil || c.Failed > limits.MaxFailures || !op.State.Deadline.After(r.Store.Now())
}

// observe notes which admitted children have ended.
func (r *Runner) observe(ctx context.Context, kids *record.Children) error {
	var ids []string
	for _, k := range kids.Kids {
		if k.Admitted && k.Phase == "" {
			ids = append(ids, k.Operation)
		}
	}
	ops, err := r.Store.LoadMany(ctx, ids)
	if err != nil {
		return err
	}
	for i := range kids.Kids {
		k := &kids.Kids[i]
		op, ok := ops[k.Operation]
		switch {
		case !k.Admitted || k.Phase != "":
			continue
		case !ok: // it was admitted with the mark, so it ended and is past retention
			k.Phase, k.Detail = string(operation.Failed), "it ended, and its record is past retention"
		case !op.State.Phase.Terminal():
			continue
		default:
			k.Phase = string(op.State.Phase)
			k.Detail = told(op.State.Result)
		}
		if err := r.keep(ctx, kids, i); err != nil {
			return err
		}
	}
	return nil
}

// told is what a child's end says of its reason.
func told(r *operation.Result) string {
	switch {
	case r == nil:
		return ""
	case r.Cause != nil:
		return r.Cause.ErrorCode + ": " + r.Cause.Detail
	}
	return r.Message
}

func (r *Runner) keep(ctx context.Context, kids *record.Children, i int) error {
	if err := r.Store.Ledger.Commit(ctx, kids.Write(i)); err != nil {
		return fmt.Errorf("keep child %d: %w", i, err)
	}
	kids.Wrote(i)
	return nil
}

// admit fills the open slots. A child that meets an outside holder waits and
// takes no slot; one that is refused for good counts as failed.
func (r *Runner) admit(ctx context.Context, op *operation.Operation, kids *record.Children, limits operation.PlanPayload) error {
	for i := range kids.Kids {
		c := count(kids.Kids)
		if c.Active >= limits.MaxInFlight || r.stopped(op, c, limits) {
			return nil
		}
		k := &kids.Kids[i]
		if k.Admitted || k.Phase != "" {
			continue
		}
		before := *k
		k.Admitted, k.Waiting = true, nil
		// The plan's own version is checked in the child's commit: after a cancel
		// was accepted nothing more is admitted.
		plan := ledger.Write{Kind: ledger.Check, Item: ledger.Item{Key: record.StateKey(op.Spec.ID)}, Expect: op.Version}
		_, err := r.Admission.AdmitChild(ctx, op, *k, append(kids.Admit(i), plan))
		var refused *operation.Refusal
		switch {
		case err == nil:
			kids.Admitted(i)
			continue
		case !errors.As(err, &refused):
			*k = before
			return err
		case refused.ErrorCode == "operation_conflict":
			*k = before
			w := &operation.Waiting{Code: operation.WaitConflict, Since: r.Store.Now().UTC(), Detail: refused.Detail, Holder: refused.OperationID}
			if k.Waiting != nil && k.Waiting.Holder == w.Holder {
				continue
			}
			k.Waiting = w
		default:
			*k = before
			k.Phase, k.Detail, k.Waiting = string(operation.Failed), refused.Error(), nil
		}
		if err := r.keep(ctx, kids, i); err != nil {
			return err
		}
	}
	return nil
}

func count(kids []record.Child) operation.ChildCounts {
	c := operation.ChildCounts{Total: len(kids)}
	for _, k := range kids {
		switch {
		case k.Phase == string(operation.Succeeded):
			c.Succeeded++
		case k.Phase == string(operation.Cancelled):
			c.Cancelled++
		case k.Phase == record.ChildSkipped:
			c.Skipped++
		case k.Phase != "":
			c.Failed++
		case k.Admitted:
			c.Active++
		default:
			c.Waiting++
		}
	}
	return c
}

// finish ends a plan none of whose children is left to run.
func (r *Runner) finish(ctx context.Context, op *operation.Operation, kids *record.Children, limits operation.PlanPayload) error {
	for i := range kids.Kids {
		if k := &kids.Kids[i]; !k.Admitted && k.Phase == "" {
			k.Phase, k.Waiting = record.ChildSkipped, nil
			if err := r.keep(ctx, kids, i); err != nil {
				return err
			}
		}
	}
	c := count(kids.Kids)
	res := operation.Result{Details: details(kids.Kids), Message: fmt.Sprintf("%d of %d operations succeeded, %d failed, %d were cancelled, %d were never started",
		c.Succeeded, c.Total, c.Failed, c.Cancelled, c.Skipped)}
	switch {
	case c.Failed > limits.MaxFailures:
		res.Outcome = operation.Failed
		res.Cause = firstFailure(kids.Kids)
		res.NextAction = &operation.NextAction{Code: operation.ActEscalate, Text: "look at the failed children; ask for those that are left in a new plan"}
	case op.State.Cancel != nil && c.Succeeded < c.Total:
		res.Outcome = operation.Cancelled
	case c.Skipped > 0:
		res.Outcome = operation.TimedOut
		res.Cause = &operation.Cause{ErrorCode: "deadline_exceeded", Detail: res.Message}
		res.NextAction = &operation.NextAction{Code: operation.ActEscalate, Text: "ask for those that are left in a new plan with a later deadline"}
	default:
		res.Outcome = operation.Succeeded
		res.Verified = []string{fmt.Sprintf("%d of %d children ended, %d succeeded", c.Total, c.Total, c.Succeeded)}
	}
	_, err := r.update(ctx, op.Spec.ID, operation.FinishLocal{Counts: c, Result: res})
	return err
}

func firstFailure(kids []record.Child) *operation.Cause {
	for _, k := range kids {
		if k.Phase == string(operation.Failed) || k.Phase == string(operation.TimedOut) {
			return &operation.Cause{ErrorCode: "child_failed", Detail: fmt.Sprintf("child %d (%s): %s", k.Index, k.Operation, k.Detail)}
		}
	}
	return &operation.Cause{ErrorCode: "child_failed", Detail: "more children failed than max_failures allows"}
}

// details lists the children by how they ended: what of the plan took effect.
func details(kids []record.Child) json.RawMessage {
	by := map[string][]string{}
	for _, k := range kids {
		if k.Phase == record.ChildSkipped || !k.Admitted {
			by[k.Phase] = append(by[k.Phase], k.TargetID)
			continue
		}
		by[k.Phase] = append(by[k.Phase], k.Operation)
	}
	return record.Encode(by)
}
