package cluster

import (
	"net/http"
	"sync/atomic"
	"time"
)

// serverClock is the API server's clock, by the dates of its answers. The zero value knows
// none yet.
type serverClock struct{ last atomic.Pointer[dated] }

// dated is a date of an answer, to the second, and when that was heard. The time since then
// is counted on the monotonic clock: the agent's wall clock may be set meanwhile.
type dated struct{ date, heard time.Time }

func (s *serverClock) note(date string) {
	if at, err := http.ParseTime(date); err == nil {
		s.last.Store(&dated{at, time.Now()})
	}
}

// ServerNow is what time it is by the API server's clock; by the agent's, as long as the
// API server has told none.
func (c *Cluster) ServerNow() time.Time {
	if d := c.server.last.Load(); d != nil {
		return d.date.Add(time.Since(d.heard))
	}
	return c.Now()
}

// NoteDate takes down the date of an answer of the API server's, as HTTP writes it.
func (c *Cluster) NoteDate(date string) { c.server.note(date) }
