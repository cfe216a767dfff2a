// Package sweep looks after time: deadlines, dead leases, doorbells that nobody
// answered, agents that fell silent, dead letters.
//
// It reads the ledger's due index and acts on the item itself, so that a hint
// that is old does no harm. On one machine it runs all the time; on AWS each
// minute and at delayed wake-ups.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
)

// batch is how many due items one pass deals with, and reads at a time.
const batch = 256

// parallel bounds how many of them are worked on at once.
const parallel = 32

// ErrHandedOn: what is due is looked after by another, and stays due until then.
var ErrHandedOn = errors.New("handed on")

// Sweep holds what a pass needs.
type Sweep struct {
	Store  *record.Store
	Relay  *relay.Relay
	Queue  queue.Admin
	Logger *slog.Logger
	Waker  *Waker // nil: the sweep runs all the time
	// React judges a stream by the alert rules, since a timer of it is due, or hands it
	// on to someone who does and returns ErrHandedOn; nil: no reactor.
	React func(ctx context.Context, stream string) error
	// Notify sends what is due to the receiver whose lane the key is, or hands that
	// on; nil: no notifier.
	Notify func(ctx context.Context, key ledger.Key) error
}

// Result is what one pass did.
type Result struct {
	Due    int  // items it looked at
	Failed int  // items that it could not deal with
	More   bool // there was more than one pass takes
	// Through is until when it looked at what is due; zero: that could not be read.
	Through time.Time
	// Late is how long the oldest of them had been due.
	Late time.Duration
	// Err is why items failed; they are due again in the next pass.
	Err error
}

// Pass acts on what is due now. An item that fails, or is handed on, leaves the
// others alone: it is due again in the next pass, and this one reads on behind it,
// however many there are. An error means that what is due could not be read at all.
func (s *Sweep) Pass(ctx context.Context) (Result, error) {
	now := s.Store.Now()
	res := Result{Through: now}
	var from time.Time
	edge := map[ledger.Key]bool{} // what was taken of those due at from
	for dealt := 0; ; {
		items, err := dueFrom(ctx, s.Store.Ledger, from, now, batch+len(edge))
		if err != nil {
			return Result{}, fmt.Errorf("read what is due: %w", err)
		}
		full := len(items) == min(batch+len(edge), ledger.MaxPage)
		fresh := slices.DeleteFunc(items, func(it ledger.Item) bool { return edge[it.Key] })
		if res.Due == 0 && len(fresh) > 0 {
			res.Late = max(0, now.Sub(fresh[0].Due))
		}
		res.Due += len(fresh)
		dealt += s.items(ctx, fresh, &res)
		if !full || ctx.Err() != nil {
			return res, nil
		}
		if dealt >= batch {
			res.More = true
			return res, nil
		}
		from = behind(from, fresh, edge)
	}
}

// behind is from when on is read what follows the items, which were read from a time
// on: the last one's due time, of which edge holds those that were read. A page of
// nothing but that has the rest of its millisecond wait until some of it is dealt with.
func behind(from time.Time, items []ledger.Item, edge map[ledger.Key]bool) time.Time {
	if len(items) == 0 {
		clear(edge)
		return from.Add(time.Millisecond)
	}
	last := items[len(items)-1].Due.Truncate(time.Millisecond)
	if !last.Equal(from) {
		clear(edge)
	}
	for _, it := range items {
		if !it.Due.Before(last) {
			edge[it.Key] = true
		}
	}
	return last
}

// dueFrom reads what is due from a time on; of an engine that cannot, what is among
// the oldest ledger.MaxPage.
func dueFrom(ctx context.Context, l ledger.Reader, from, until time.Time, limit int) ([]ledger.Item, error) {
	limit = min(limit, ledger.MaxPage)
	if p, ok := l.(ledger.DuePager); ok {
		return p.DueFrom(ctx, from, until, limit)
	}
	items, err := l.Due(ctx, until, ledger.MaxPage)
	items = slices.DeleteFunc(items, func(it ledger.Item) bool { return it.Due.Before(from) })
	return items[:min(limit, len(items))], err
}

// items deals with the items, several at a time, adds what failed to the result, and
// tells how many are done with.
func (s *Sweep) items(ctx context.Context, items []ledger.Item, res *Result) (dealt int) {
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	slots := make(chan struct{}, parallel)
	for _, it := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := s.item(ctx, it)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				dealt++
			case errors.Is(err, ErrHandedOn):
			default:
				if res.Failed++; res.Failed <= 5 { // enough to tell
					res.Err = errors.Join(res.Err, err)
				}
			}
		})
	}
	wg.Wait()
	return dealt
}

