package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Service admits operations. It holds no state of its own.
type Service struct {
	Store *record.Store
	// Preview asks the target's cluster what an operation would meet; nil: no
	// agent can be asked.
	Preview func(ctx context.Context, spec *operation.Spec) (Blockers, error)
}

// Admitted is an accepted request: the operation, and whether it was an earlier
// one under the same idempotency key; or, for a dry run, the plan alone.
type Admitted struct {
	Operation operation.Operation
	Replayed  bool
	DryRun    bool
	Blockers  Blockers
}

// maxChildBytes bounds the request of one child, so that 16 go into an item.
const maxChildBytes = 16 << 10

// maxTries bounds how often an admission starts over after losing a race.
const maxTries = 20

// Admit takes a request for an operation: everything that it writes is one
// commit. Refusals are *operation.Refusal.
func (s *Service) Admit(ctx context.Context, call Call, body []byte) (Admitted, error) {
	if len(body) > MaxBodyBytes {
		return Admitted{}, operation.Refuse("payload_too_large", "the body has %d bytes, the limit is %d", len(body), MaxBodyBytes).With("limit", MaxBodyBytes)
	}
	fp, err := fingerprint(body)
	if err != nil {
		return Admitted{}, err
	}
	for try := 0; ; try++ {
		if a, ok, err := s.replay(ctx, call, fp); err != nil || ok {
			return a, err
		}
		a, err := s.admitOnce(ctx, call, body, fp)
		var refused *operation.Refusal
		if errors.As(err, &refused) && refused.ErrorCode == "operation_conflict" {
			// The holder may be what the same key made just now.
			if a, ok, rerr := s.replay(ctx, call, fp); rerr != nil || ok {
				return a, rerr
			}
		}
		if err == nil || !errors.Is(err, ledger.ErrConflict) || try == maxTries {
			return a, err
		}
		select {
		case <-ctx.Done():
			return Admitted{}, ctx.Err()
		case <-time.After(time.Duration(1+rand.IntN(1<<min(try, 6))) * time.Millisecond):
		}
	}
}

// replay answers a request whose idempotency key is known. It comes before
// validation: what was accepted once is answered the same, whatever the rules
// are by now.
func (s *Service) replay(ctx context.Context, call Call, fp string) (Admitted, bool, error) {
	earlier, err := Earlier(ctx, s.Store, call, fp)
	if err != nil || earlier == "" {
		return Admitted{}, false, err
	}
	op, err := s.Store.Load(ctx, earlier)
	if errors.Is(err, ledger.ErrNotFound) {
		return Admitted{}, false, operation.Refuse("gone", "operation %s, which the Idempotency-Key made, is past retention", earlier)
	}
	return Admitted{Operation: op, Replayed: true}, true, err
}

func (s *Service) admitOnce(ctx context.Context, call Call, body []byte, fp string) (Admitted, error) {
	now := s.Store.Now().UTC().Truncate(time.Millisecond)
	p, errs := parse("", body, now, false)
	if p.request.Type != "" && p.def.Type == "" {
		detail := fmt.Sprintf("%.64q is not a type of operation", p.request.Type)
		if operation.Later(p.request.Type) {
			detail = fmt.Sprintf("%q is not supported by this version", p.request.Type)
		}
		r := operation.Refuse("unsupported_type", "%s", detail).With("supported", operation.Types())
		r.Errors = append([]operation.FieldError{{Pointer: "/type", Code: "unsupported_type", Detail: detail}}, errs...)
		return Admitted{}, r
	}
	if len(errs) > 0 {
		return Admitted{}, invalid(errs)
	}
	op, extra, err := s.prepare(ctx, call, p, now, nil)
	if err != nil {
		return Admitted{}, err
	}
	if p.dryRun {
		b, err := s.blockers(ctx, &op.Spec)
		return Admitted{Operation: op, DryRun: true, Blockers: b}, err
	}
	extra = append(extra, Keep(s.Store, call, fp, op.Spec.ID)...)
	extra = append(extra, record.AuditWrite(record.Audit{
		At: now, Actor: call.Caller.Actor, Method: call.Method, Path: call.Path, Action: record.AuditCreate, Resource: op.Spec.ID,
		Status: 202, Reason: p.request.Reason, CorrelationID: op.Spec.CorrelationID, RemoteAddr: call.RemoteAddr}))
	return s.commit(ctx, op, extra)
}

