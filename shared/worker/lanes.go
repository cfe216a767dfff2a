package worker

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

const (
	// deliverWithin bounds how long an invocation of the sweep serves a lane: one try
	// of the longest timeout that a receiver may have (notify.MaxTimeout), and 5 s to
	// read what is due and to keep what came of it. What is left is due again.
	deliverWithin = 35 * time.Second
	// lookEvery is how often what falls due is looked for while lanes are served.
	lookEvery = time.Second
)

// Lanes are those of receivers that a pass of the sweep found due. They are served
// behind the pass and not in it, all at once: a receiver that is slow delays neither
// a deadline nor another receiver.
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

// serve sends what is due in the lanes that were found, until all are served or the
// time is over, and returns how many it left to others. One that fails is due again,
// and leaves the others alone.
//
// Meanwhile it calls look: few are woken at once, and when each of them waits for a
// receiver nobody else would look after time. The lanes that this finds are served,
// too, where there is time for a whole try. Nil has none.
func (l *Lanes) serve(ctx context.Context, look func(context.Context)) (left int, err error) {
	if l == nil {
		return 0, nil
	}
	var first error
	done, running, served, failed := make(chan error), 0, 0, 0
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for {
		if at, ok := ctx.Deadline(); served == 0 || !ok || time.Until(at) >= deliverWithin {
			for _, lane := range l.take() {
				running, served = running+1, served+1
				go func() { done <- l.one(ctx, lane) }()
			}
		}
		if running == 0 {
			break
		}
		select {
		case err := <-done:
			if running--; err == nil {
				continue
			}
			if failed++; first == nil {
				first = err
			}
		case <-again.C:
			if ctx.Err() == nil {
				look(ctx)
			}
		}
	}
	if first != nil {
		err = fmt.Errorf("serve receivers: %d of %d failed, such as: %w", failed, served, first)
	}
	return len(l.take()), err
}

// one serves a lane.
func (l *Lanes) one(ctx context.Context, lane ledger.Key) error {
	ctx, cancel := context.WithTimeout(ctx, deliverWithin)
	defer cancel()
	err := l.Deliver(ctx, lane)
	if err != nil {
		l.Logger.WarnContext(ctx, "a receiver could not be served", "lane", lane.PK, "err", err)
	}
	return err
}

// take returns the lanes that were found since it was last called.
func (l *Lanes) take() []ledger.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := slices.Collect(maps.Keys(l.due))
	l.due = nil
	return found
}
