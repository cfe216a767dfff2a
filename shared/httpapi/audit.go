package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

const (
	auditBacklog = 1024                   // refusals that may wait to be written
	auditBatch   = 50                     // in one commit
	auditEvery   = 100 * time.Millisecond // how long one waits for others
	auditTries   = 5
	auditTimeout = 10 * time.Second // of one try
	// A caller waits for its record for no longer than these make together, 2.4 s.
	auditFirstTries   = 3
	auditFirstTimeout = 700 * time.Millisecond
)

// auditor writes the records of refused calls, in batches and beside the calls:
// a flood of them slows nobody. What does not fit the backlog is dropped and
// counted. Accepted calls have their record in their own commit.
//
// In a process that may be frozen as soon as it has answered nothing goes on
// beside the calls: there each record is written before (first).
type auditor struct {
	ledger  ledger.Ledger
	log     *slog.Logger
	drops   func(records int)
	first   bool
	tries   int
	timeout time.Duration // of one try
	in      chan record.Audit
	stop    chan struct{}
	ended   chan struct{}
}

func newAuditor(l ledger.Ledger, log *slog.Logger, drops func(records int), first bool) *auditor {
	w := &auditor{ledger: l, log: log, drops: drops, first: first, tries: auditTries, timeout: auditTimeout,
		in: make(chan record.Audit, auditBacklog), stop: make(chan struct{}), ended: make(chan struct{})}
	if first {
		w.tries, w.timeout = auditFirstTries, auditFirstTimeout
		close(w.ended)
		return w
	}
	go w.run()
	return w
}

func (w *auditor) add(a record.Audit) {
	if w.first {
		w.write([]record.Audit{a})
		return
	}
	select {
	case w.in <- a:
	default:
		w.drops(1)
	}
}

func (w *auditor) run() {
	defer close(w.ended)
	for {
		select {
		case a := <-w.in:
			w.write(w.gather(a))
		case <-w.stop:
			for {
				select {
				case a := <-w.in:
					w.write(w.gather(a))
				default:
					return
				}
			}
		}
	}
}

// gather waits a moment for more.
func (w *auditor) gather(first record.Audit) []record.Audit {
	batch := []record.Audit{first}
	t := time.NewTimer(auditEvery)
	defer t.Stop()
	for len(batch) < auditBatch {
		select {
		case a := <-w.in:
			batch = append(batch, a)
		case <-t.C:
			return batch
		case <-w.stop:
			select {
			case a := <-w.in:
				batch = append(batch, a)
			default:
				return batch
			}
		}
	}
	return batch
}

func (w *auditor) write(batch []record.Audit) {
	writes := make([]ledger.Write, len(batch))
	for i, a := range batch {
		writes[i] = record.AuditWrite(a)
	}
	var err error
	for try := range w.tries {
		// Not the caller's context: who leaves early is on record too.
		ctx, cancel := context.WithTimeout(context.Background(), w.timeout)
		err = w.ledger.Commit(ctx, writes...)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-w.stop: // no time to wait for a better one
		case <-time.After(auditEvery << try):
		}
	}
	w.drops(len(batch))
	w.log.Error("audit records lost", "records", len(batch), "err", err)
}

func (w *auditor) close(ctx context.Context) error {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refused tells whether an answer is a refusal that is audited: of a call that
// would have changed something, or for want of a right.
func refused(rq *request, status int) bool {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return true
	case rq.route == nil || !rq.route.mutates || status == http.StatusNoContent:
		return false
	}
	return status >= 400
}

// maxAuditPath bounds the path kept of a refused call.
const maxAuditPath = 512

// refusal is the record of a refused call.
func (rq *request) refusal(now time.Time, status int) record.Audit {
	p := strings.ToValidUTF8(rq.http.URL.Path, "?")
	if len(p) > maxAuditPath {
		p = strings.ToValidUTF8(p[:maxAuditPath], "")
	}
	a := record.Audit{At: now.UTC(), Actor: rq.actor(), Method: rq.http.Method, Path: p, Action: rq.pattern(), Status: status,
		CorrelationID: rq.correlation, RemoteAddr: rq.http.RemoteAddr, Reason: string(rq.denied)}
	if rq.problem != nil {
		a.ErrorCode, a.Resource = string(rq.problem.ErrorCode), rq.problem.OperationID
	}
	return a
}
