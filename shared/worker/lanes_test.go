package worker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/worker"
)

// TestReceiversDelayNoDeadline: a lane that is due is served behind the pass, once
// however often it was found; by then what else was due is dealt with. One that
// fails leaves the others alone, and is served again when it is found again.
func TestReceiversDelayNoDeadline(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.expiring(0, 5*time.Second)
	p.settle()
	p.pass(6 * time.Second)
	good, bad := record.LaneKey("rcv_good"), record.LaneKey("rcv_bad")
	for _, k := range []ledger.Key{good, bad} {
		p.no(p.db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: k, Data: []byte("{}"), Due: p.now().Add(-time.Second)}}))
	}
	h := p.sweepFunction()
	var mu sync.Mutex
	served := map[ledger.Key]int{}
	h.Lanes = &worker.Lanes{Logger: quiet(), Deliver: func(ctx context.Context, lane ledger.Key) error {
		p.want(op, operation.TimedOut)
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > 15*time.Second {
			t.Error("a lane has no bound")
		}
		mu.Lock()
		defer mu.Unlock()
		if served[lane]++; lane == bad {
			return errors.New("it does not answer")
		}
		return nil
	}}
	h.Sweep.Notify = h.Lanes.Found
	for pass := 1; pass <= 2; pass++ {
		out, err := invoke(t.Context(), h.Handle, fromQueue(wakeFor(p.now()), wakeFor(p.now())))
		if err != nil || out != none {
			t.Fatalf("answer %s, %v", out, err)
		}
		if served[good] != pass || served[bad] != pass {
			t.Errorf("pass %d: served %v", pass, served)
		}
	}
}
