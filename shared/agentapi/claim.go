package agentapi

import (
	"context"
	"errors"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// retryPending is how soon a claim on a pending operation is to be tried again:
// relay is about to dispatch it.
const retryPending = 200 * time.Millisecond

// Claim gives leases on the operations asked for.
func (s *Service) Claim(ctx context.Context, cluster string, req protocol.ClaimRequest) (protocol.ClaimAnswer, error) {
	if len(req.Claims) > protocol.MaxBatch {
		return protocol.ClaimAnswer{}, tooMany("claims", len(req.Claims), protocol.MaxBatch)
	}
	agent, err := s.agent(ctx, cluster, req.AgentID, req.Boot)
	if err != nil {
		return protocol.ClaimAnswer{}, err
	}
	answer := protocol.ClaimAnswer{Results: make([]protocol.ClaimResult, len(req.Claims))}
	each(len(req.Claims), func(i int) {
		answer.Results[i] = s.claim(ctx, agent, req.Claims[i])
	})
	return answer, nil
}

// refusal of a claim, as an error that ends Update.
type claimRefused struct {
	result string
	retry  time.Duration
	detail string
}

func (e *claimRefused) Error() string { return "claim refused: " + e.result }

func (s *Service) claim(ctx context.Context, agent fleet.Agent, c protocol.Claim) protocol.ClaimResult {
	res := protocol.ClaimResult{Operation: c.Operation, Result: protocol.ClaimGone}
	if !id.Valid(id.Operation, c.Operation) {
		res.Operation, res.Detail = short(c.Operation), "not the id of an operation"
		return res
	}
	var lost, again bool
	decide := func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		lost, again = false, false
		st := &op.State
		now := s.Store.Now()
		switch {
		case op.Spec.Cluster != agent.Cluster || op.Spec.PlaneLocal:
			return nil, nil, &claimRefused{result: protocol.ClaimGone, detail: "not an operation of this cluster"}
		case st.Phase.Terminal():
			return nil, nil, &claimRefused{result: protocol.ClaimGone, detail: "it has ended: " + string(st.Phase)}
		case st.Phase == operation.Pending:
			return nil, nil, &claimRefused{result: protocol.ClaimRetry, retry: retryPending, detail: "it is not dispatched yet"}
		case !st.Deadline.After(now):
			return nil, nil, &claimRefused{result: protocol.ClaimRetry, retry: time.Second, detail: "its deadline has passed"}
		}
		if l := st.Lease; l != nil {
			// An answer that was lost: the holder asks again before it said anything.
			if l.Agent == agent.ID && l.Boot == agent.Boot && l.LastReport == 0 && now.Before(l.Until) {
				again = true
				return nil, nil, nil
			}
			if over := s.Store.Timing.LeaseOver(st); now.Before(over) {
				return nil, nil, &claimRefused{result: protocol.ClaimHeld, detail: "held by " + l.Agent}
			}
			lost = true
			return operation.LoseLease{}, nil, nil
		}
		if m := agent.Missing(op.Spec.Steps); m != "" {
			return nil, nil, &claimRefused{result: protocol.ClaimIncompatible, detail: "needs " + m}
		}
		return operation.Claim{Agent: agent.ID, Boot: agent.Boot, Until: s.Store.Timing.LeaseUntil(st, now)}, nil, nil
	}
	op, err := s.Store.Update(ctx, c.Operation, decide)
	if err == nil && lost {
		op, err = s.Store.Update(ctx, c.Operation, decide)
	}
	var refused *claimRefused
	switch {
	case err == nil && (again || op.State.Lease != nil):
		res.Result, res.Assignment = protocol.ClaimGranted, s.assignment(&op)
	case errors.As(err, &refused):
		res.Result, res.RetryMS, res.Detail = refused.result, refused.retry.Milliseconds(), refused.detail
	case errors.Is(err, ledger.ErrNotFound):
		res.Detail = "there is no such operation"
	default:
		res.Result, res.RetryMS, res.Detail = protocol.ClaimRetry, 1000, "the plane cannot take the claim now"
		if err != nil {
			s.Logger.WarnContext(ctx, "claim failed", "operation", c.Operation, "err", err)
		}
	}
	return res
}

// assignment is what the holder of a fresh lease needs to know.
func (s *Service) assignment(op *operation.Operation) *protocol.Assignment {
	st, sp := &op.State, &op.Spec
	now := s.Store.Now()
	a := &protocol.Assignment{
		Operation: sp.ID, Generation: st.Generation, Run: st.Run,
		LeaseMS: left(now, st.Lease.Until), DeadlineMS: left(now, st.Deadline), Deadline: st.Deadline,
		Type: sp.Request.Type, TargetID: sp.TargetID, TargetName: sp.TargetName, TargetUID: sp.TargetUID, NodeName: sp.NodeName,
		Payload: sp.Request.Payload, Reason: sp.Request.Reason, Actor: sp.Actor, CorrelationID: sp.CorrelationID,
		Probe: operation.NeedsProbe(sp, st), Cancel: st.Cancel != nil,
	}
	for i, p := range sp.Steps {
		a.Steps = append(a.Steps, protocol.Step{PlanStep: p, Phase: st.Steps[i].Phase, Attempts: st.Steps[i].LastAttempt(), Resolved: st.Steps[i].Resolved != nil,
			ErrorCode: st.Steps[i].ErrorCode, Detail: st.Steps[i].Detail, Failure: st.Steps[i].LastFailure()})
		if !a.Probe && st.Steps[i].Phase == operation.StepRunning {
			a.StartedStep = p.ID
		}
	}
	return a
}

func left(now, until time.Time) int64 { return max(until.Sub(now).Milliseconds(), 0) }
