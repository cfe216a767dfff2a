package dynamo

import "sync/atomic"

// Stats are counts since New, for metrics.
type Stats struct {
	Commits    int64 // commits answered without an error
	Conflicts  int64 // commits answered with a conflict
	Contended  int64 // attempts cancelled by another transaction and tried again
	Throttled  int64 // attempts that DynamoDB turned away
	Unanswered int64 // attempts whose outcome was unknown at first
	Recovered  int64 // commits found applied although their answer was lost
}

type counters struct {
	commits, conflicts, contended, throttled, unanswered, recovered atomic.Int64
}

// Stats returns the counts.
func (db *DB) Stats() Stats {
	c := &db.counts
	return Stats{
		Commits: c.commits.Load(), Conflicts: c.conflicts.Load(), Contended: c.contended.Load(), Throttled: c.throttled.Load(),
		Unanswered: c.unanswered.Load(), Recovered: c.recovered.Load(),
	}
}
