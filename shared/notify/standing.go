package notify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// standing says how far an Alertmanager was told of what fires, since its receiver was
// made, enabled or changed: it has states, not events, and what fires for long may be
// told by no event for days.
type standing struct {
	// Revision is the receiver's by which it is told, Began when.
	Revision int64     `json:"revision"`
	Began    time.Time `json:"began"`
	// After is a place in the list of open alerts: those up to it are told.
	After string `json:"after,omitempty"`
	Done  bool   `json:"done,omitempty"`
}

// standingPage is how many alerts are looked at in one go.
const standingPage = 100

// standingDue is when a receiver is to be told, once more, of what fires; zero: it
// was. The index of open alerts may be late: what it did not show the first time, and
// whose event came before the change, is told the second time.
func (s *Service) standingDue(r *Receiver, st *standing) time.Time {
	switch shown := r.UpdatedAt.Add(s.Store.IndexLag); {
	case r.Kind != KindAlertmanager:
		return time.Time{}
	case st.Revision != r.Revision || !st.Done:
		return r.UpdatedAt
	case st.Began.Before(shown):
		return shown
	}
	return time.Time{}
}

// tellStanding puts a page of what fires into the outbox of an Alertmanager, as if it was
// told of once more; the lane then knows how far it is.
func (s *Service) tellStanding(ctx context.Context, h *held, r *target, now time.Time) error {
	st := h.lane.Standing
	if st.Revision != r.Revision || st.Done {
		st = standing{Revision: r.Revision, Began: now}
	}
	p, err := s.Store.Ledger.Query(ctx, record.Span{After: st.After, Limit: standingPage}.Query(
		ledger.Query{Index: ledger.Live, PK: record.ListAlerts}))
	if err != nil {
		return fmt.Errorf("list open alerts: %w", err)
	}
	var pairs []pair
	for _, it := range p.Items {
		st.After = it.Index[ledger.Live].SK
		a, err := record.Decode[alert.Alert](it)
		if err != nil {
			s.unreadable(ctx, it.Key, err)
			continue
		}
		if a.State == alert.Firing {
			pairs = append(pairs, pair{standingEvent(&a, now), &a, r.ready})
		}
	}
	if err := s.tellPairs(ctx, r, pairs, now); err != nil {
		return fmt.Errorf("tell receiver %s of what fires: %w", r.ID, err)
	}
	st.Done = p.Next == ""
	h.lane.Standing = st // kept with the lane
	return nil
}

// standingEvent stands for the event of an alert that fires, which may be gone: the last
// of its evidence.
func standingEvent(a *alert.Alert, now time.Time) *event.Event {
	e := &event.Event{Type: alert.TypeFiring, Stream: a.Stream, Timestamp: now, ReceivedAt: now}
	if n := len(a.Evidence); n > 0 {
		e.ID, e.Sequence = a.Evidence[n-1].Event, a.Evidence[n-1].Sequence
	}
	return e
}

// tellPairs puts what an Alertmanager is told of pairs into the outbox of its lane, which
// is held.
func (s *Service) tellPairs(ctx context.Context, r *target, pairs []pair, now time.Time) error {
	for part := range slices.Chunk(pairs, pairsAtOnce) {
		b, err := s.prefetch(ctx, part)
		if err != nil {
			return err
		}
		for i := range part {
			s.pushes(ctx, b, &part[i], now)
		}
		clear(b.lanes) // it is held, and looked through again
		writes, err := b.writes(now)
		if err != nil {
			return err
		}
		if len(writes) == 0 {
			continue
		}
		if err := s.Store.Ledger.Commit(ctx, writes...); err != nil {
			return err
		}
	}
	return nil
}
