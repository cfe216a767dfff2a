package agentapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// Limits of a heartbeat.
const (
	maxCapabilities = 64
	maxNameBytes    = 253
)

// reporterLeaseLeast is how long one agent at least goes on reporting the
// inventory after its last heartbeat: as long as it counts as online.
const reporterLeaseLeast = 15 * time.Second

// heartbeatEvery is how often agents send heartbeats that are told nothing.
const heartbeatEvery = 5 * time.Second

// heartbeatMS is the cadence that agents are told, in milliseconds: a third of
// the time after which they count as silent, so that two may be lost. Never
// faster than they are by themselves, for which 0 stands.
func heartbeatMS(tm operation.Timing) int64 {
	if every := tm.AgentSilent / 3; every > heartbeatEvery {
		return every.Milliseconds()
	}
	return 0
}

// Heartbeat registers the agent and keeps it online. The first of a boot, or
// the first after a silence, rings again for what waited.
func (s *Service) Heartbeat(ctx context.Context, cluster string, hb protocol.Heartbeat) (protocol.HeartbeatAnswer, error) {
	var errs []operation.FieldError
	if hb.Name == "" || len(hb.Name) > maxNameBytes || !operation.CleanText(hb.Name) {
		errs = append(errs, operation.FieldError{Pointer: "/name", Code: "max_length", Detail: fmt.Sprintf("must have 1 to %d bytes", maxNameBytes)})
	}
	if hb.Boot == "" || len(hb.Boot) > 64 || !operation.CleanText(hb.Boot) {
		errs = append(errs, operation.FieldError{Pointer: "/boot", Code: "max_length", Detail: "must have 1 to 64 bytes"})
	}
	if len(hb.Capabilities) > maxCapabilities {
		errs = append(errs, operation.FieldError{Pointer: "/capabilities", Code: "max_items", Detail: fmt.Sprintf("has %d, the limit is %d", len(hb.Capabilities), maxCapabilities)})
	}
	if hb.Mark < 0 || hb.Mark > protocol.MaxMark {
		errs = append(errs, operation.FieldError{Pointer: "/mark", Code: "range", Detail: fmt.Sprintf("is %d, marks are from 0 to %d", hb.Mark, int64(protocol.MaxMark))})
	}
	for i, c := range hb.Capabilities {
		if len(c.Name) > maxNameBytes || !operation.CleanText(c.Name) {
			errs = append(errs, operation.FieldError{Pointer: fmt.Sprintf("/capabilities/%d/name", i), Code: "max_length", Detail: fmt.Sprintf("must have 1 to %d bytes", maxNameBytes)})
		}
	}
	if len(errs) > 0 {
		return protocol.HeartbeatAnswer{}, operation.Invalid(errs...)
	}
	now := s.Store.Now().UTC()
	agent, version, err := s.seen(ctx, cluster, hb, now)
	if err != nil {
		return protocol.HeartbeatAnswer{}, err
	}
	if agent.OfferDue {
		if err := s.offer(ctx, agent, version); err != nil {
			s.Logger.WarnContext(ctx, "could not ring for what waited", "cluster", cluster, "err", err)
		}
	}
	answer := protocol.HeartbeatAnswer{AgentID: agent.ID, Cluster: cluster, ServerTime: s.Store.Now().UTC(),
		LeaseMS: s.Store.Timing.Lease.Milliseconds(), CallDeadlineMS: s.Store.Timing.CallDeadline.Milliseconds(), HeartbeatMS: heartbeatMS(s.Store.Timing),
		ReportMS: s.Store.Timing.ReportEvery.Milliseconds()}
	if s.QueueURL != nil {
		answer.QueueURL = s.QueueURL(cluster)
	}
	if !hb.Stopping {
		var r *fleet.Reporter
		if r, err = s.reporter(ctx, cluster, agent, hb.Mark, now); r != nil {
			answer.Reporter, answer.Mark, answer.FullInventory = true, r.Mark, !hb.CutOff && (r.Snapshot == "" || r.Asked)
		}
	}
	return answer, err
}

