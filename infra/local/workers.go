package local

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/retention"
)

// Cadences of the workers.
const (
	sweepEvery     = 100 * time.Millisecond
	deadEvery      = 2 * time.Second
	retentionEvery = time.Hour
	savePosition   = 250 * time.Millisecond // replayed at most after a crash
	feedBatch      = 500
	planWorkers    = 16 // plans at once
	// publishLinger lets several transitions of an operation share one append.
	publishLinger  = 25 * time.Millisecond
	planVisibility = 60 * time.Second
	// watchdogAfter is how long the sweep, or the reactor, may be silent before
	// the engine says so.
	watchdogAfter = 30 * time.Second
	watchdogEvery = 5 * time.Second
)

// follow reads the change feed for one reader, from where it was, until ctx
// ends. A batch that fails is tried again, with back-off: the position moves
// only past what was dealt with.
// Between batches it waits for linger, so that more is dealt with at once. Each
// time that it comes round it says so to alive, unless that is nil.
func (e *Engine) follow(ctx context.Context, reader string, linger time.Duration, alive func(), handle func(context.Context, []ledger.Change) error) {
	log := e.opts.Logger.With("reader", reader)
	at, err := e.Store.Position(ctx, reader)
	for err != nil && sleep(ctx, time.Second) {
		log.Error("cannot read the feed's position", "err", err)
		at, err = e.Store.Position(ctx, reader)
	}
	saved, savedAt := at, time.Now()
	save := func(ctx context.Context) {
		if at == saved {
			return
		}
		if err := e.Store.SavePosition(ctx, reader, at); err != nil {
			log.Warn("cannot keep the feed's position", "err", err)
			return
		}
		saved, savedAt = at, time.Now()
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		save(ctx)
	}()
	for try := 0; ctx.Err() == nil; {
		changes, next, err := e.ledger.Changes(ctx, at, feedBatch, time.Second)
		if errors.Is(err, ledger.ErrPositionExpired) {
			log.Warn("the feed's position has expired: going through all operations")
			if _, err = e.Relay.Mend(ctx, time.Time{}, ""); err == nil {
				at = ""
				continue
			}
		}
		if err == nil && len(changes) > 0 {
			err = handle(ctx, changes)
		}
		if err != nil {
			if ctx.Err() == nil {
				log.Warn("following the feed failed", "err", err)
			}
			try++
			sleep(ctx, time.Duration(min(try, 50))*100*time.Millisecond)
			continue
		}
		try = 0
		at = next
		if alive != nil {
			alive()
		}
		if time.Since(savedAt) >= savePosition {
			save(ctx)
		}
		if linger > 0 && len(changes) > 0 && len(changes) < feedBatch {
			sleep(ctx, linger)
		}
	}
}

// dispatch moves operations on and rings queues. Of a batch that fails all of it
// is read again: the feed goes on from one position.
func (e *Engine) dispatch(ctx context.Context, changes []ledger.Change) error {
	_, err := e.Relay.DispatchFeed(ctx, changes)
	return err
}

// publish puts journals into streams, and streams on the bus.
func (e *Engine) publish(ctx context.Context, changes []ledger.Change) error {
	if _, err := e.Relay.PublishFeed(ctx, changes); err != nil {
		return err
	}
	return e.Relay.BusFeed(ctx, changes)
}

// sweepLoop runs the sweep all the time and watches that it keeps up.
func (e *Engine) sweepLoop(ctx context.Context) {
	lastDead := time.Time{}
	for sleep(ctx, sweepEvery+time.Duration(rand.IntN(20))*time.Millisecond) {
		res, err := e.Sweep.Run(ctx)
		if err == nil { // it saw everything: an item that fails does not silence it
			e.swept.Store(time.Now().UnixMilli())
		}
		if err = errors.Join(err, res.Err); err != nil && ctx.Err() == nil {
			e.opts.Logger.Warn("sweep failed", "failed", res.Failed, "of", res.Due, "err", err)
			sleep(ctx, time.Second)
		}
		if time.Since(lastDead) < deadEvery {
			continue
		}
		lastDead = time.Now()
		if _, err := e.Sweep.DeadLetters(ctx); err != nil && ctx.Err() == nil {
			e.opts.Logger.Warn("dead letters not taken", "err", err)
		}
	}
}

// retentionLoop deletes what is past its age.
func (e *Engine) retentionLoop(ctx context.Context) {
	for sleep(ctx, time.Minute) {
		n, err := retention.Pass(ctx, e.Store, e.opts.Retention)
		if err != nil && ctx.Err() == nil {
			e.opts.Logger.Warn("retention failed", "err", err)
		} else if n > 0 {
			e.opts.Logger.Info("old operations deleted", "count", n)
		}
		if !sleep(ctx, retentionEvery) {
			return
		}
	}
}

// sleep waits for d and tells whether ctx is still open.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
