package follow

import (
	"context"
	"sync"
	"time"
)

// Shared is a feed that runs while somebody uses it, and a while longer: its users
// come in waves.
type Shared[T any] struct {
	Open   func() *Feed[T]
	Linger time.Duration // how long it goes on after its last user

	mu    sync.Mutex
	users int
	feed  *Feed[T]
	stop  context.CancelFunc
	timer *time.Timer
}

// Acquire returns the running feed; Release gives it back.
func (s *Shared[T]) Acquire() *Feed[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if s.feed == nil {
		var ctx context.Context
		ctx, s.stop = context.WithCancel(context.Background())
		s.feed = s.Open()
		go s.feed.Run(ctx)
	}
	return s.feed
}

// Idle tells whether nobody uses it and no feed of it runs.
func (s *Shared[T]) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users == 0 && s.feed == nil
}

// Users is how many have acquired it and not given it back.
func (s *Shared[T]) Users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users
}

// Release gives back what Acquire returned.
func (s *Shared[T]) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	s.timer = time.AfterFunc(s.Linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users == 0 && s.feed != nil {
			s.stop()
			s.feed, s.timer = nil, nil
		}
	})
}
