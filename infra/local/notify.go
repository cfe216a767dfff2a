package local

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// lanes are those of receivers that are due: the sweep adds them, and each is
// served by one goroutine, so that a receiver that is slow holds up neither the
// sweep nor another receiver.
type lanes struct {
	mu     sync.Mutex
	serves func(ledger.Key) // nil: nobody serves, and what is due stays so
	busy   map[ledger.Key]bool
}

// notifyDue hands on a lane that is due.
func (e *Engine) notifyDue(_ context.Context, key ledger.Key) error {
	e.lanes.mu.Lock()
	defer e.lanes.mu.Unlock()
	if e.lanes.serves == nil || e.lanes.busy[key] {
		return nil
	}
	if e.lanes.busy == nil {
		e.lanes.busy = map[ledger.Key]bool{}
	}
	e.lanes.busy[key] = true
	e.lanes.serves(key)
	return nil
}

// deliver sends what is due to one receiver.
func (e *Engine) deliver(ctx context.Context, key ledger.Key) {
	err := e.Receivers.Deliver(ctx, key)
	if err != nil && ctx.Err() == nil {
		e.opts.Logger.Error("a receiver could not be served", "lane", key.PK, "err", err)
		sleep(ctx, reactAgain)
	}
	e.lanes.mu.Lock()
	defer e.lanes.mu.Unlock()
	delete(e.lanes.busy, key)
}

// notify makes messages of the streams that the records are about. One that cannot
// be told holds up neither the others nor the feed: notifyLoop tries it again.
func (e *Engine) notify(ctx context.Context, changes []ledger.Change) error {
	streams, _ := record.Wakes(changes)
	failed, err := e.Receivers.Each(ctx, streams)
	e.leaveUntold(ctx, failed, err)
	return nil
}

// leaveUntold notes streams that could not be told, which are tried again, and logs
// why: that another wrote first, as happens while many alerts begin, is no error.
func (e *Engine) leaveUntold(ctx context.Context, failed []string, err error) {
	e.untold.add(failed...)
	if err == nil || ctx.Err() != nil {
		return
	}
	level := slog.LevelError
	if lost(err) {
		level = slog.LevelDebug
	}
	e.opts.Logger.Log(ctx, level, "streams could not be told", "streams", len(failed), "err", err)
}

// lost tells whether each of the errors that were joined is a lost race.
func lost(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // what is wrapped is looked at one by one
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !lost(e) })
	}
	return errors.Is(err, ledger.ErrConflict)
}

// notifyLoop serves lanes until ctx ends, and then waits until they are left; those that
// a process before it left held, when it was killed, are free at once. It
// tells all streams once, for what happened while nobody did, and from then on those
// that could not be told.
func (e *Engine) notifyLoop(ctx context.Context) {
	var wg sync.WaitGroup
	for { // the folder's lock says that whoever held lanes is dead
		err := e.Receivers.Release(ctx)
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			e.opts.Logger.Error("lanes of receivers could not be released", "err", err)
		}
		if !sleep(ctx, reactAgain) {
			return
		}
	}
	e.lanes.mu.Lock()
	e.lanes.serves = func(key ledger.Key) { wg.Go(func() { e.deliver(ctx, key) }) }
	e.lanes.mu.Unlock()
	defer func() {
		e.lanes.mu.Lock()
		e.lanes.serves = nil
		e.lanes.mu.Unlock()
		wg.Wait()
	}()
	tell := func(failed []string, err error) bool {
		e.leaveUntold(ctx, failed, err)
		return err == nil || len(failed) > 0
	}
	for !tell(e.Receivers.All(ctx)) && sleep(ctx, reactAgain) {
	}
	for sleep(ctx, reactAgain) {
		if streams := e.untold.take(); len(streams) > 0 {
			tell(e.Receivers.Each(ctx, streams))
		}
	}
}
