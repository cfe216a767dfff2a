package inproc

import (
	"context"
	"slices"

	"github.com/opsplane/opsplane/shared/bus"
)

// Subscription is one subscriber's place on the bus.
type Subscription struct {
	bus     *Bus
	pattern bus.Pattern
	handle  Handler
	stop    context.CancelFunc
	done    chan struct{} // closed when the goroutine has ended

	// Guarded by bus.mu.
	buffer  []bus.Message
	failing bool // the last call failed
	ended   bool
	stats   Stats
	wake    chan struct{} // of one: there is a message, or it has ended
	room    chan struct{} // closed and replaced when a message leaves the buffer
}

// Close ends the subscription: the call in progress is cancelled and awaited,
// what waits is dropped. The handler itself must not call it.
func (s *Subscription) Close() {
	s.stop()
	<-s.done
	s.end()
}

// end takes the subscription off the bus and counts what was left.
func (s *Subscription) end() (left int) {
	b := s.bus
	b.mu.Lock()
	s.ended = true
	dropped := s.buffer
	s.buffer = nil
	s.stats.Dropped += int64(len(dropped))
	s.openRoom()
	if i := slices.Index(b.subs, s); i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
		b.past.add(s.stats)
	}
	b.mu.Unlock()
	for _, m := range dropped {
		b.tellDrop(m, context.Canceled)
	}
	return len(dropped)
}

// signal and openRoom are called with the lock held.
func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Subscription) openRoom() {
	close(s.room)
	s.room = make(chan struct{})
}