// AdmitChild admits one child of a plan. extra goes into its commit: the write
// that marks the child admitted makes a second admission impossible.
//
// The target is the one that was resolved, and the rights are those that were
// judged, when the plan was admitted: a name that means another object by now
// does not send the child elsewhere.
func (s *Service) AdmitChild(ctx context.Context, parent *operation.Operation, kid record.Child, extra []ledger.Write) (operation.Operation, error) {
	now := s.Store.Now().UTC().Truncate(time.Millisecond)
	p, errs := parse("", kid.Request, now, true)
	if len(errs) > 0 {
		return operation.Operation{}, invalid(errs)
	}
	if p.request.Reason == "" {
		p.request.Reason = parent.Spec.Request.Reason
	}
	call := Call{Caller: Caller{Actor: parent.Spec.Actor, Force: true, Rule: "the plan's admission"},
		RequestID: parent.Spec.RequestID, CorrelationID: parent.Spec.CorrelationID}
	op, more, err := s.prepare(ctx, call, p, now, &childOf{parent: parent, kid: kid})
	if err != nil {
		return operation.Operation{}, err
	}
	a, err := s.commit(ctx, op, append(more, extra...))
	return a.Operation, err
}

// childOf says which child of which plan is admitted.
type childOf struct {
	parent *operation.Operation
	kid    record.Child
}

func (s *Service) commit(ctx context.Context, op operation.Operation, extra []ledger.Write) (Admitted, error) {
	if op.Spec.Cluster != "" {
		check, err := s.Store.ClusterStands(ctx, op.Spec.Cluster)
		if err != nil {
			return Admitted{}, err
		}
		extra = append(extra, check)
	}
	locks, unsettled, err := s.Store.AcquireLocks(ctx, &op.Spec, op.Spec.CreatedAt)
	var locked *operation.LockedError
	if errors.As(err, &locked) {
		return Admitted{}, s.conflict(ctx, locked)
	}
	if err != nil {
		return Admitted{}, err
	}
	op.Spec.Unsettled = unsettled
	op.Spec.Decisions = append(op.Spec.Decisions, operation.Decision{Gate: "locks", Result: "taken",
		Rule: fmt.Sprintf("%d resources, none held by another", len(op.Spec.Locks)), By: "admission"})
	state, entries, err := operation.Admit(&op.Spec, op.State.Deadline)
	if err != nil {
		return Admitted{}, err
	}
	state.Children = op.State.Children
	op.State = state
	writes := append(s.Store.CreateWrites(&op, entries), locks...)
	writes = append(writes, extra...)
	if err := s.Store.Ledger.Commit(ctx, writes...); err != nil {
		return Admitted{}, fmt.Errorf("admit operation: %w", err)
	}
	op.Version = 1
	s.Store.Created(&op)
	return Admitted{Operation: op}, nil
}

// conflict is the refusal that names who holds a resource.
func (s *Service) conflict(ctx context.Context, locked *operation.LockedError) error {
	h := locked.Holder
	r := operation.Refuse("operation_conflict", "%s is held by %s %s of %s", locked.Resource, h.Type, h.Operation, h.Actor.ID)
	r.OperationID = h.Operation
	holder := map[string]any{"operation_id": h.Operation, "type": h.Type, "actor": h.Actor, "resource": locked.Resource,
		"mode": h.Mode, "since": h.Since, "link": "/v1/operations/" + h.Operation}
	if op, err := s.Store.Load(ctx, h.Operation); err == nil {
		if op.State.Phase.Terminal() {
			return fmt.Errorf("%w: the holder of %s has just ended", ledger.ErrConflict, locked.Resource)
		}
		holder["phase"] = op.State.Phase
	}
	return r.With("holder", holder)
}

