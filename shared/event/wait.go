package event

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

const (
	defaultPoll = 500 * time.Millisecond
	// watchedPoll is how often a wait looks again although the ledger signals:
	// another process may have written.
	watchedPoll = 5 * time.Second
	// pollGrowth is how far the pause between looks grows in a wait without
	// signals: each look is a read of every stream's head.
	pollGrowth = 4
)

// bell wakes a wait when one of its streams was written to.
type bell struct {
	rung  <-chan struct{}
	every time.Duration
	most  time.Duration // what every grows to
	stops []func()
}

// listen watches the streams, where the ledger can and they are not too many.
// all: streams that come up later count too, so it looks again often.
func (r *Reader) listen(streams []string, all bool) *bell {
	b := &bell{every: r.Poll}
	if b.every == 0 {
		b.every = defaultPoll
	}
	b.most = pollGrowth * b.every
	w, ok := r.Ledger.(ledger.Watcher)
	if !ok || len(streams) > maxStreams {
		return b
	}
	if !all {
		b.every = watchedPoll
	}
	b.most = b.every
	merged := make(chan struct{}, 1)
	done := make(chan struct{})
	for _, s := range streams {
		ch, stop := w.Watch(record.StreamPK(s))
		b.stops = append(b.stops, stop)
		if len(streams) == 1 {
			b.rung = ch
			return b
		}
		go func() {
			for {
				select {
				case <-ch:
				case <-done:
					return
				}
				select {
				case merged <- struct{}{}:
				default: // one signal waits there already
				}
			}
		}()
	}
	b.rung = merged
	b.stops = append(b.stops, func() { close(done) })
	return b
}

func (b *bell) stop() {
	for _, stop := range b.stops {
		stop()
	}
}

// wait returns at a signal, when it is time to look again, or when left is over.
func (b *bell) wait(ctx context.Context, left time.Duration) error {
	again := b.every*3/4 + rand.N(b.every/2+1)
	b.every = min(b.every*3/2, b.most)
	t := time.NewTimer(min(left, again))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.rung:
	case <-t.C:
	}
	return nil
}
