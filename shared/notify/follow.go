package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

const (
	readBatch = 500
	// pairsAtOnce bounds the events times receivers of one commit: up to ten
	// writes each (two deliveries, two pointers of each, a mark, a lane, and an early
	// delivery with its pointer), the position and the mark stay below what a commit
	// takes.
	pairsAtOnce = 9
	// saveEvery is how many events may pass that tell nothing before the position
	// is kept.
	saveEvery = 2000
)

// place is how far a stream is told.
type place struct {
	// Next is the first event that is not told, Done the last receiver, by id, that
	// it is told to all the same.
	Next int64  `json:"next"`
	Done string `json:"done,omitempty"`
	// Began is the run of receivers (begun.N) that the place is of. Since, until
	// the stream was read to its head once: events received before are not told, in
	// Unix milliseconds.
	Began int64 `json:"began"`
	Since int64 `json:"since,omitempty"`

	version int64 // of its item
	saved   int64 // Next as it is kept
}

// pair is an event for a receiver.
type pair struct {
	e *event.Event
	a *alert.Alert
	r *ready
}

// Follow makes messages of a stream's events, to its head. Receivers are told from
// when they are made, or enabled, on; see tellStanding for what fires by then.
func (s *Service) Follow(ctx context.Context, stream string) error {
	err := record.Again(ctx, func() error {
		for {
			more, err := s.pass(ctx, stream)
			if err != nil {
				s.forget(stream)
				return err
			}
			if !more {
				return nil
			}
		}
	})
	if err != nil {
		return fmt.Errorf("tell of stream %s: %w", stream, err)
	}
	return nil
}

// pass makes messages of one batch of events. more: there may be more of them.
func (s *Service) pass(ctx context.Context, stream string) (more bool, err error) {
	items, err := s.Store.Ledger.GetMany(ctx, []ledger.Key{record.ToldKey(stream), record.ReceiversKey})
	if err != nil {
		return false, fmt.Errorf("read position: %w", err)
	}
	mark := items[record.ReceiversKey]
	if mark.Version == 0 {
		return false, nil // there was never a receiver
	}
	rs, err := s.enabled(ctx, mark.Version)
	if err != nil || len(rs) == 0 {
		return false, err
	}
	p, err := s.placeOf(ctx, stream, items[record.ToldKey(stream)], mark)
	if err != nil {
		return false, err
	}
	events, head, err := event.ReadStream(ctx, s.Store.Ledger, stream, p.Next, readBatch)
	var expired *event.ExpiredError
	if errors.As(err, &expired) {
		s.Metrics.lose(head.Passed(p.Next))
		s.Logger.WarnContext(ctx, "events passed retention before they were told", "stream", stream, "from", p.Next, "through", head.Low-1)
		p.Next, p.Done = head.Low, ""
		_, err := s.commit(ctx, stream, p, nil, mark.Version)
		return true, err
	}
	if err != nil {
		return false, err
	}
	for {
		rest := events[:0:0]
		for i := range events {
			if events[i].Sequence >= p.Next {
				rest = events[i:]
				break
			}
		}
		pairs := s.pairs(ctx, &p, rs, rest)
		if p.Next >= head.Next {
			p.Since = 0 // all that follows is new, whatever the clock says
		}
		if p, err = s.commit(ctx, stream, p, pairs, mark.Version); err != nil {
			return false, err
		}
		if len(events) == 0 || p.Next > events[len(events)-1].Sequence {
			return p.Next < head.Next, nil
		}
	}
}

// pairs moves the place behind the events that one commit can tell, and returns
// whom they are for.
func (s *Service) pairs(ctx context.Context, p *place, rs []*ready, events []event.Event) []pair {
	var out []pair
	for i := range events {
		e := &events[i]
		a := s.alertOf(ctx, e, p.Since)
		if a != nil {
			for _, r := range rs {
				if r.ID <= p.Done || !concerns(r, e.Type, a) {
					continue
				}
				if len(out) == pairsAtOnce {
					return out
				}
				out = append(out, pair{e, a, r})
				p.Next, p.Done = e.Sequence, r.ID
			}
		}
		p.Next, p.Done = e.Sequence+1, ""
	}
	return out
}

