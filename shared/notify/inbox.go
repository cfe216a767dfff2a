package notify

import (
	"context"
	"time"
)

// inbox takes answers that others send: they write to c alone, and all else is one
// goroutine's.
type inbox[T any] struct {
	c     chan T
	early []T // that were taken from c, and are not taken over yet
}

// newInbox has room for so many, who need not wait then.
func newInbox[T any](most int) inbox[T] { return inbox[T]{c: make(chan T, most)} }

// keep keeps what was taken from c for next.
func (b *inbox[T]) keep(x T) { b.early = append(b.early, x) }

// await waits until there is one, or there may be something new to send.
func (b *inbox[T]) await(ctx context.Context) {
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	select {
	case x := <-b.c:
		b.keep(x)
	case <-again.C:
	case <-ctx.Done():
	}
}

// next returns one that is there.
func (b *inbox[T]) next() (x T, ok bool) {
	if len(b.early) > 0 {
		x, b.early = b.early[0], b.early[1:]
		return x, true
	}
	select {
	case x = <-b.c:
		return x, true
	default:
		return x, false
	}
}

// collect waits for all of so many that are to come.
func (b *inbox[T]) collect(out int) {
	for range out - len(b.early) {
		b.keep(<-b.c)
	}
}

// drain waits for all of so many that are to come, and drops them.
func (b *inbox[T]) drain(out int) {
	b.collect(out)
	b.early = nil
}
