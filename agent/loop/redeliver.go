package loop

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

const redeliverEvery = time.Second

// redeliver hands over the reports that outlived their lease, once the plane
// answers. Where the generation is still the newest the operation is claimed
// again: the new run probes and tells the truth. Else the report is sent once
// as it is, and the plane keeps it in the journal as late.
func (a *Agent) redeliver(ctx context.Context) {
	for {
		if !pause(ctx, jitter(redeliverEvery), a.kept.kick) {
			return
		}
		if a.kept.empty() || !a.session.isUp() {
			continue
		}
		due := a.kept.dueNow(a.mono(), protocol.MaxBatch)
		var wg sync.WaitGroup
		for _, entry := range due {
			wg.Go(func() { a.redeliverOne(ctx, entry) })
		}
		wg.Wait()
	}
}

func (a *Agent) redeliverOne(ctx context.Context, entry *keptReport) {
	op, generation := entry.Report.Operation, entry.Report.Generation
	if a.runs.holds(op) { // a newer run tells it, or has just begun to
		a.kept.postpone(entry, a.mono(), 0)
		return
	}
	if a.slots.tryTake(1) == 0 {
		a.kept.postpone(entry, a.mono(), 0)
		return
	}
	res, started, err := a.claims.ask(ctx, op, generation)
	if !started {
		a.slots.give(1)
	}
	switch {
	case err != nil:
		a.kept.postpone(entry, a.mono(), 0)
	case res.Result == protocol.ClaimGranted: // the run has taken it over
		a.kept.postpone(entry, a.mono(), 0)
	case res.Result == protocol.ClaimRetry:
		a.kept.postpone(entry, a.mono(), ms(res.RetryMS))
	default:
		a.sendLate(ctx, entry)
	}
}

// sendLate sends a report under a generation that is over.
func (a *Agent) sendLate(ctx context.Context, entry *keptReport) {
	r := entry.aged(a.now())
	body, err := encode(r)
	if err == nil {
		var answer protocol.ReportAnswer
		answer, err = a.postReportBodies(ctx, entry.Correlation, []json.RawMessage{body})
		if err == nil && answer.Results[0].ErrorCode == codeUnavailable {
			a.kept.postpone(entry, a.mono(), 0)
			return
		}
	}
	if err != nil && !refused(err) {
		a.kept.postpone(entry, a.mono(), 0)
		return
	}
	a.metrics.Late.Add(1)
	a.log.Info("a report was handed over late", slog.String("operation", r.Operation), slog.Int64("generation", r.Generation))
	a.kept.drop(r.Operation, r.Generation)
}