func (s *Sweep) item(ctx context.Context, it ledger.Item) error {
	if id := record.OperationOf(it.Key); id != "" {
		return s.Operation(ctx, id)
	}
	if cluster, agent := record.AgentOf(it.Key); agent != "" {
		return s.agent(ctx, it.Key, cluster)
	}
	if id := record.LateOf(it.Key); id != "" {
		return s.Relay.PublishLate(ctx, id, it.Version)
	}
	if stream := record.JudgedOf(it.Key); stream != "" && s.React != nil {
		return s.React(ctx, stream)
	}
	if record.LaneOf(it.Key) != "" && s.Notify != nil {
		return s.Notify(ctx, it.Key)
	}
	return nil
}

// Operation does what is due on one operation.
func (s *Sweep) Operation(ctx context.Context, id string) error {
	var early, stuck, rung, local bool
	op, err := s.Store.Update(ctx, id, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
		early, stuck, rung, local = false, false, false, false
		st, tm, now := &op.State, s.Store.Timing, s.Store.Now()
		due := tm.Due(st)
		if due.IsZero() || due.After(now) {
			early = !due.IsZero()
			return nil, nil, nil
		}
		past, away := !st.Deadline.After(now), s.away(due, now)
		switch {
		case st.PlaneLocal:
			local = true
			if st.Phase == operation.Pending && past {
				return operation.Expire{Away: away}, nil, nil
			}
			return operation.Ring{}, nil, nil
		case past:
			return operation.Expire{Away: away}, nil, nil
		case st.Lease != nil:
			return operation.LoseLease{Away: away}, nil, nil
		case st.Phase == operation.Pending:
			stuck = true // no feed record told relay of it
			return nil, nil, nil
		}
		rung = true
		w, err := s.Store.Availability(ctx, op.Spec.Cluster, op.Spec.Steps)
		return operation.Ring{Waiting: w}, nil, err
	})
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("sweep operation %s: %w", id, err)
	case early:
		return s.Store.Reschedule(ctx, id)
	case local:
		return s.Relay.RingPlane(ctx, id)
	case stuck:
		_, err = s.Relay.Dispatch(ctx, []string{id})
	case rung:
		err = s.Relay.Ring(ctx, &op.State)
	}
	if err != nil {
		return err
	}
	return s.Relay.Publish(ctx, []string{id})
}

// How late a sweep may be and still have been at work all the time: where it runs all
// the time, and where it is rung or runs each minute.
const (
	lateAlways = 5 * time.Second
	lateRung   = 2 * time.Minute
)

// away is since when nobody looked after what was due then, if it is too long ago for
// the sweep to have been at work; zero: it was.
func (s *Sweep) away(due, now time.Time) time.Time {
	most := lateAlways
	if s.Waker != nil {
		most = lateRung
	}
	if now.Sub(due) <= most {
		return time.Time{}
	}
	return due
}

// agent tells that an agent fell silent, once.
func (s *Sweep) agent(ctx context.Context, key ledger.Key, cluster string) error {
	it, err := s.Store.Ledger.Get(ctx, key)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read agent: %w", err)
	}
	a, err := record.Decode[fleet.Agent](it)
	if err != nil {
		return err
	}
	now := s.Store.Now().UTC()
	if a.Silent || now.Sub(a.LastSeen) < s.Store.Timing.AgentSilent {
		return nil
	}
	a.Silent = true
	write := ledger.Write{Item: s.Store.AgentItem(&a), Expect: it.Version}
	if a.Stopping {
		err = s.Store.Ledger.Commit(ctx, write)
	} else {
		var e event.Event
		e, err = event.New("agent.silent", cluster, event.Subject{Kind: "agent", ID: a.ID, Name: a.Name}, now, operation.Sweep,
			map[string]any{"last_seen": a.LastSeen, "boot": a.Boot}, a.ID, a.Boot, fmt.Sprint(a.LastSeen.UnixMilli()))
		if err != nil {
			return err
		}
		_, err = event.Append(ctx, s.Store.Ledger, event.StreamOf(cluster), []event.Event{e}, func() ([]ledger.Write, error) {
			return []ledger.Write{write}, nil
		})
	}
	if errors.Is(err, ledger.ErrConflict) {
		return nil // it was heard of just now
	}
	return err
}

// Lateness is how far behind the oldest due item is; 0 when nothing is due.
func (s *Sweep) Lateness(ctx context.Context) (time.Duration, error) {
	now := s.Store.Now()
	items, err := s.Store.Ledger.Due(ctx, now, 1)
	if err != nil || len(items) == 0 {
		return 0, err
	}
	return now.Sub(items[0].Due), nil
}
