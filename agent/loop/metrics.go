package loop

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Metrics are the agent's counters since its start. All only grow.
type Metrics struct {
	Doorbells     atomic.Int64 // messages received
	BadDoorbells  atomic.Int64 // put aside: unreadable, unknown kind or version, another cluster's
	QueuePolls    atomic.Int64 // receives that the queue answered
	QueueErrors   atomic.Int64 // receives that the queue did not answer
	PlaneCalls    atomic.Int64 // calls to the plane's API
	PlaneErrors   atomic.Int64 // of those, the ones without a good answer
	Claims        atomic.Int64 // operations asked for
	Granted       atomic.Int64 // operations taken on
	ReportCalls   atomic.Int64 // calls that carried reports
	Reports       atomic.Int64 // reports acknowledged
	ReportsFailed atomic.Int64 // reports in calls that were not answered: they are sent again
	LeasesLost    atomic.Int64
	Fenced        atomic.Int64 // effects refused by the agent's own fence
	Kept          atomic.Int64 // reports kept past their lease
	Late          atomic.Int64 // kept reports handed over as late
	Finished      atomic.Int64 // final reports acknowledged
	Objects       atomic.Int64 // inventory objects that the plane took
	Snapshots     atomic.Int64 // whole inventories that the plane took
	EventsSent    atomic.Int64 // events that the plane took
	EventsLost    atomic.Int64 // events dropped by a full buffer, or refused
	Heartbeats    atomic.Int64 // heartbeats answered
	Previews      atomic.Int64

	Ended   Tally // runs by outcome (protocol.Final*)
	Steps   Tally // attempts of steps by outcome (operation.Outcome*)
	Effects Tally // commands by category of the response (protocol.Command)
}

// Metrics returns the counters.
func (a *Agent) Metrics() *Metrics { return a.metrics }

// tallyMost bounds the labels of one tally: what an executor says is no reason
// to grow without end.
const tallyMost = 16

// Tally counts by a label out of a small set. The zero value is ready.
type Tally struct {
	mu sync.Mutex
	n  map[string]int64
}

// Add counts one. Past tallyMost labels a new one counts as "other".
func (t *Tally) Add(label string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int64{}
	}
	if _, known := t.n[label]; !known && len(t.n) >= tallyMost {
		label = "other"
	}
	t.n[label]++
}

// Each calls f with each label and its count, in the labels' order.
func (t *Tally) Each(f func(label string, n int64)) {
	t.mu.Lock()
	counts := maps.Clone(t.n)
	t.mu.Unlock()
	for _, label := range slices.Sorted(maps.Keys(counts)) {
		f(label, counts[label])
	}
}