// prepare turns a request into an operation that was not committed yet: target,
// rights, plan. It returns the writes of a plan's children.
func (s *Service) prepare(ctx context.Context, call Call, p parsed, now time.Time, child *childOf) (operation.Operation, []ledger.Write, error) {
	target, cluster := p.request.Target, p.request.Cluster
	if child != nil {
		target, cluster = child.kid.TargetID, ""
	}
	t, err := Resolve(ctx, s.Store, call.Caller, "", p.def.Type, p.def.Targets, target, cluster)
	if err != nil {
		return operation.Operation{}, nil, err
	}
	if err := s.component(ctx, "", p, &t); err != nil {
		return operation.Operation{}, nil, err
	}
	if err := s.revision(ctx, p, t); err != nil {
		return operation.Operation{}, nil, err
	}
	if err := s.cordonOwned(ctx, p, t); err != nil {
		return operation.Operation{}, nil, err
	}
	force := p.def.Force != nil && p.def.Force(p.request.Payload)
	if force && !call.Caller.Force {
		return operation.Operation{}, nil, operation.Refuse("force_not_allowed", "force overrides disruption budgets and needs a right of its own")
	}
	opID := id.New(id.Operation, now)
	if child != nil {
		opID = child.kid.Operation
	}
	locks, steps, resources := operation.BuildPlan(p.def, opID, t, p.request.Payload)
	spec := operation.Spec{
		ID: opID, Request: p.request, ContractVersion: operation.ContractVersion,
		TargetID: t.ID, TargetName: targetName(t), TargetUID: t.UID, NodeName: t.NodeName, Cluster: t.Cluster,
		Resources: resources, Locks: locks, Steps: steps, Actor: call.Caller.Actor,
		RequestID: call.RequestID, CorrelationID: call.CorrelationID, CreatedAt: now, PlaneLocal: p.def.PlaneLocal,
		Decisions: []operation.Decision{
			{Gate: "authorization", Result: "allowed", Rule: call.Caller.Rule, By: "admission"},
			{Gate: "validation", Result: "passed", Rule: "contract " + operation.ContractVersion, By: "admission"},
			{Gate: "target", Result: "resolved", Rule: "one match for " + p.request.Target, By: "admission", Detail: t.ID},
		},
	}
	if force {
		spec.Decisions = append(spec.Decisions, operation.Decision{Gate: "force", Result: "allowed", Rule: "the caller's right to force", By: "admission"})
	}
	deadline := now.Add(operation.DeadlinesOf(p.def.Type).Default)
	if p.request.Deadline != nil {
		deadline = *p.request.Deadline
	}
	if child != nil {
		spec.Parent, spec.ChildIndex = child.parent.Spec.ID, child.kid.Index
		if deadline.After(child.parent.State.Deadline) {
			deadline = child.parent.State.Deadline
		}
	}
	op := operation.Operation{Spec: spec, State: operation.State{Phase: operation.Pending, Deadline: deadline, Steps: pendingSteps(len(steps))}}
	if p.def.Type != "plan" {
		return op, nil, nil
	}
	writes, err := s.children(ctx, call, p, t, &op, now)
	return op, writes, err
}

func pendingSteps(n int) []operation.StepState {
	out := make([]operation.StepState, n)
	for i := range out {
		out[i].Phase = operation.StepPending
	}
	return out
}

// children checks a plan's children, all of them before anything is made, and
// returns the writes that keep them.
func (s *Service) children(ctx context.Context, call Call, p parsed, plan operation.Target, op *operation.Operation, now time.Time) ([]ledger.Write, error) {
	kids := make([]record.Child, len(p.children))
	var errs []operation.FieldError
	for i, raw := range p.children {
		at := fmt.Sprintf("/payload/children/%d", i)
		var small bytes.Buffer
		if err := json.Compact(&small, raw); err == nil && small.Len() > maxChildBytes { // repeated fields, escapes
			errs = append(errs, operation.FieldError{Pointer: at, Code: "max_length", Detail: fmt.Sprintf("has %d bytes, the limit for a child is %d", small.Len(), maxChildBytes)})
			continue
		}
		c, cerrs := parse(at, raw, now, true)
		if len(cerrs) > 0 {
			errs = append(errs, cerrs...)
			continue
		}
		t, err := Resolve(ctx, s.Store, call.Caller, at, c.def.Type, c.def.Targets, c.request.Target, c.request.Cluster)
		var r *operation.Refusal
		switch {
		case errors.As(err, &r) && len(r.Errors) > 0:
			errs = append(errs, r.Errors...)
			continue
		case err != nil:
			return nil, err
		case plan.Kind == operation.KindCluster && t.Cluster != plan.ID:
			errs = append(errs, operation.FieldError{Pointer: at + "/target", Code: "cluster", Detail: "is not in the plan's cluster"})
			continue
		}
		if c.def.Force != nil && c.def.Force(c.request.Payload) && !call.Caller.Force {
			return nil, operation.Refuse("force_not_allowed", "child %d forces, which needs a right of its own", i)
		}
		if err := s.component(ctx, at, c, &t); errors.As(err, &r) {
			errs = append(errs, r.Errors...)
			continue
		} else if err != nil {
			return nil, err
		}
		kids[i] = record.Child{Index: i, Operation: id.Derive(id.Operation, op.Spec.ID, fmt.Sprint(i)), Request: raw, TargetID: t.ID, Type: c.def.Type}
	}
	if len(errs) > 0 {
		return nil, invalid(errs)
	}
	op.State.Children = &operation.ChildCounts{Total: len(kids), Waiting: len(kids)}
	return record.ChildWrites(op.Spec.ID, kids), nil
}
