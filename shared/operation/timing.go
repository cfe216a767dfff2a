package operation

import "time"

// Timing holds the durations that differ between engines.
type Timing struct {
	// Lease is how long a claim or renewal lasts.
	Lease time.Duration
	// CallDeadline is the longest that a call which changes the world may take:
	// it can outlast the lease by no more, since each ends before the lease does
	// unless its process was stopped between check and call.
	CallDeadline time.Duration
	// RingAfter is how long an unclaimed doorbell is left before it rings again.
	RingAfter time.Duration
	// AgentSilent is how long an agent may be unheard of and still be online.
	AgentSilent time.Duration
	// ReportEvery is how long an agent may keep what need not be told at once
	// (commands under way, notes), for one report to carry more of it; 0: 1 s.
	// Progress rides with renewals where they come as often.
	ReportEvery time.Duration
}

// OneMachine is the timing of the one-machine engine.
var OneMachine = Timing{Lease: 15 * time.Second, CallDeadline: 10 * time.Second, RingAfter: 10 * time.Second, AgentSilent: 15 * time.Second}

// AWS is the timing of the AWS engine, where every renewal and heartbeat is
// billed: leases last longer, and agents are heard of less often. Progress is up
// to ten seconds old there, and so are the commands of an agent that is killed.
var AWS = Timing{Lease: 30 * time.Second, CallDeadline: 10 * time.Second, RingAfter: 10 * time.Second, AgentSilent: 90 * time.Second, ReportEvery: 10 * time.Second}

// maxRingAfter bounds the back-off of doorbells.
const maxRingAfter = 5 * time.Minute

// LeaseUntil is the end of a lease taken or renewed at t: never past the
// deadline, after which nothing may be issued.
func (tm Timing) LeaseUntil(s *State, t time.Time) time.Time {
	until := t.Add(tm.Lease)
	if until.After(s.Deadline) {
		return s.Deadline
	}
	return until
}

// LeaseOver is when a successor may claim: the lease and one call deadline have
// run out.
func (tm Timing) LeaseOver(s *State) time.Time { return s.Lease.Until.Add(tm.CallDeadline) }

// RingDue is when an unclaimed operation's doorbell rings again.
func (tm Timing) RingDue(s *State) time.Time {
	at := s.PhaseSince
	if s.RungAt != nil {
		at = *s.RungAt
	}
	after := tm.RingAfter
	if s.PlaneLocal {
		return at.Add(after)
	}
	for i := 1; i < s.Rings && after < maxRingAfter; i++ {
		after *= 2
	}
	return at.Add(min(after, maxRingAfter))
}

// Due is when the sweep must look at the operation next; zero once it ended.
func (tm Timing) Due(s *State) time.Time {
	switch {
	case s.Phase.Terminal():
		return time.Time{}
	case s.Lease != nil:
		return tm.LeaseOver(s)
	}
	due := tm.RingDue(s)
	if s.PlaneLocal && s.RungAt != nil && !s.RungAt.Before(s.Deadline) {
		return due // told of its deadline already; its children are ending
	}
	if s.Deadline.Before(due) {
		return s.Deadline
	}
	return due
}
