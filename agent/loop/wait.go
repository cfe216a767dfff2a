package loop

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// jitter returns d give or take a fifth.
func jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(d/5*2+1)
}

// backoff returns the wait before try n (from 1): base doubled each time, at
// most most, jittered.
func backoff(n int, base, most time.Duration) time.Duration {
	d := base
	for range min(max(n-1, 0), 20) {
		if d *= 2; d >= most {
			d = most
			break
		}
	}
	return jitter(d)
}

// pause waits for d, or until ctx ends (false) or one of the signals fires.
func pause(ctx context.Context, d time.Duration, signals ...<-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	var wake <-chan struct{} // at most one signal is ever used
	if len(signals) > 0 {
		wake = signals[0]
	}
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// closed tells whether the channel is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lane is a first-in-first-out list from which workers take batches. An item
// waits for nothing but a free worker, so batches grow only under load.
type lane[T any] struct {
	mu    sync.Mutex
	items []T
	wake  chan struct{}
}

func newLane[T any]() *lane[T] { return &lane[T]{wake: make(chan struct{}, 1)} }

func (l *lane[T]) push(items ...T) {
	if len(items) == 0 {
		return
	}
	l.mu.Lock()
	l.items = append(l.items, items...)
	l.mu.Unlock()
	l.signal()
}

func (l *lane[T]) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take returns 1 to most items, or nil when ctx ends.
func (l *lane[T]) take(ctx context.Context, most int) []T {
	for {
		l.mu.Lock()
		if n := min(len(l.items), most); n > 0 {
			batch := append([]T(nil), l.items[:n]...)
			clear(l.items[:n])
			l.items = l.items[n:]
			more := len(l.items) > 0
			l.mu.Unlock()
			if more {
				l.signal()
			}
			return batch
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		}
	}
}

// slots counts how many operations the agent may still take on.
type slots struct {
	mu    sync.Mutex
	free  int
	freed chan struct{} // closed and replaced when slots come back
}

func newSlots(n int) *slots { return &slots{free: n, freed: make(chan struct{})} }

// tryTake takes up to most slots and returns how many it got.
func (s *slots) tryTake(most int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(s.free, most)
	s.free -= n
	return n
}

// take waits for at least one slot and returns how many it got, 0 when ctx ends.
func (s *slots) take(ctx context.Context, most int) int {
	for {
		s.mu.Lock()
		if n := min(s.free, most); n > 0 {
			s.free -= n
			s.mu.Unlock()
			return n
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return 0
		case <-freed:
		}
	}
}

func (s *slots) give(n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	s.free += n
	close(s.freed)
	s.freed = make(chan struct{})
	s.mu.Unlock()
}
