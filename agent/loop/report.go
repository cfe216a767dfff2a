package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	reportWorkers = 2
	// reportBytes leaves room for the envelope under the plane's limit.
	reportBytes = protocol.MaxBodyBytes - 64<<10
)

// Error codes of a report's result.
const (
	codeLeaseLost   = "lease_lost"
	codeUnavailable = "unavailable"
)

// sending is one report in a call.
type sending struct {
	box    *outbox
	report *protocol.Report
	body   json.RawMessage
}

// report takes outboxes off the lane and sends what they hold, many in a call.
// Two workers run it, so at most two calls are under way; an outbox is in one
// of them at a time.
func (a *Agent) report(ctx context.Context) {
	for {
		boxes := a.outgoing.take(ctx, protocol.MaxBatch)
		if boxes == nil {
			return
		}
		var batch []sending
		size := 0
		for i, o := range boxes {
			r := o.freeze()
			if r == nil {
				continue
			}
			body, err := encode(r)
			if err != nil { // a RawMessage that is no JSON; Details are checked, so a bug
				a.log.Error("a report cannot be encoded", slog.String("operation", o.operation), slog.Any("err", err))
				o.shut(fmt.Errorf("%w: %w", errRefused, err), false)
				continue
			}
			if size+len(body) > reportBytes && len(batch) > 0 {
				o.requeue()
				for _, rest := range boxes[i+1:] {
					a.outgoing.push(rest)
				}
				break
			}
			size += len(body)
			batch = append(batch, sending{o, r, body})
		}
		if len(batch) > 0 {
			a.sendReports(ctx, batch)
		}
	}
}

// sendReports makes one call and hands each outbox its answer.
func (a *Agent) sendReports(ctx context.Context, batch []sending) {
	answer, err := a.postReports(ctx, batch)
	switch {
	case err == nil:
	case refused(err) && len(batch) > 1:
		for i := range batch { // one of them spoils the call: find it
			a.sendReports(ctx, batch[i:i+1])
		}
		return
	case refused(err):
		a.log.Error("the plane refuses a report", slog.String("operation", batch[0].box.operation), slog.Any("err", err))
		a.refuse(batch[0], err.Error())
		return
	default:
		a.metrics.ReportsFailed.Add(int64(len(batch)))
		for _, s := range batch {
			if s.report.Final != nil {
				a.kept.guard(*s.report, s.box.correlation)
			}
			s.box.again()
		}
		return
	}
	for i, s := range batch {
		a.reportAnswered(s, answer.Results[i])
	}
}

func (a *Agent) reportAnswered(s sending, r protocol.ReportResult) {
	if r.Cancel {
		a.runs.cancel(s.box.operation, s.box.generation)
	}
	switch {
	case r.OK, r.ErrorCode == protocol.ResultNotBegun: // the step itself sees to the cancel
		a.metrics.Reports.Add(1)
		s.box.answered()
	case r.ErrorCode == codeUnavailable:
		s.box.again()
	case r.ErrorCode == codeLeaseLost:
		s.box.lost(s.report.Final != nil)
		a.runs.lose(s.box.operation, s.box.generation)
	default:
		a.log.Error("the plane refuses a report", slog.String("operation", s.box.operation),
			slog.String("error_code", r.ErrorCode), slog.String("detail", redact(r.Detail, 512)))
		a.refuse(s, r.ErrorCode)
	}
}

// refuse ends a run whose report the plane will not take: it touches nothing
// more. A final report is tried once more without what may have been refused.
func (a *Agent) refuse(s sending, why string) {
	if f := s.report.Final; f != nil && s.box.strip() {
		return
	}
	s.box.shut(fmt.Errorf("%w: %s", errRefused, why), false)
	a.runs.lose(s.box.operation, s.box.generation)
}

func (a *Agent) postReports(ctx context.Context, batch []sending) (protocol.ReportAnswer, error) {
	bodies := make([]json.RawMessage, len(batch))
	for i := range batch {
		bodies[i] = batch[i].body
	}
	correlation := ""
	if len(batch) == 1 {
		correlation = batch[0].box.correlation
	}
	a.metrics.ReportCalls.Add(1)
	return a.postReportBodies(ctx, correlation, bodies)
}

func (a *Agent) postReportBodies(ctx context.Context, correlation string, bodies []json.RawMessage) (protocol.ReportAnswer, error) {
	var answer protocol.ReportAnswer
	head, err := encode(struct {
		AgentID string `json:"agent_id"`
		Boot    string `json:"boot"`
	}{a.session.get().AgentID, a.boot})
	if err != nil {
		return answer, err
	}
	var b bytes.Buffer // protocol.ReportRequest, with reports that are encoded already
	b.Write(head[:len(head)-1])
	b.WriteString(`,"reports":[`)
	for i, body := range bodies {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(body)
	}
	b.WriteString("]}")
	if err := a.api.call(ctx, "POST", "/v1/agent/reports", correlation, b.Bytes(), &answer); err != nil {
		return answer, err
	}
	if len(answer.Results) != len(bodies) {
		return answer, errors.New("reports: the answer has another number of results")
	}
	return answer, nil
}
