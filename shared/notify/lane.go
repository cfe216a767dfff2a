package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// lane says who sends to a receiver. Its item's Due is when somebody has to: when
// the first message is due, or when whoever sends should have said more.
type lane struct {
	// Holder has the lane until Lease; "" is nobody.
	Holder string    `json:"holder,omitempty"`
	Lease  time.Time `json:"lease,omitzero"`
	// Kept is when it was written, by who had it.
	Kept time.Time `json:"kept,omitzero"`
	// Revision is the receiver's that Holds are of: one that was changed since may lead
	// elsewhere.
	Revision int64 `json:"revision,omitempty"`
	// Holds has the endpoints that fail, or asked for a pause, by URL.
	Holds map[string]hold `json:"holds,omitempty"`
	// Took is when a webhook took a message last, and Apart until when it is sent none of those
	// whose pace is their own (Delivery.apart).
	Took  time.Time `json:"took,omitzero"`
	Apart time.Time `json:"apart,omitzero"`
	// Hasten says how far what waits was made due since the receiver was changed, or since
	// nobody waits any more for what Alertmanagers were asked.
	Hasten hasten `json:"hasten,omitzero"`
	// Tidied is when its marks were gone through last.
	Tidied time.Time `json:"tidied,omitzero"`
	// Standing is, of an Alertmanager's, how far it was told of what fires.
	Standing standing `json:"standing,omitzero"`
	// Failing is since when the receiver takes nothing.
	Failing failing `json:"failing,omitzero"`
}

const (
	// leaseBeyond is how much longer than a round may take a lane is held.
	leaseBeyond = 15 * time.Second
	// maxHold bounds the pause that a receiver may ask for (Retry-After), maxPushAsked that of
	// an Alertmanager: what fires there is not to end by itself meanwhile.
	maxHold      = time.Hour
	maxPushAsked = resend / 2
	// maxFailHold bounds the pause between rounds that fail, maxPushHold that of an
	// Alertmanager.
	maxFailHold = time.Minute
	maxPushHold = 20 * time.Second
	// clocksDiffer is more than the clocks of two processes do: what was kept by one that was
	// further ahead was kept before it was set back.
	clocksDiffer = time.Minute
	// farAhead is behind everything that is ever due: what is due later was put
	// there by a clock that was ahead.
	farAhead = 16 * time.Hour
)

// isDue tells whether a time has come.
func isDue(at, now time.Time) bool { return !at.IsZero() && !isAhead(at, now) }

// isAhead tells whether a time is yet to come.
func isAhead(at, now time.Time) bool { return at.After(now) && !at.After(now.Add(farAhead)) }

// held is a lane that this process holds.
type held struct {
	receiver string
	told     *Receiver // it, as it was read last; nil: not yet
	lane     lane
	version  int64
	due      time.Time
	// standingAgain is before when what fires is not told: it could not be.
	standingAgain time.Time
	// lease is for how long it is held at a time, by what the receiver was when it was
	// read last.
	lease time.Duration
	asks  *asks
	// flights are what a webhook has not answered yet.
	flights *flights
	// news: what is held is not kept as it is.
	news bool
}

// due is when to look at a lane that somebody else may hold, since a message is
// due at the time.
func (l *lane) due(was, at, now time.Time) time.Time {
	if l.Holder != "" && isAhead(l.Lease, now) {
		return was // the holder looks again: its next write of the lane conflicts
	}
	if was.IsZero() || at.Before(was) {
		return at
	}
	return was
}

// setBack tells whether the clock was set back since a time that it told.
func setBack(since, now time.Time) bool { return since.After(now.Add(clocksDiffer)) }

// wake returns the write that makes a lane due, or none where there is no lane.
func (s *Service) wake(ctx context.Context, receiver string) ([]ledger.Write, error) {
	it, err := s.Store.Ledger.Get(ctx, record.LaneKey(receiver))
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read lane of receiver %s: %w", receiver, err)
	}
	return []ledger.Write{wakeItem(it, s.now())}, nil
}

