package local

import (
	"context"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// reactAgain is how soon a stream that could not be judged is tried again.
const reactAgain = 2 * time.Second

// behind are the streams that could not be judged.
type behind struct {
	mu      sync.Mutex
	streams map[string]bool // to be tried again
	since   map[string]time.Time
}

func (b *behind) add(streams ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.streams == nil {
		b.streams, b.since = map[string]bool{}, map[string]time.Time{}
	}
	for _, s := range streams {
		b.streams[s] = true
		if b.since[s].IsZero() {
			b.since[s] = time.Now()
		}
	}
}

// caughtUp forgets those of the tried streams that are not to be tried again.
func (b *behind) caughtUp(tried []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range tried {
		if !b.streams[s] {
			delete(b.since, s)
		}
	}
}

// longer tells how many streams have been behind for longer than d, and since when
// the oldest has.
func (b *behind) longer(now time.Time, d time.Duration) (n int, oldest time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.since {
		if now.Sub(t) > d {
			n++
			if oldest.IsZero() || t.Before(oldest) {
				oldest = t
			}
		}
	}
	return n, oldest
}

func (b *behind) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]string, 0, len(b.streams))
	for s := range b.streams {
		out = append(out, s)
	}
	clear(b.streams)
	return out
}

// has tells whether the stream waits to be tried again.
func (b *behind) has(stream string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streams[stream]
}

// reactDue judges a stream of which a timer is due. One that cannot be judged
// leaves the sweep alone.
func (e *Engine) reactDue(ctx context.Context, stream string) error {
	if e.behind.has(stream) {
		return nil
	}
	if err := e.Reactor.Follow(ctx, stream); err != nil && ctx.Err() == nil {
		e.behind.add(stream)
		e.opts.Logger.Error("a stream could not be judged", "stream", stream, "err", err)
	}
	return nil
}

// react judges the streams that the records are about. One that cannot be judged
// holds up neither the others nor the feed: reactLoop tries it again.
func (e *Engine) react(ctx context.Context, changes []ledger.Change) error {
	failed, err := e.Reactor.Take(ctx, changes)
	e.behind.add(failed...)
	if err != nil && len(failed) == 0 {
		return err // the streams could not be listed
	}
	if err != nil && ctx.Err() == nil {
		e.opts.Logger.Error("streams could not be judged", "streams", len(failed), "err", err)
	}
	return nil
}

// reactLoop judges all streams once, for what happened while nobody did, and from
// then on those that could not be judged.
func (e *Engine) reactLoop(ctx context.Context) {
	judge := func(failed []string, err error) bool {
		e.behind.add(failed...)
		if err != nil && ctx.Err() == nil {
			e.opts.Logger.Error("streams could not be judged", "streams", len(failed), "err", err)
		}
		return err == nil || len(failed) > 0
	}
	for !judge(e.Reactor.All(ctx)) && sleep(ctx, reactAgain) {
	}
	for sleep(ctx, reactAgain) {
		if streams := e.behind.take(); len(streams) > 0 {
			judge(e.Reactor.Each(ctx, streams))
			e.behind.caughtUp(streams)
		}
	}
}
