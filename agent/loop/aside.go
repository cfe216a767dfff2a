package loop

import (
	"sync"
	"time"
)

// aside holds the operations that this agent handed over: it leaves their
// doorbells to other agents until a time on its own clock. A lone agent takes
// them up again after that.
type aside struct {
	mu    sync.Mutex
	until map[string]time.Duration
}

func newAside() *aside { return &aside{until: map[string]time.Duration{}} }

func (s *aside) put(op string, until time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until[op] = until
}

// left is how much longer the operation is left to others; 0: no longer.
func (s *aside) left(op string, now time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o, until := range s.until { // few, and most of them over
		if until <= now {
			delete(s.until, o)
		}
	}
	return max(s.until[op]-now, 0)
}