func wakeItem(it ledger.Item, now time.Time) ledger.Write {
	l, err := record.Decode[lane](it)
	if err != nil {
		l = lane{} // whoever takes it tells
	}
	return ledger.Write{Expect: it.Version, WasDue: it.Due, Item: ledger.Item{Key: it.Key, Data: it.Data, Due: l.due(it.Due, now, now)}}
}

// take takes a lane that is due; nil: it is not, or another was faster.
func (s *Service) take(ctx context.Context, receiver, holder string, lease time.Duration) (*held, error) {
	it, err := s.Store.Ledger.Get(ctx, record.LaneKey(receiver))
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read lane of receiver %s: %w", receiver, err)
	}
	now := s.now()
	if !isDue(it.Due, now) {
		return nil, nil
	}
	l, err := record.Decode[lane](it)
	if err != nil {
		s.unreadable(ctx, it.Key, err)
		l = lane{} // it begins anew
	}
	l.Holder = holder
	h := &held{receiver: receiver, lane: l, version: it.Version, due: it.Due, lease: lease, asks: newAsks(), flights: newFlights()}
	h.flights.took.Store(l.Took.UnixMilli())
	err = s.keep(ctx, h)
	if errors.Is(err, ledger.ErrConflict) {
		return nil, nil // whoever it was made it due, or holds it
	}
	if errors.Is(err, ledger.ErrUnknown) {
		var ok bool
		if ok, err = s.again(ctx, h); err == nil && !ok {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if d, ok := s.doubts.LoadAndDelete(receiver); ok { // it is whose the lane is
		h.asks.doubts = d.(*doubts)
	}
	if t, ok := s.turns.LoadAndDelete(receiver); ok {
		h.flights.line.turns = t.(turns)
	}
	return h, nil
}

// keep holds a lane for a lease longer. ErrConflict: it was written meanwhile.
func (s *Service) keep(ctx context.Context, h *held) error {
	l := h.lane
	l.Lease = s.now().Add(h.lease)
	return s.putLane(ctx, h, l, l.Lease)
}

// keepNow tells whether a lane is to be kept while nothing but answers is waited for.
func (h *held) keepNow(now time.Time) bool {
	return h.news || h.lane.Lease.Sub(now) < h.lease/2 || setBack(h.lane.Kept, now)
}

// leave gives a lane back until the time; zero: until something is due.
func (s *Service) leave(ctx context.Context, h *held, due time.Time) error {
	l := h.lane
	if h.asks == nil || h.asks.lost() {
		l.resume(s.now())
	}
	if now := s.now(); setBack(l.Kept, now) {
		due = now
	}
	l.Holder, l.Lease = "", time.Time{}
	known := s.remember(h) // before another may take the lane
	if h.flights != nil && len(h.flights.line.rules) > 0 {
		s.turns.Store(h.receiver, h.flights.line.turns)
	}
	err := s.putLane(ctx, h, l, due)
	if known != nil && errors.Is(err, ledger.ErrConflict) && s.doubts.CompareAndDelete(h.receiver, known) {
		h.asks.doubts = known // it may go on here
	}
	return err
}

// resume has what Alertmanagers were asked be due for whoever has the lane next, since
// nobody waits for the answers. Whoever takes it when its lease ran out needs no such thing:
// what was asked is due before (target.postponed, target.lease).
func (l *lane) resume(now time.Time) {
	l.Hasten = hasten{Began: now, Waits: l.Hasten.Began.IsZero() || l.Hasten.Waits}
}

// putLane writes a lane. Where the clock was set back, what was said of later is void, as it
// is when the receiver was changed.
func (s *Service) putLane(ctx context.Context, h *held, l lane, due time.Time) error {
	now := s.now()
	if setBack(l.Kept, now) {
		l.Revision = 0
	}
	l.Kept = now
	tells := l.Failing
	l.Failing = tells.told()
	err := s.commitLane(ctx, h, tells, ledger.Write{Expect: h.version, WasDue: h.due,
		Item: ledger.Item{Key: record.LaneKey(h.receiver), Data: record.Encode(l), Due: due}})
	if err != nil {
		return fmt.Errorf("keep lane of receiver %s: %w", h.receiver, err)
	}
	h.version, h.lane, h.due = h.version+1, l, due
	h.news = false
	return nil
}

// Release gives back the lanes that processes held that were killed; what was in flight
// is due, and may be sent twice. Those that were left by a clock that was ahead are due. It is for a process that alone has the ledger, before
// it delivers: it would take a lane from whoever delivers still.
func (s *Service) Release(ctx context.Context) error {
	all, err := s.loadReceivers(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := record.Again(ctx, func() error { return s.release(ctx, r.ID) }); err != nil {
			return fmt.Errorf("release lane of receiver %s: %w", r.ID, err)
		}
	}
	return nil
}

func (s *Service) release(ctx context.Context, receiver string) error {
	it, err := s.Store.Ledger.Get(ctx, record.LaneKey(receiver))
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read lane: %w", err)
	}
	l, err := record.Decode[lane](it)
	if err != nil || l.Holder == "" && !setBack(l.Kept, s.now()) { // whoever takes one that cannot be read tells
		return nil //nolint:nilerr // it is free as far as one can tell
	}
	return s.leave(ctx, &held{receiver: receiver, lane: l, version: it.Version, due: it.Due}, s.now())
}

