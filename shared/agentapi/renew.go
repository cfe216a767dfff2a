package agentapi

import (
	"context"
	"errors"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Renew lets leases go on.
func (s *Service) Renew(ctx context.Context, cluster string, req protocol.RenewRequest) (protocol.RenewAnswer, error) {
	if len(req.Renewals) > protocol.MaxBatch {
		return protocol.RenewAnswer{}, tooMany("renewals", len(req.Renewals), protocol.MaxBatch)
	}
	agent, err := s.agent(ctx, cluster, req.AgentID, req.Boot)
	if err != nil {
		return protocol.RenewAnswer{}, err
	}
	answer := protocol.RenewAnswer{Results: make([]protocol.RenewResult, len(req.Renewals))}
	each(len(req.Renewals), func(i int) {
		answer.Results[i] = s.renew(ctx, agent.ID, cluster, req.Renewals[i])
	})
	return answer, nil
}

func (s *Service) renew(ctx context.Context, agent, cluster string, r protocol.RenewalEntry) protocol.RenewResult {
	res := protocol.RenewResult{Operation: short(r.Operation)}
	if !id.Valid(id.Operation, r.Operation) {
		res.ErrorCode = "lease_lost"
		return res
	}
	op, err := s.Store.Update(ctx, r.Operation, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		now := s.Store.Now()
		if op.Spec.Cluster != cluster || op.State.Lease == nil || now.After(op.State.Lease.Until) {
			return nil, nil, operation.ErrLeaseLost
		}
		return operation.Renew{Agent: agent, Generation: r.Generation, Until: s.Store.Timing.LeaseUntil(&op.State, now), Progress: progress(r.Progress)}, nil, nil
	})
	switch {
	case err == nil:
		now := s.Store.Now()
		res.OK, res.Cancel = true, op.State.Cancel != nil
		if op.State.Lease != nil {
			res.LeaseMS, res.DeadlineMS = left(now, op.State.Lease.Until), left(now, op.State.Deadline)
		}
	case errors.Is(err, operation.ErrLeaseLost), errors.Is(err, ledger.ErrNotFound):
		res.ErrorCode = "lease_lost"
	default:
		res.ErrorCode = "unavailable"
		s.Logger.WarnContext(ctx, "renewal failed", "operation", r.Operation, "err", err)
	}
	return res
}

// maxBlockerBytes bounds what is kept of one blocker's detail.
const maxBlockerBytes = 512

// progress bounds what an agent tells of its progress.
func progress(p *operation.Progress) *operation.Progress {
	if p == nil {
		return nil
	}
	out := &operation.Progress{Step: short(p.Step), Done: max(p.Done, 0), Total: max(p.Total, 0), Unit: short(p.Unit), Message: detail(p.Message)}
	for _, b := range p.Blockers[:min(len(p.Blockers), operation.MaxProgressBlockers)] {
		out.Blockers = append(out.Blockers, operation.Blocker{Code: short(b.Code), Resource: clean(b.Resource, 512), Rule: clean(b.Rule, 512),
			Detail: clean(b.Detail, maxBlockerBytes), Since: b.Since})
	}
	return out
}
