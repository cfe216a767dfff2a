package agentapi

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// Limits of one report beyond those of package protocol.
const (
	maxNotes    = 50
	maxSteps    = 100
	maxListed   = 50
	maxObserved = 20
	// maxListedBytes bounds one text of a list of the result: the result and the
	// rest of the state share an item.
	maxListedBytes = 512
	// maxPartBytes bounds one item of commands, maxOutputs the outputs of one
	// report: they share its commit with the state.
	maxPartBytes = 256 << 10
	maxOutputs   = 512 << 10
)

// Report takes what the lease holders tell.
func (s *Service) Report(ctx context.Context, cluster string, req protocol.ReportRequest) (protocol.ReportAnswer, error) {
	if len(req.Reports) > protocol.MaxBatch {
		return protocol.ReportAnswer{}, tooMany("reports", len(req.Reports), protocol.MaxBatch)
	}
	agent, err := s.agent(ctx, cluster, req.AgentID, req.Boot)
	if err != nil {
		return protocol.ReportAnswer{}, err
	}
	answer := protocol.ReportAnswer{Results: make([]protocol.ReportResult, len(req.Reports))}
	each(len(req.Reports), func(i int) {
		answer.Results[i] = s.report(ctx, agent.ID, cluster, req.Reports[i])
	})
	return answer, nil
}

func (s *Service) report(ctx context.Context, agent, cluster string, r protocol.Report) protocol.ReportResult {
	res := protocol.ReportResult{Operation: short(r.Operation)}
	if !id.Valid(id.Operation, r.Operation) {
		res.ErrorCode, res.Detail = "invalid", "operation is not the id of one"
		return res
	}
	change, err := reportOf(agent, r)
	if err != nil {
		res.ErrorCode, res.Detail = "invalid", err.Error()
		return res
	}
	op, err := s.Store.Update(ctx, r.Operation, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		if op.Spec.Cluster != cluster {
			return nil, nil, ledger.ErrNotFound
		}
		if taken(op, agent, r) {
			return nil, nil, nil
		}
		extra, err := s.besides(ctx, op, r)
		return change, extra, err
	})
	switch {
	case err == nil && barred(&op, r):
		res.ErrorCode, res.Detail, res.Cancel = protocol.ResultNotBegun, "a cancel was accepted before the step began", true
	case err == nil:
		res.OK, res.Cancel = true, op.State.Cancel != nil
	case errors.Is(err, ledger.ErrNotFound):
		res.ErrorCode = "not_found"
	case errors.Is(err, operation.ErrLeaseLost), errors.Is(err, operation.ErrTerminal):
		res.ErrorCode = "lease_lost"
		s.late(ctx, agent, r)
	case errors.Is(err, operation.ErrInvalidReport), errors.Is(err, operation.ErrIllegal), errors.Is(err, ledger.ErrInvalid):
		res.ErrorCode, res.Detail = "invalid", err.Error()
	default:
		res.ErrorCode, res.Detail = "unavailable", "the plane cannot take the report now; send it again"
		s.Logger.WarnContext(ctx, "report failed", "operation", r.Operation, "err", err)
	}
	return res
}

// taken tells whether the report is a resend of what was taken already: its
// number is used, or it ended its lease.
func taken(op *operation.Operation, agent string, r protocol.Report) bool {
	if l := op.State.Lease; l != nil && l.Agent == agent && l.Generation == r.Generation {
		return r.N <= l.LastReport
	}
	return r.Final != nil && slices.ContainsFunc(op.State.Assignments, func(a operation.Assignment) bool {
		return a.Agent == agent && a.Generation == r.Generation && slices.Contains([]string{"reported", "handed_back", "ambiguous"}, a.Ended)
	})
}

// barred tells whether the report, or the one that it is a resend of, begins a step that
// was not let begin.
func barred(op *operation.Operation, r protocol.Report) bool {
	return slices.ContainsFunc(r.Steps, func(x protocol.StepReport) bool {
		i := op.Spec.StepIndex(x.StepID)
		return i >= 0 && op.Spec.Bars(&op.State, i, x.Phase)
	})
}

// late keeps an outcome that came after the lease was lost. It changes nothing.
func (s *Service) late(ctx context.Context, agent string, r protocol.Report) {
	if r.Final == nil {
		return
	}
	_, err := s.Store.Update(ctx, r.Operation, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		held := slices.ContainsFunc(op.State.Assignments, func(a operation.Assignment) bool {
			return a.Agent == agent && a.Generation == r.Generation
		})
		if !held { // only who once held it is heard
			return nil, nil, nil
		}
		return operation.LateReport{Agent: agent, Generation: r.Generation, Detail: "late: " + short(r.Final.Outcome) + ": " + detail(r.Final.Message)}, nil, nil
	})
	if err != nil {
		s.Logger.WarnContext(ctx, "late report not kept", "operation", r.Operation, "err", err)
	}
}

// besides returns what is written beside the state: the commands, and what was
// observed of the operation's own resources.
func (s *Service) besides(ctx context.Context, op *operation.Operation, r protocol.Report) ([]ledger.Write, error) {
	var ws []ledger.Write
	for part, cmds := range parts(s.commands(op, r)) {
		ws = append(ws, record.CommandWrite(op.Spec.ID, r.Generation, r.N, part, cmds))
	}
	if r.Final == nil || r.Final.Observed == nil {
		return ws, nil
	}
	objects, _ := fleet.Objects(op.Spec.Cluster, r.Final.Observed, s.Store.Now())
	objects = slices.DeleteFunc(objects, func(o fleet.Object) bool { return !slices.Contains(op.Spec.Resources, o.ID) })
	if len(objects) > maxObserved {
		objects = objects[:maxObserved]
	}
	if len(objects) == 0 {
		return ws, nil
	}
	merged, err := s.Store.MergeObjects(ctx, objects)
	return append(ws, merged...), err
}

