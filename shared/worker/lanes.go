package worker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// deliverWithin bounds how long an invocation of the sweep sends to receivers. What
// is left is due again; few are woken at once, and one that waits for a receiver
// wakes for nobody else.
const deliverWithin = 15 * time.Second

// Lanes are those of receivers that a pass of the sweep found due. They are served
// behind the pass and not in it, all at once: a receiver that is slow delays
// neither a deadline nor another receiver.
type Lanes struct {
	// Deliver sends what is due in a lane (notify.Service.Deliver).
	Deliver func(ctx context.Context, lane ledger.Key) error
	Logger  *slog.Logger

	mu  sync.Mutex
	due map[ledger.Key]bool
}

// Found takes a lane down that is due (sweep.Sweep.Notify).
func (l *Lanes) Found(_ context.Context, lane ledger.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due == nil {
		l.due = map[ledger.Key]bool{}
	}
	l.due[lane] = true
	return nil
}

// serve sends what is due in the lanes that were found. One that fails is due
// again, and leaves the others alone. Nil has none.
func (l *Lanes) serve(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	lanes := l.due
	l.due = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, deliverWithin)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	failed := 0
	for lane := range lanes {
		wg.Go(func() {
			err := l.Deliver(ctx, lane)
			if err == nil {
				return
			}
			l.Logger.WarnContext(ctx, "a receiver could not be served", "lane", lane.PK, "err", err)
			mu.Lock()
			defer mu.Unlock()
			if failed++; first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	if first != nil {
		return fmt.Errorf("serve receivers: %d of %d failed, such as: %w", failed, len(lanes), first)
	}
	return nil
}