// again takes over what others wrote to a lane that is held; false: it is held by
// another now.
func (s *Service) again(ctx context.Context, h *held) (bool, error) {
	it, err := s.Store.Ledger.Get(ctx, record.LaneKey(h.receiver))
	if errors.Is(err, ledger.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read lane of receiver %s: %w", h.receiver, err)
	}
	l, err := record.Decode[lane](it)
	if err != nil || l.Holder != h.lane.Holder {
		return false, err
	}
	h.version, h.due = it.Version, it.Due
	if is := h.lane.Failing.told(); l.Failing.Told == is.Told && l.Failing.Since.Equal(is.Since) { // it was told, by a write whose answer was lost
		h.lane.Failing = is
	}
	return true, nil
}

// own has a lane that is held be written, again where somebody woke it meanwhile; false:
// another has it.
func (s *Service) own(ctx context.Context, h *held, write func() error) (mine bool, err error) {
	err = record.Again(ctx, func() error {
		err := write()
		if mine = err == nil; !errors.Is(err, ledger.ErrConflict) {
			return err
		}
		if ok, err := s.again(ctx, h); err != nil || !ok {
			return err
		}
		return err
	})
	return mine, err
}

// giveBack leaves a lane, however often it is woken meanwhile. Where another has it, that
// is all the same.
func (s *Service) giveBack(ctx context.Context, h *held, due time.Time) error {
	_, err := s.own(ctx, h, func() error { return s.leave(ctx, h, due) })
	return err
}

// purge empties the outbox of a receiver that is deleted, and ends its lane.
func (s *Service) purge(ctx context.Context, h *held) error {
	lane := record.LaneKey(h.receiver)
	for {
		p, err := s.Store.Ledger.Query(ctx, ledger.Query{PK: lane.PK, Limit: ledger.MaxWrites})
		if err != nil {
			return fmt.Errorf("read outbox: %w", err)
		}
		var writes []ledger.Write
		for _, it := range p.Items {
			if it.Key != lane {
				writes = append(writes, ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: it.Key}})
			}
		}
		if len(writes) == 0 {
			writes = []ledger.Write{{Kind: ledger.Delete, Expect: h.version, Item: ledger.Item{Key: lane}}}
		}
		if err := s.Store.Ledger.Commit(ctx, writes...); err != nil {
			return fmt.Errorf("empty outbox: %w", err)
		}
		if writes[0].Item.Key == lane {
			return nil
		}
	}
}