func (s *Service) commands(op *operation.Operation, r protocol.Report) []record.Command {
	now := s.Store.Now().UTC()
	ago := func(ms int64) time.Time {
		return now.Add(-time.Duration(min(max(ms, 0), 24*3600*1000)) * time.Millisecond).Truncate(time.Millisecond)
	}
	out := make([]record.Command, 0, len(r.Commands))
	outputs := 0
	for _, c := range r.Commands {
		x := record.Command{ID: short(c.ID), StepID: short(c.StepID), Attempt: c.Attempt, Generation: r.Generation,
			Name: clean(c.Name, 512), Resource: clean(c.Resource, 512), Category: short(c.Category),
			Output: clean(c.Output, protocol.MaxOutputBytes), StartedAt: ago(c.StartAgoMS)}
		if c.Category != "" {
			at := ago(c.EndAgoMS)
			x.EndedAt = &at
		}
		if op.Spec.StepIndex(x.StepID) < 0 || !id.Valid(id.Command, x.ID) {
			continue
		}
		if outputs += len(x.Output); outputs > maxOutputs {
			x.Output = "left out: the outputs of one report are too long"
		}
		out = append(out, x)
	}
	return out
}

// parts splits commands into what fits in an item each.
func parts(cmds []record.Command) [][]record.Command {
	var out [][]record.Command
	n := maxPartBytes
	for _, c := range cmds {
		b := len(record.Encode(c)) + 1
		if n += b; n > maxPartBytes {
			out, n = append(out, nil), b
		}
		out[len(out)-1] = append(out[len(out)-1], c)
	}
	return out
}

// reportOf checks a report's sizes and turns it into the domain's change.
func reportOf(agent string, r protocol.Report) (operation.Report, error) {
	switch {
	case r.N < 1:
		return operation.Report{}, operation.Refuse("invalid", "n must be from 1")
	case len(r.Steps) > maxSteps:
		return operation.Report{}, tooMany("steps", len(r.Steps), maxSteps)
	case len(r.Commands) > protocol.MaxCommands:
		return operation.Report{}, tooMany("commands", len(r.Commands), protocol.MaxCommands)
	case len(r.Notes) > maxNotes:
		return operation.Report{}, tooMany("notes", len(r.Notes), maxNotes)
	case r.Final != nil && len(r.Final.Details) > protocol.MaxDetailsBytes:
		return operation.Report{}, tooMany("bytes of details", len(r.Final.Details), protocol.MaxDetailsBytes)
	}
	if r.Final != nil && len(r.Final.Details) > 0 { // they are served as they came
		if err := operation.CheckJSON("/final/details", r.Final.Details); err != nil {
			return operation.Report{}, operation.Refuse("invalid", "%s", err)
		}
	}
	out := operation.Report{Agent: agent, Generation: r.Generation, N: r.N, Settled: r.Settled, Progress: progress(r.Progress)}
	for _, st := range r.Steps {
		out.Steps = append(out.Steps, operation.StepReport{StepID: st.StepID, Phase: st.Phase, Outcome: short(st.Outcome),
			ErrorCode: short(st.ErrorCode), Detail: detail(st.Detail), CommandID: short(st.CommandID)})
	}
	for _, n := range r.Notes {
		out.Notes = append(out.Notes, operation.ReportNote{Code: short(n.Code), Detail: detail(n.Detail), StepID: short(n.StepID)})
	}
	if f := r.Final; f != nil {
		out.Final = finalOf(f)
	}
	return out, nil
}

func finalOf(f *protocol.Final) *operation.Final {
	out := &operation.Final{Outcome: short(f.Outcome), Message: detail(f.Message), Retryable: f.Retryable,
		Verified: texts(f.Verified), NotVerified: texts(f.NotVerified), Details: f.Details,
		Observed: f.Observed != nil || len(f.Verified) > 0}
	if f.Cause != nil {
		out.Cause = &operation.Cause{ErrorCode: short(f.Cause.ErrorCode), StepID: short(f.Cause.StepID),
			CommandID: short(f.Cause.CommandID), Detail: detail(f.Cause.Detail)}
	}
	if f.ActionCode != "" {
		out.NextAction = &operation.NextAction{Code: short(f.ActionCode), Text: detail(f.ActionText)}
	}
	if f.Cleanup != nil {
		out.Cleanup = &operation.Cleanup{State: short(f.Cleanup.State), Detail: detail(f.Cleanup.Detail)}
	}
	for i, r := range f.Residual {
		if i == maxListed {
			break
		}
		out.Residual = append(out.Residual, operation.Residual{StepID: short(r.StepID), Step: short(r.Step), Resource: short(r.Resource), Detail: clean(r.Detail, maxListedBytes)})
	}
	return out
}

func texts(in []string) []string {
	out := make([]string, 0, min(len(in), maxListed))
	for i, s := range in {
		if i == maxListed {
			break
		}
		out = append(out, clean(s, maxListedBytes))
	}
	return out
}
