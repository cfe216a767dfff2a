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
	offered bool   // only while this agent is cut off
	code    string // of what it waited for too long when it was handed over, since then; "": nothing
	since   time.Duration
}

func newAside() *aside { return &aside{held: map[string]asideUntil{}} }

func (s *aside) put(op string, until time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[op] = asideUntil{at: until}
}

// putWaiting is put of an operation that waits for what the code says since a time.
func (s *aside) putWaiting(op, code string, until, since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[op] = asideUntil{at: until, code: code, since: since}
}

// waitedFor tells what the operation waited for when it was handed over, and since when,
// if it was lately and for that; "": it was not.
func (s *aside) waitedFor(op string) (code string, since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[op].code, s.held[op].since
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
