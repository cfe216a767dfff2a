// Package clustertest holds whoever waits for the API server's word to one promise:
// that it hangs is shown to them that wait, and that it answers again is, too.
package clustertest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Quiet is how long a server may say nothing until it is asked, Missed how long until
// its silence is told, and Back how long until an answer is.
const (
	Quiet  = 4 * time.Second
	Missed = 10 * time.Second
	Back   = 3 * time.Second
)

// Server is an API server that answers until it hangs. The zero value is ready.
type Server struct {
	hangs atomic.Bool

	mu    sync.Mutex
	shown []protocol.Blocker
}

// Pulse is a pulse of the server that hears it by its own questions alone: what a
// watch shows that never breaks over a connection that is dead.
func (s *Server) Pulse() *cluster.Pulse {
	return cluster.NewPulse(func(ctx context.Context) error {
		if s.hangs.Load() {
			<-ctx.Done()
		}
		return ctx.Err()
	})
}

// Hang makes it answer nothing, or answer again.
func (s *Server) Hang(hangs bool) { s.hangs.Store(hangs) }

// Hangs tells whether it answers nothing.
func (s *Server) Hangs() bool { return s.hangs.Load() }

// Blocked is a task's, for Shown.
func (s *Server) Blocked(now []protocol.Blocker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = slices.Clone(now)
}

// Shown is what stands in the task's way.
func (s *Server) Shown() []protocol.Blocker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown
}

// Silence makes the server hang for a while and answer again, and checks what the
// task shows of that. It is called in a bubble of synctest while the task waits.
func (s *Server) Silence(t *testing.T) {
	t.Helper()
	silent := func() (list []protocol.Blocker) {
		synctest.Wait()
		for _, b := range s.Shown() {
			if b.Code == cluster.CodeUnavailable {
				list = append(list, b)
			}
		}
		return list
	}
	time.Sleep(time.Minute)
	if b := silent(); b != nil {
		t.Errorf("while it answers: %+v", b)
	}
	begun := time.Now()
	s.Hang(true)
	time.Sleep(Missed)
	list := silent()
	if len(list) != 1 {
		t.Fatalf("after %s of silence: %+v", Missed, s.Shown())
	}
	b := list[0]
	if b.Since == nil || b.Since.Before(begun) || b.Since.Sub(begun) > Quiet {
		t.Errorf("silent since %s, told: since %v", begun.UTC(), b.Since)
	}
	if b.Resource != "cluster" || b.Rule != "api_server" || !strings.Contains(b.Detail, "does not answer: ") {
		t.Errorf("blocker %+v", b)
	}
	time.Sleep(time.Minute)
	if list := silent(); len(list) != 1 {
		t.Errorf("a minute later: %+v", s.Shown())
	}
	s.Hang(false)
	time.Sleep(Back)
	if b := silent(); b != nil {
		t.Errorf("it answers again: %+v", b)
	}
}
