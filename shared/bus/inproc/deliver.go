package inproc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/opsplane/opsplane/shared/bus"
)

// run delivers until the subscription ends. The message in hand stays out of
// the buffer.
func (s *Subscription) run(ctx context.Context) {
	defer close(s.done)
	for ctx.Err() == nil {
		m, ok, ended := s.next()
		switch {
		case ok:
			s.deliver(ctx, m)
		case ended:
			return
		default:
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
		}
	}
}

func (s *Subscription) next() (m bus.Message, ok, ended bool) {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	if len(s.buffer) == 0 {
		return bus.Message{}, false, s.ended
	}
	m = s.buffer[0]
	s.buffer[0] = bus.Message{} // free its detail
	s.buffer = s.buffer[1:]
	s.openRoom()
	return m, true, false
}

func (s *Subscription) deliver(ctx context.Context, m bus.Message) {
	o := s.bus.o
	pause := o.Backoff
	for attempt := 1; ; attempt++ {
		err := s.attempt(ctx, m)
		given := err != nil && (attempt >= o.Attempts || ctx.Err() != nil)
		s.count(err, attempt > 1, given)
		if given {
			s.bus.tellDrop(m, err)
		}
		if err == nil || given {
			return
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, o.MaxBackoff)
	}
}

// attempt calls the handler once; a panic is an error of that handler.
func (s *Subscription) attempt(ctx context.Context, m bus.Message) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.bus.o.Timeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("handler panicked: %v", r)
		}
	}()
	return s.handle(ctx, m)
}

func (s *Subscription) count(err error, again, given bool) {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	if again {
		s.stats.Retried++
	}
	if err == nil {
		s.stats.Delivered++
	}
	if given {
		s.stats.Dropped++
	}
	failing := err != nil
	if failing && !s.failing {
		s.openRoom() // publishers need not wait for it any longer
	}
	s.failing = failing
}
