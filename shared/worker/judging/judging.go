// Package judging has a handler of package worker told what the reactor has counted.
// It is apart from the handlers, of which some judge nothing and link no reactor.
package judging

import (
	"time"

	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/worker"
)

// Counts returns what the reactor has counted until it is called (worker.React.Counts,
// worker.Sweep.Counts).
func Counts(r *react.Reactor) func() worker.Judged {
	return func() worker.Judged { return judged(r.Metrics.Read()) }
}

// judged sums what a reactor has counted.
func judged(s react.Stats) worker.Judged {
	j := worker.Judged{Counts: s.Counts(), Latency: time.Duration(s.LatencySum * float64(time.Second)),
		Trouble: s.Lost + s.Skipped + s.Errors + s.Faulty + s.Panics + s.SetBack}
	for _, n := range s.Told {
		j.Told += n
	}
	for _, n := range s.Latency {
		j.Fired += n
	}
	return j
}
