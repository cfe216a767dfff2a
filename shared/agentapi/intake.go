package agentapi

import (
	"sync/atomic"

	"github.com/opsplane/opsplane/shared/tally"
)

// Received says what has become of events that agents sent.
type Received struct {
	Taken   int64 // appended to their streams
	Resent  int64 // dropped: taken before
	Refused int64 // not taken for what they are
	Gaps    int64 // stretches of numbers that are missing
	Missing int64 // the numbers in them
	Raised  int64 // of those taken and the gaps, those that the stream's clock received much later (event.Raised)
}

func (r *Received) add(o Received) {
	r.Taken, r.Resent, r.Refused, r.Gaps = r.Taken+o.Taken, r.Resent+o.Resent, r.Refused+o.Refused, r.Gaps+o.Gaps
	r.Missing, r.Raised = sum(r.Missing, o.Missing), r.Raised+o.Raised
}

// Counts are the numbers under their names.
func (r Received) Counts() []tally.Count {
	return []tally.Count{
		{Name: "events_in_total", Help: "Events of agents that were taken.", Value: r.Taken},
		{Name: "events_resent_total", Help: "Events of agents that had been taken before.", Value: r.Resent},
		{Name: "events_refused_total", Help: "Events of agents that were not taken for what they are.", Value: r.Refused},
		{Name: "event_gaps_total", Help: "Stretches of agents' events that were lost on the way.", Value: r.Gaps},
		{Name: "events_missing_total", Help: "Events of agents that were lost on the way.", Value: r.Missing},
		{Name: "events_clock_ahead_total", Help: "Events of agents that were received by a stream's clock which is more than 5 minutes ahead of the plane's.", Value: r.Raised},
	}
}

// Intake counts what has become of agents' events since the process began.
type Intake struct{ taken, resent, refused, gaps, missing, raised atomic.Int64 }

// Read returns the counts so far.
func (i *Intake) Read() Received {
	return Received{Taken: i.taken.Load(), Resent: i.resent.Load(), Refused: i.refused.Load(), Gaps: i.gaps.Load(), Missing: i.missing.Load(), Raised: i.raised.Load()}
}

func (i *Intake) add(r Received) {
	i.taken.Add(r.Taken)
	i.resent.Add(r.Resent)
	i.refused.Add(r.Refused)
	i.gaps.Add(r.Gaps)
	for was := i.missing.Load(); !i.missing.CompareAndSwap(was, sum(was, r.Missing)); {
		was = i.missing.Load()
	}
	i.raised.Add(r.Raised)
}