// offer rings for what waited, and takes the note that this is due off the agent's
// record. Until then each of its heartbeats tries again: this process may end, or
// the queue be away, after the commit that told of the arrival.
func (s *Service) offer(ctx context.Context, a fleet.Agent, version int64) error {
	if s.Reoffer != nil {
		if err := s.Reoffer(ctx, a.Cluster); err != nil {
			return err
		}
	}
	a.OfferDue = false
	it := s.Store.AgentItem(&a)
	err := s.Store.Ledger.Commit(ctx, ledger.Write{Item: it, Expect: version, WasDue: it.Due})
	if errors.Is(err, ledger.ErrConflict) {
		return nil // the agent's next heartbeat, which offers once more
	}
	return err
}

// seen writes the agent's record, and returns it with its version. One that was
// not online before has what waited offered.
func (s *Service) seen(ctx context.Context, cluster string, hb protocol.Heartbeat, now time.Time) (fleet.Agent, int64, error) {
	agentID := fleet.AgentID(cluster, hb.Name)
	for try := 0; ; try++ {
		a := fleet.Agent{ID: agentID, Cluster: cluster, Name: hb.Name, FirstSeen: now}
		it, err := s.Store.Ledger.Get(ctx, record.AgentKey(cluster, agentID))
		switch {
		case errors.Is(err, ledger.ErrNotFound):
		case err != nil:
			return a, 0, fmt.Errorf("read agent: %w", err)
		default:
			if a, err = record.Decode[fleet.Agent](it); err != nil {
				return a, 0, err
			}
		}
		was := a
		arrived := !hb.Stopping && (it.Version == 0 || a.Silent || a.Boot != hb.Boot || a.Stopping)
		a.OfferDue = !hb.Stopping && (arrived || a.OfferDue)
		a.Boot, a.Version, a.Capabilities, a.LastSeen = hb.Boot, short(hb.Version), hb.Capabilities, now
		a.Leases, a.Capacity, a.Stopping, a.CutOff, a.Silent = max(hb.Leases, 0), max(hb.Capacity, 0), hb.Stopping, hb.CutOff, false
		evs, err := told(&was, &a, arrived, skew(&a, hb, now), now, it.Version)
		if err != nil {
			return a, 0, err
		}
		write := ledger.Write{Item: s.Store.AgentItem(&a), Expect: it.Version, WasDue: it.Due}
		if len(evs) == 0 {
			err = s.Store.Ledger.Commit(ctx, write)
		} else {
			_, err = event.Append(ctx, s.Store.Ledger, event.StreamOf(cluster), evs, func() ([]ledger.Write, error) {
				return []ledger.Write{write}, nil
			})
		}
		if err == nil {
			return a, it.Version + 1, nil
		}
		if !errors.Is(err, ledger.ErrConflict) || try > 5 {
			return a, 0, fmt.Errorf("keep agent: %w", err)
		}
	}
}

// An agent's clock counts as wrong from skewedFrom on, and as right again below
// rightBelow, each in two heartbeats in a row: one may have been long under way.
const (
	skewedFrom = 30 * time.Second
	rightBelow = 10 * time.Second
)

// skew notes how far the agent's clock is ahead, and returns the type of the event
// that this is, or "".
func skew(a *fleet.Agent, hb protocol.Heartbeat, now time.Time) string {
	was := time.Duration(a.SkewMS) * time.Millisecond
	a.SkewMS = 0
	if hb.SentAt.IsZero() {
		return ""
	}
	a.SkewMS = hb.SentAt.Sub(now).Milliseconds()
	is := time.Duration(a.SkewMS) * time.Millisecond
	switch {
	case !a.ClockSkewed && min(was.Abs(), is.Abs()) >= skewedFrom:
		a.ClockSkewed = true
		return event.TypeClockSkewed
	case a.ClockSkewed && max(was.Abs(), is.Abs()) < rightBelow:
		a.ClockSkewed = false
		return event.TypeClockOK
	}
	return ""
}

