package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	deniedPause = 500 * time.Millisecond // between two tries
	// deniedApart is how far apart two denials are of one occasion: an operation may
	// meet an API server that restarts more than once in the hours that it waits.
	deniedApart = 2 * executor.DeniedFor
	maxDenied   = 1_000 // operations that are remembered
)

// Denials are the operations that a right was missing for, and since when. The
// zero value is ready.
type Denials struct {
	mu     sync.Mutex
	denied map[string]denied // by operation
}

// denied is when a right was missing for an operation, without a longer pause.
type denied struct{ since, last time.Time }

// dropOldest forgets the operation that met it last longest ago. The caller holds d.mu.
func (d *Denials) dropOldest() {
	oldest := ""
	for op, x := range d.denied {
		if oldest == "" || x.last.Before(d.denied[oldest].last) {
			oldest = op
		}
	}
	delete(d.denied, oldest)
}

// Lenient wraps a step so that a missing right ends it only once it is believed.
func (d *Denials) Lenient(now func() time.Time, f func(ctx context.Context, t *executor.Task) executor.Outcome) func(ctx context.Context, t *executor.Task) executor.Outcome {
	return func(ctx context.Context, t *executor.Task) executor.Outcome {
		o := f(ctx, t)
		o, first := d.Believed(now(), t.Assignment, o)
		if first {
			t.Note(o.ErrorCode, o.Detail)
		}
		return o
	}
}

// Believed turns a missing right into waiting, as long as it is not believed: until
// the operation has met it for executor.DeniedFor, without a pause of twice that. first: it
// was not missing just before.
func (d *Denials) Believed(now time.Time, a *protocol.Assignment, o executor.Outcome) (_ executor.Outcome, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.ErrorCode != "forbidden" || o.Class != operation.OutcomePermanent {
		if o.Class == operation.OutcomeDone {
			delete(d.denied, a.Operation)
		}
		return o, false
	}
	was, before := d.denied[a.Operation]
	if before && now.Sub(was.last) > deniedApart {
		before = false
	}
	switch {
	case !before:
		if d.denied == nil {
			d.denied = map[string]denied{}
		}
		if len(d.denied) >= maxDenied {
			d.dropOldest()
		}
		was.since = now
	case now.Sub(was.since) >= executor.DeniedFor:
		delete(d.denied, a.Operation)
		return o, false
	}
	was.last = now
	d.denied[a.Operation] = was
	w := executor.Waiting(o.ErrorCode, o.Detail)
	w.After, w.CommandID = deniedPause, o.CommandID
	return w, !before
}
