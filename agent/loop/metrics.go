package loop

import "sync/atomic"

// Metrics are the agent's counters since its start. All only grow.
type Metrics struct {
	Doorbells     atomic.Int64 // messages received
	BadDoorbells  atomic.Int64 // put aside: unreadable, unknown kind or version, another cluster's
	QueueErrors   atomic.Int64 // receives that the queue did not answer
	Claims        atomic.Int64 // operations asked for
	Granted       atomic.Int64 // operations taken on
	ReportCalls   atomic.Int64 // calls that carried reports
	Reports       atomic.Int64 // reports acknowledged
	ReportsFailed atomic.Int64 // reports in calls that were not answered
	LeasesLost    atomic.Int64
	Fenced        atomic.Int64 // effects refused by the agent's own fence
	Kept          atomic.Int64 // reports kept past their lease
	Late          atomic.Int64 // kept reports handed over as late
	Finished      atomic.Int64 // final reports acknowledged
	EventsLost    atomic.Int64 // events dropped by a full buffer
	Heartbeats    atomic.Int64 // heartbeats answered
	Previews      atomic.Int64
}

// Metrics returns the counters.
func (a *Agent) Metrics() *Metrics { return a.metrics }
