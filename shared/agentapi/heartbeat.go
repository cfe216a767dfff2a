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
		answer.Reporter, answer.FullInventory, err = s.reporter(ctx, cluster, agent, now)
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
		arrived := !hb.Stopping && (it.Version == 0 || a.Silent || a.Boot != hb.Boot || a.Stopping)
		a.OfferDue = !hb.Stopping && (arrived || a.OfferDue)
		a.Boot, a.Version, a.Capabilities, a.LastSeen = hb.Boot, short(hb.Version), hb.Capabilities, now
		a.Leases, a.Capacity, a.Stopping, a.Silent = max(hb.Leases, 0), max(hb.Capacity, 0), hb.Stopping, false
		a.SkewMS = hb.SentAt.Sub(now).Milliseconds()
		if hb.SentAt.IsZero() {
			a.SkewMS = 0
		}
		write := ledger.Write{Item: s.Store.AgentItem(&a), Expect: it.Version, WasDue: it.Due}
		if arrived {
			err = s.online(ctx, &a, now, write)
		} else {
			err = s.Store.Ledger.Commit(ctx, write)
		}
		if err == nil {
			return a, it.Version + 1, nil
		}
		if !errors.Is(err, ledger.ErrConflict) || try > 5 {
			return a, 0, fmt.Errorf("keep agent: %w", err)
		}
	}
}

// online commits the agent's arrival together with its event.
func (s *Service) online(ctx context.Context, a *fleet.Agent, now time.Time, write ledger.Write) error {
	e, err := event.New("agent.online", a.Cluster, event.Subject{Kind: "agent", ID: a.ID, Name: a.Name}, now,
		operation.Actor{ID: a.ID, Kind: "agent", Name: a.Name}, map[string]any{"version": a.Version, "boot": a.Boot}, a.ID, a.Boot, fmt.Sprint(now.UnixMilli()))
	if err != nil {
		return err
	}
	_, err = event.Append(ctx, s.Store.Ledger, event.StreamOf(a.Cluster), []event.Event{e}, func() ([]ledger.Write, error) {
		return []ledger.Write{write}, nil
	})
	return err
}

// reporter gives or keeps the lease on reporting the inventory: one agent of a
// cluster at a time.
func (s *Service) reporter(ctx context.Context, cluster string, a fleet.Agent, now time.Time) (mine, full bool, err error) {
	key := record.ReporterKey(cluster)
	var r fleet.Reporter
	it, err := s.Store.Ledger.Get(ctx, key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		return false, false, fmt.Errorf("read reporter: %w", err)
	default:
		if r, err = record.Decode[fleet.Reporter](it); err != nil {
			return false, false, err
		}
	}
	same := r.Agent == a.ID && r.Boot == a.Boot
	if !same && now.Before(r.Until) && r.Agent != a.ID {
		return false, false, nil
	}
	if !same {
		r = fleet.Reporter{Agent: a.ID, Boot: a.Boot}
	}
	r.Until = now.Add(max(s.Store.Timing.AgentSilent, reporterLeaseLeast))
	err = s.Store.Ledger.Commit(ctx, ledger.Write{Item: ledger.Item{Key: key, Data: record.Encode(r)}, Expect: it.Version})
	if errors.Is(err, ledger.ErrConflict) {
		return false, false, nil // another was faster; the next heartbeat tells
	}
	if err != nil {
		return false, false, fmt.Errorf("keep reporter: %w", err)
	}
	return true, r.Snapshot == "" || r.Asked, nil
}
