package notify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// standing says how far an Alertmanager was told of what fires, since its receiver was
// made, enabled or changed: it has states, not events, and of what fires for long no
// event may tell for days.
type standing struct {
	// Revision is the receiver's by which it is told.
	Revision int64 `json:"revision"`
	// Began is when this pass over the list of open alerts began, of which there are two.
	Began  time.Time `json:"began"`
	Second bool      `json:"second,omitempty"`
	// After is a place in the list: the alerts up to it are told.
	After string `json:"after,omitempty"`
	Done  bool   `json:"done,omitempty"` // the pass is over
}

const (
	// standingPage is how many alerts are looked at in one round.
	standingPage = 100
	// standingSecond is how long after the first pass the second one begins, beside what
	// an index is late by. An alert whose event came before a receiver, which is not told
	// it, may be in the list only after that.
	standingSecond = 5 * time.Second
	// standingAgain is when a page is tried again that could not be told.
	standingAgain = time.Minute
)

// standingDue is when an Alertmanager is to be told, further, of what fires; zero: it was.
func (s *Service) standingDue(r *Receiver, st *standing, now time.Time) time.Time {
	switch {
	case r.Kind != KindAlertmanager || st.Revision == r.Revision && st.Done && st.Second:
		return time.Time{}
	case st.Revision == r.Revision && st.Done:
		return st.Began.Add(s.Store.IndexLag + standingSecond)
	}
	return now
}

// tellStanding puts a page of what fires into the outbox of an Alertmanager, if that is
// due, and returns when the next one is; zero: there is none. One that cannot be told is
// tried again, and keeps nothing else from being sent.
func (s *Service) tellStanding(ctx context.Context, h *held, r *target, now time.Time) time.Time {
	at := s.standingDue(&r.Receiver, &h.lane.Standing, now)
	if at.Before(h.standingAgain) {
		at = h.standingAgain
	}
	if !isDue(at, now) {
		return at
	}
	next, err := s.standingPage(ctx, r, h.lane.Standing, now)
	if err != nil {
		if ctx.Err() == nil {
			s.Logger.ErrorContext(ctx, "an Alertmanager cannot be told of what fires, and is later", "receiver", r.ID, "err", err)
		}
		h.standingAgain = now.Add(standingAgain)
		return h.standingAgain
	}
	h.lane.Standing = next // kept with the lane
	return s.standingDue(&r.Receiver, &next, now)
}

// standingPage tells the page behind st, and returns how far it is then.
func (s *Service) standingPage(ctx context.Context, r *target, st standing, now time.Time) (standing, error) {
	switch {
	case st.Revision != r.Revision:
		st = standing{Revision: r.Revision, Began: now}
	case st.Done:
		st = standing{Revision: r.Revision, Began: now, Second: true}
	}
	p, err := s.Store.Ledger.Query(ctx, record.Span{After: st.After, Limit: standingPage}.Query(
		ledger.Query{Index: ledger.Live, PK: record.ListAlerts}))
	if err != nil {
		return st, fmt.Errorf("list open alerts: %w", err)
	}
	var keys []ledger.Key
	for _, it := range p.Items {
		st.After = it.Index[ledger.Live].SK
		keys = append(keys, it.Key)
	}
	err = s.tellAlerts(ctx, r, keys, !st.Second, now, func(it ledger.Item) *pair {
		if it.Version == 0 {
			return nil // it is gone
		}
		a, err := record.Decode[alert.Alert](it)
		if err != nil {
			s.unreadable(ctx, it.Key, err)
			return nil
		}
		if a.State != alert.Firing {
			return nil
		}
		return &pair{standingEvent(&a, now), &a, r.ready}
	})
	st.Done = p.Next == ""
	return st, err
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

// tellAlerts puts what an Alertmanager is told of alerts, as they are now, into the outbox
// of its lane, which is held. anew: what is in the outbox as it is to be told, too. made
// makes a pair of an alert's item, whose version is 0 where there is none; nil: it is not
// told of.
func (s *Service) tellAlerts(ctx context.Context, r *target, alerts []ledger.Key, anew bool, now time.Time, made func(ledger.Item) *pair) error {
	for part := range slices.Chunk(alerts, pairsAtOnce) {
		if err := record.Again(ctx, func() error { return s.tellFew(ctx, part, anew, now, made) }); err != nil {
			return fmt.Errorf("tell receiver %s of alerts: %w", r.ID, err)
		}
	}
	return nil
}

func (s *Service) tellFew(ctx context.Context, alerts []ledger.Key, anew bool, now time.Time, made func(ledger.Item) *pair) error {
	are, err := s.Store.Ledger.GetMany(ctx, alerts)
	if err != nil {
		return fmt.Errorf("read alerts: %w", err)
	}
	var pairs []pair
	for _, k := range alerts {
		it := are[k]
		it.Key = k
		if p := made(it); p != nil {
			pairs = append(pairs, *p)
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	b, err := s.prefetch(ctx, pairs)
	if err != nil {
		return err
	}
	// What became of an alert before this was read may be told by its event already, which
	// an older word must not undo; what becomes of it later conflicts with the commit.
	still, err := s.Store.Ledger.GetMany(ctx, alerts)
	if err != nil {
		return fmt.Errorf("read alerts: %w", err)
	}
	for _, k := range alerts {
		if still[k].Version != are[k].Version {
			return fmt.Errorf("alert %s changed meanwhile: %w", k, ledger.ErrConflict)
		}
	}
	for i := range pairs {
		if anew || !s.tells(b, &pairs[i]) {
			s.pushes(ctx, b, &pairs[i], now)
		}
	}
	clear(b.lanes) // it is held, and looked through again
	writes, err := b.writes(now)
	if err != nil || len(writes) == 0 {
		return err
	}
	if err := s.Store.Ledger.Commit(ctx, writes...); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// tells tells whether the outbox has of an alert what is to be told of it.
func (s *Service) tells(b *draft, p *pair) bool {
	it, ok := b.get(keyOf(p))
	if !ok || p.a.Muted() || !p.r.wants(p.a) {
		return false
	}
	d, err := decodeDelivery(it)
	if err != nil || !d.open() || d.Alert != p.a.ID || d.Push == nil || d.Push.EndsAt != nil {
		return false
	}
	push := s.pushOf(&p.r.Receiver, p.a)
	return maps.Equal(d.Push.Labels, push.Labels) && maps.Equal(d.Push.Annotations, push.Annotations)
}
