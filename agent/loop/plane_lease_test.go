package loop

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func (p *plane) claim(req protocol.ClaimRequest, c protocol.Claim) protocol.ClaimResult {
	op, res := p.ops[c.Operation], protocol.ClaimResult{Operation: c.Operation, Result: protocol.ClaimGone}
	if op == nil || op.State.Phase.Terminal() {
		return res
	}
	s, now := &op.State, time.Now()
	if !s.Deadline.After(now) {
		res.Result, res.RetryMS = protocol.ClaimRetry, 1000
		return res
	}
	if l := s.Lease; l != nil {
		again := l.Agent == req.AgentID && l.Boot == req.Boot && l.LastReport == 0 && now.Before(l.Until)
		if !again && now.Before(l.Until.Add(testCall)) {
			res.Result = protocol.ClaimHeld
			return res
		}
		if !again {
			_ = p.apply(op, operation.LoseLease{})
		}
	}
	if s.Lease == nil {
		if err := p.apply(op, operation.Claim{Agent: req.AgentID, Boot: req.Boot, Until: p.until(s)}); err != nil {
			res.Result, res.RetryMS = protocol.ClaimRetry, 200
			return res
		}
	}
	s = &op.State
	a := &protocol.Assignment{
		Operation: s.ID, Generation: s.Generation, Run: s.Run, LeaseMS: time.Until(s.Lease.Until).Milliseconds(),
		DeadlineMS: time.Until(s.Deadline).Milliseconds(), Deadline: s.Deadline, Type: s.Type, TargetID: op.Spec.TargetID,
		CorrelationID: op.Spec.CorrelationID, Probe: operation.NeedsProbe(&op.Spec, s), Cancel: s.Cancel != nil,
	}
	for i, st := range op.Spec.Steps {
		a.Steps = append(a.Steps, protocol.Step{PlanStep: st, Phase: s.Steps[i].Phase, Attempts: len(s.Steps[i].Attempts),
			ErrorCode: s.Steps[i].ErrorCode, Detail: s.Steps[i].Detail, Failure: s.Steps[i].LastFailure(), Resolved: s.Steps[i].Resolved != nil})
		if p.untold {
			a.Steps[i].Failure = nil
		}
		if !a.Probe && s.Steps[i].Phase == operation.StepRunning {
			a.StartedStep = st.ID
		}
	}
	res.Result, res.Assignment = protocol.ClaimGranted, a
	return res
}

func (p *plane) until(s *operation.State) time.Time {
	return operation.Timing{Lease: testLease}.LeaseUntil(s, time.Now())
}

func (p *plane) renew(req protocol.RenewRequest, e protocol.RenewalEntry) protocol.RenewResult {
	op, res := p.ops[e.Operation], protocol.RenewResult{Operation: e.Operation, ErrorCode: codeLeaseLost}
	if op == nil || op.State.Lease == nil || time.Now().After(op.State.Lease.Until) {
		return res
	}
	if p.apply(op, operation.Renew{Agent: req.AgentID, Generation: e.Generation, Until: p.until(&op.State), Progress: e.Progress}) != nil {
		return res
	}
	return protocol.RenewResult{Operation: e.Operation, OK: true, Cancel: op.State.Cancel != nil,
		LeaseMS: time.Until(op.State.Lease.Until).Milliseconds(), DeadlineMS: time.Until(op.State.Deadline).Milliseconds()}
}

func (p *plane) report(req protocol.ReportRequest, r protocol.Report) protocol.ReportResult {
	p.heard = append(p.heard, r)
	op, res := p.ops[r.Operation], protocol.ReportResult{Operation: r.Operation}
	if op == nil {
		res.ErrorCode = "not_found"
		return res
	}
	s := &op.State
	if n := len(s.Assignments); s.Lease == nil && n > 0 && r.Final != nil {
		if last := s.Assignments[n-1]; last.Generation == r.Generation && (last.Ended == "reported" || last.Ended == "handed_back" || last.Ended == "ambiguous") {
			res.OK = true // a resend of what ended its lease
			return res
		}
	}
	c := operation.Report{Agent: req.AgentID, Generation: r.Generation, N: r.N, Settled: r.Settled, Progress: r.Progress}
	for _, x := range r.Steps {
		c.Steps = append(c.Steps, operation.StepReport{StepID: x.StepID, Phase: x.Phase, Outcome: x.Outcome, ErrorCode: x.ErrorCode, Detail: x.Detail, CommandID: x.CommandID})
	}
	for _, x := range r.Notes {
		c.Notes = append(c.Notes, operation.ReportNote{Code: x.Code, Detail: x.Detail, StepID: x.StepID})
	}
	if f := r.Final; f != nil {
		c.Final = &operation.Final{Outcome: f.Outcome, Message: f.Message, Cause: f.Cause, Retryable: f.Retryable,
			Verified: f.Verified, NotVerified: f.NotVerified, Residual: f.Residual, Cleanup: f.Cleanup, Details: f.Details}
		if f.ActionCode != "" {
			c.Final.NextAction = &operation.NextAction{Code: f.ActionCode, Text: f.ActionText}
		}
	}
	err := p.apply(op, c)
	barred := slices.ContainsFunc(r.Steps, func(x protocol.StepReport) bool {
		return op.Spec.Bars(s, op.Spec.StepIndex(x.StepID), x.Phase)
	})
	switch {
	case err == nil && barred && !p.lenient:
		res.ErrorCode, res.Cancel = protocol.ResultNotBegun, true
	case err == nil:
		res.OK, res.Cancel = true, op.State.Cancel != nil
	case errors.Is(err, operation.ErrLeaseLost):
		res.ErrorCode = codeLeaseLost
		if r.Final != nil {
			_ = p.apply(op, operation.LateReport{Agent: req.AgentID, Generation: r.Generation, Detail: r.Final.Outcome})
		}
	default:
		res.ErrorCode, res.Detail = "invalid", err.Error()
	}
	return res
}

// phases returns what became of the steps, as "name:phase".
func (p *plane) phases(op string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for i, s := range p.ops[op].Spec.Steps {
		out = append(out, fmt.Sprintf("%s:%s", s.Name, p.ops[op].State.Steps[i].Phase))
	}
	return out
}
