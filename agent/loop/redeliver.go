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
// answers. Each is sent under its old generation first: nobody may have taken
// the operation yet, and then it counts; else the plane keeps it in the journal
// as late. Where that generation is still the newest the operation is then
// claimed again, so that a probe tells the truth.
func (a *Agent) redeliver(ctx context.Context) {
	for {
		if !pause(ctx, jitter(redeliverEvery), a.kept.kick) {
			return
		}
		if !a.session.isUp() {
			continue
		}
		var untold []*keptReport
		var wg sync.WaitGroup
		for _, entry := range a.kept.dueNow(a.mono(), protocol.MaxBatch) {
			if entry.Told {
				wg.Go(func() { a.reclaim(ctx, entry) })
			} else {
				untold = append(untold, entry)
			}
		}
		a.tellLate(ctx, untold)
		wg.Wait()
	}
}

// tellLate sends reports under generations that are over, in as few calls as
// their size allows.
func (a *Agent) tellLate(ctx context.Context, entries []*keptReport) {
	for len(entries) > 0 {
		var bodies []json.RawMessage
		size := 0
		for _, entry := range entries {
			body, err := encode(entry.aged(a.now()))
			if err != nil {
				body = json.RawMessage("{}") // refused by the plane and dropped below
			}
			if size += len(body); size > reportBytes && len(bodies) > 0 {
				break
			}
			bodies = append(bodies, body)
		}
		batch := entries[:len(bodies)]
		entries = entries[len(bodies):]
		answer, err := a.postReportBodies(ctx, "", bodies)
		if refused(err) && len(batch) > 1 {
			for i := range batch {
				a.tellLate(ctx, batch[i:i+1])
			}
			continue
		}
		for i, entry := range batch {
			switch {
			case refused(err):
				a.dropLate(entry, "refused")
			case err != nil || answer.Results[i].ErrorCode == codeUnavailable:
				a.kept.postpone(entry, a.mono(), 0)
			case answer.Results[i].OK:
				a.metrics.Finished.Add(1)
				a.dropLate(entry, "taken")
			case answer.Results[i].ErrorCode == codeLeaseLost:
				a.metrics.Late.Add(1)
				a.kept.tell(entry)
			default:
				a.dropLate(entry, answer.Results[i].ErrorCode)
			}
		}
	}
}

// reclaim asks for an operation that this agent lost while the plane was away.
func (a *Agent) reclaim(ctx context.Context, entry *keptReport) {
	op, generation := entry.Report.Operation, entry.Report.Generation
	if a.runs.holds(op) || a.slots.tryTake(1) == 0 { // a newer run, or no room
		a.kept.postpone(entry, a.mono(), 0)
		return
	}
	res, started, err := a.claims.ask(ctx, op, generation)
	if !started {
		a.slots.give(1)
	}
	switch {
	case err != nil || res.Result == protocol.ClaimGranted: // granted: the run takes it over and drops it
		a.kept.postpone(entry, a.mono(), 0)
	case res.Result == protocol.ClaimRetry:
		a.kept.postpone(entry, a.mono(), ms(res.RetryMS))
	default:
		a.dropLate(entry, "late")
	}
}

func (a *Agent) dropLate(entry *keptReport, how string) {
	a.log.Info("a kept report is done with", slog.String("operation", entry.Report.Operation),
		slog.Int64("generation", entry.Report.Generation), slog.String("how", redact(how, 64)))
	a.kept.drop(entry.Report.Operation, entry.Report.Generation)
}