// told are the events of a heartbeat: that the agent's process is another one and
// the one before never said that it stops, that the agent arrived, or stops, and
// what its clock does ("": nothing). Of an agent that was not known was is empty
// but for its name. The version is the agent's record's: processes that take turns may
// do so within one millisecond, and each time is an event of its own.
func told(was, a *fleet.Agent, arrived bool, clock string, now time.Time, version int64) ([]event.Event, error) {
	var out []event.Event
	var errs error
	tell := func(typ string, detail any) {
		e, err := event.New(typ, a.Cluster, event.Subject{Kind: event.KindAgent, ID: a.ID, Name: a.Name}, now,
			operation.Actor{ID: a.ID, Kind: event.KindAgent, Name: a.Name}, detail, a.ID, a.Boot, fmt.Sprint(now.UnixMilli()), fmt.Sprint(version))
		out, errs = append(out, e), errors.Join(errs, err)
	}
	another := was.Boot != a.Boot
	if !a.Stopping && another && was.Boot != "" && !was.Stopping {
		tell(event.TypeAgentRestarted, event.AgentRestartedDetail{Version: a.Version, Boot: a.Boot, Before: was.Boot, LastSeen: was.LastSeen})
	}
	if arrived {
		tell(event.TypeAgentOnline, event.AgentOnlineDetail{Version: a.Version, Boot: a.Boot})
	}
	if a.Stopping && (another || !was.Stopping) {
		tell(event.TypeAgentStopping, event.AgentStoppingDetail{Version: a.Version, Boot: a.Boot, Leases: a.Leases})
	}
	if clock != "" {
		tell(clock, event.ClockDetail{SkewMS: a.SkewMS, Boot: a.Boot})
	}
	return out, errs
}

// reporter gives or keeps the lease on reporting the inventory: one agent of a
// cluster at a time; nil: it is not this one. One that is cut off takes no lease and has
// its own run out, so that an agent which sees the cluster takes it; where none does, it
// is still the reporter. told is the mark that the agent was told last: where less is
// kept, the record is from before that, and what was reported since is asked for anew.
func (s *Service) reporter(ctx context.Context, cluster string, a fleet.Agent, told int64, now time.Time) (*fleet.Reporter, error) {
	key := record.ReporterKey(cluster)
	var r fleet.Reporter
	it, err := s.Store.Ledger.Get(ctx, key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		return nil, fmt.Errorf("read reporter: %w", err)
	default:
		if r, err = record.Decode[fleet.Reporter](it); err != nil {
			return nil, err
		}
	}
	same := r.Agent == a.ID && r.Boot == a.Boot
	if !same && (now.Before(r.Until) && r.Agent != a.ID || a.CutOff) {
		return nil, nil
	}
	if a.CutOff {
		r.Mark = max(r.Mark, told) // as before: it is asked once it sees the cluster
		return &r, nil
	}
	if !same {
		r = fleet.Reporter{Agent: a.ID, Boot: a.Boot}
	}
	if told > r.Mark && r.Snapshot != "" && !r.Asked {
		r.Asked = true
		s.Logger.WarnContext(ctx, "the record is older than what the reporter was told: its inventory is asked for anew", "cluster", cluster, "agent", a.ID)
	}
	r.Mark = max(r.Mark, told) + 1
	r.Until = now.Add(max(s.Store.Timing.AgentSilent, reporterLeaseLeast))
	err = s.Store.Ledger.Commit(ctx, ledger.Write{Item: ledger.Item{Key: key, Data: record.Encode(r)}, Expect: it.Version})
	if errors.Is(err, ledger.ErrConflict) {
		return nil, nil // another was faster; the next heartbeat tells
	}
	if err != nil {
		return nil, fmt.Errorf("keep reporter: %w", err)
	}
	return &r, nil
}
