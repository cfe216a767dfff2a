package loop

import (
	"sync"
	"time"
)

// offeredOnce is how long it is known that an operation was left to other agents, so
// that it is not left to them a second time.
const offeredOnce = time.Minute

// aside holds the operations that this agent handed over, or offers to others while
// it is cut off: it leaves their doorbells to other agents until a time on its own
// clock. A lone agent takes them up after that.
type aside struct {
	mu   sync.Mutex
	held map[string]asideUntil
}

type asideUntil struct {
	at      time.Duration
	offered bool // only while this agent is cut off
	silent  bool // handed over since nothing answers, since then
	since   time.Duration
}

func newAside() *aside { return &aside{held: map[string]asideUntil{}} }

func (s *aside) put(op string, until time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[op] = asideUntil{at: until}
}

// putSilent is put of an operation for which nothing answers since a time.
func (s *aside) putSilent(op string, until, since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[op] = asideUntil{at: until, silent: true, since: since}
}

// silentSince tells since when nothing answered when the operation was handed over, if it
// was lately and for that.
func (s *aside) silentSince(op string) (since time.Duration, was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[op].since, s.held[op].silent
}

// left is how much longer an operation that was handed over is left to others; 0: no
// longer.
func (s *aside) left(op string, now time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(now)
	if s.held[op].offered {
		return 0
	}
	return max(s.held[op].at-now, 0)
}

// offer leaves the operation to others for a while, unless it was lately.
func (s *aside) offer(op string, now, d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(now)
	if _, lately := s.held[op]; !lately {
		s.held[op] = asideUntil{at: now + d, offered: true}
	}
	return max(s.held[op].at-now, 0)
}

// forget drops what is long over: few, and most of them are.
func (s *aside) forget(now time.Duration) {
	for o, until := range s.held {
		if until.at+offeredOnce <= now {
			delete(s.held, o)
		}
	}
}
