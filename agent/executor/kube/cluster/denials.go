package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// DeniedFor is how long the API server must keep saying that a right is missing
// until that is believed: one that has just started says so of every right, until
// it has read its roles.
const DeniedFor = 5 * time.Second

const (
	deniedPause = 500 * time.Millisecond // between two tries
	maxDenied   = 1_000                  // operations that are remembered
)

// Denials are the operations that a right was missing for, and since when. The
// zero value is ready.
type Denials struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// Lenient wraps a step so that a missing right ends it only once it is believed.
func (d *Denials) Lenient(now func() time.Time, f func(ctx context.Context, t *executor.Task) executor.Outcome) func(ctx context.Context, t *executor.Task) executor.Outcome {
	return func(ctx context.Context, t *executor.Task) executor.Outcome {
		o, first := d.Believed(now(), t.Assignment, f(ctx, t))
		if first {
			t.Note(o.ErrorCode, o.Detail)
		}
		return o
	}
}

// Believed turns a missing right into waiting, as long as it is not believed. first:
// it was not missing before.
func (d *Denials) Believed(now time.Time, a *protocol.Assignment, o executor.Outcome) (_ executor.Outcome, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	denied := o.ErrorCode == "forbidden" && o.Class == operation.OutcomePermanent
	since, before := d.since[a.Operation]
	switch {
	case !denied:
		if o.Class == operation.OutcomeDone {
			delete(d.since, a.Operation)
		}
		return o, false
	case !before:
		if d.since == nil || len(d.since) > maxDenied {
			d.since = map[string]time.Time{}
		}
		d.since[a.Operation] = now
	case now.Sub(since) >= DeniedFor:
		delete(d.since, a.Operation)
		return o, false
	}
	w := executor.Waiting(o.ErrorCode, o.Detail)
	w.After, w.CommandID = deniedPause, o.CommandID
	return w, !before
}