// alertOf returns the alert that an event is to be told of, or nil.
func (s *Service) alertOf(ctx context.Context, e *event.Event, since int64) *alert.Alert {
	switch e.Type {
	case alert.TypeFiring, alert.TypeFlapping, alert.TypeResolved, alert.TypeSilenced, alert.TypeInhibited:
	default:
		return nil
	}
	if e.ReceivedAt.UnixMilli() < since {
		return nil
	}
	var a alert.Alert
	if err := json.Unmarshal(e.Detail, &a); err != nil || a.ID == "" {
		s.Metrics.lose(1)
		s.Logger.ErrorContext(ctx, "an alert's event cannot be read", "event", e.ID, "stream", e.Stream, "sequence", e.Sequence, "expired", e.DetailExpired)
		return nil
	}
	if a.FiredAt == nil && e.Type == alert.TypeResolved {
		return nil // it was withdrawn
	}
	return &a
}

// concerns tells whether a receiver may have to be told. That an alert resolved is
// for those who were told that it fires, whoever silenced it since; an Alertmanager
// is told, too, of the end of what it should know no more.
func concerns(r *ready, typ string, a *alert.Alert) bool {
	switch {
	case typ == alert.TypeResolved || r.Kind == KindAlertmanager:
		return true
	case typ == alert.TypeSilenced || typ == alert.TypeInhibited:
		return false
	}
	return !a.Muted() && r.wants(a)
}

// placeOf returns the place of a stream, which begins when receivers came to be.
func (s *Service) placeOf(ctx context.Context, stream string, it, mark ledger.Item) (place, error) {
	s.mu.Lock()
	p, ok := s.places[stream]
	s.mu.Unlock()
	if !ok || p.version != it.Version {
		p = place{}
		if it.Version > 0 {
			var err error
			if p, err = record.Decode[place](it); err != nil {
				return p, err
			}
		}
		p.version, p.saved = it.Version, p.Next
	}
	b, err := record.Decode[begun](mark)
	if err != nil || p.Began == b.N {
		return p, err
	}
	from, err := event.FirstAt(ctx, s.Store.Ledger, stream, b.At)
	if err != nil {
		return p, err
	}
	return place{Next: max(from, p.Next, 1), Began: b.N, Since: b.At.UnixMilli(), version: p.version, saved: p.Next}, nil
}

func (s *Service) forget(stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.places, stream)
}

// commit keeps the place with the messages, and returns it as it is kept. A place
// that told nothing is not kept each time.
func (s *Service) commit(ctx context.Context, stream string, p place, pairs []pair, mark int64) (place, error) {
	var writes []ledger.Write
	if len(pairs) > 0 {
		b, err := s.prefetch(ctx, pairs)
		if err != nil {
			return p, err
		}
		now := s.now()
		for i := range pairs {
			s.message(ctx, b, &pairs[i], now)
		}
		if writes, err = b.writes(now); err != nil {
			return p, err
		}
	}
	if told := len(writes) > 0; told || p.Next-p.saved >= saveEvery || p.version == 0 {
		writes = append(writes,
			ledger.Write{Expect: p.version, Item: ledger.Item{Key: record.ToldKey(stream), Data: record.Encode(p)}},
			ledger.Write{Kind: ledger.Check, Expect: mark, Item: ledger.Item{Key: record.ReceiversKey}})
		if err := s.Store.Ledger.Commit(ctx, writes...); err != nil {
			return p, fmt.Errorf("commit: %w", err)
		}
		p.version, p.saved = p.version+1, p.Next
		if told && s.Changed != nil {
			s.Changed()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.places == nil {
		s.places = map[string]place{}
	}
	s.places[stream] = p
	return p, nil
}

// All follows every stream that there is. One that fails leaves the others alone;
// it returns those that failed, with the first errors.
func (s *Service) All(ctx context.Context) (failed []string, err error) {
	streams, err := event.Streams(ctx, s.Store)
	if err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	return s.Each(ctx, streams)
}

// Each follows the streams; see All.
func (s *Service) Each(ctx context.Context, streams []string) (failed []string, err error) {
	for _, stream := range streams {
		if e := s.Follow(ctx, stream); e != nil {
			if failed = append(failed, stream); len(failed) <= 5 { // enough to tell
				err = errors.Join(err, e)
			}
		}
	}
	return failed, err
}
