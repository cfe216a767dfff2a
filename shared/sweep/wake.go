package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/queue"
)

// WakeQueue is the queue of wake-ups.
const WakeQueue = "sweep"

const (
	// Horizon is how far ahead due times get wake-ups. Whatever is further away
	// is seen by a minute tick before it comes that near.
	Horizon = 2 * time.Minute
	// moment is how long ago a due time may have passed when it is committed and
	// still get a wake-up; what is older the sweep has seen.
	moment = 5 * time.Second
	// settled is how long before a wake-up an item must have been committed to be
	// sure to be seen by it: an engine may index late.
	settled = 3 * time.Second
	// visible is settled for an item that is not to be looked up but acted on.
	visible = 500 * time.Millisecond
	// tick is the grain of a queue's delay.
	tick = time.Second
	// sendWithin bounds what a wake-up may cost the commit that it follows.
	sendWithin = 2 * time.Second
	// remembered bounds the wake-ups that a process keeps in mind.
	remembered = 64
)

// Wake is the message that wakes the sweep: look at what is due. It names no
// item, so that one serves all.
type Wake struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	// Due is the time that it was sent for.
	Due time.Time `json:"due"`
}

const (
	wakeVersion = 1
	wakeKind    = "wake"
)

// ErrUnreadable: a message is none that the sweep's queue carries.
var ErrUnreadable = errors.New("unreadable message")

// ParseWake reads a wake-up, or tells with ErrUnreadable what is wrong with it.
func ParseWake(body []byte) (Wake, error) {
	var w Wake
	if err := json.Unmarshal(body, &w); err != nil {
		return w, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if w.Version != wakeVersion || w.Kind != wakeKind || w.Due.IsZero() {
		return w, fmt.Errorf("%w: version %d, kind %.32q", ErrUnreadable, w.Version, w.Kind)
	}
	return w, nil
}

// Waker sends wake-ups. One per process remembers what it sent, so that it must
// be shared by all that ring.
//
// Due times are kept to the second by as few messages as can be, for a wake-up
// costs three requests and an invocation. What keeps them few is the chain: a
// sweep that was woken rings for the next due time that it foresees
// (Sweep.RingNext), so that one wake-up on its way covers all that is due after
// it. A due time needs a wake-up of its own only
//
//   - if this process has sent none that rings before it, or within a second
//     after it, and
//   - if the item was not due before, or is due earlier than it was. An item
//     that is due later than it was (a doorbell is dispatched, claimed, a lease
//     renewed) is covered by the wake-up of its old due time, whoever sent it:
//     the sweep then finds that it has moved, and rings on.
//
// So an operation costs one wake-up when it is created, another process's
// renewals cost none, and under load many share one: at most one in three
// seconds a process, and one for each second in which something is in fact due.
//
// A wake-up rings no earlier than its due time and less than a second after it:
// what is late beyond that is the queue's and the function's start. A wake-up
// that rings less than a moment (settled) after a commit may not see it in an
// index that is late, and is not relied on. A chain that breaks, by a message
// that was lost or could not be sent, is taken up by the next minute tick, at
// most 60 seconds and a function's start later: the published bound of 75
// seconds more with a lost wake-up (infra/decisions/0005-wake-ups-in-a-chain.md).
type Waker struct {
	Queue  queue.Sender
	Now    func() time.Time
	Logger *slog.Logger

	mu   sync.Mutex
	rung []time.Time // when the wake-ups that are under way ring

	sent, failed atomic.Int64
}

// Ring sees to it that the sweep wakes at each of the times, where a wake-up is
// needed: see Waker. Times that passed long ago or are further away than Horizon
// are left out, zero ones too. It sends one batch at most.
func (w *Waker) Ring(ctx context.Context, dues ...time.Time) error {
	wakes, outs, err := w.reserve(dues)
	if err != nil || len(outs) == 0 {
		return err
	}
	if err := w.Queue.Send(ctx, WakeQueue, outs...); err != nil {
		w.failed.Add(int64(len(outs)))
		w.mu.Lock()
		w.rung = slices.DeleteFunc(w.rung, func(t time.Time) bool { return slices.Contains(wakes, t) })
		w.mu.Unlock()
		return fmt.Errorf("ring the sweep: %w", err)
	}
	w.sent.Add(int64(len(outs)))
	return nil
}

// reserve picks the times that need a wake-up, and remembers when they ring.
func (w *Waker) reserve(dues []time.Time) (at []time.Time, outs []queue.Outgoing, err error) {
	dues = slices.SortedFunc(slices.Values(dues), time.Time.Compare)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	w.rung = slices.DeleteFunc(w.rung, now.After)
	for _, due := range dues {
		if due.IsZero() || due.Before(now.Add(-moment)) || due.After(now.Add(Horizon)) || w.covered(now, due) || len(outs) == queue.MaxBatch {
			continue
		}
		delay := max((due.Sub(now)+tick-1)/tick*tick, tick)
		body, err := json.Marshal(Wake{Version: wakeVersion, Kind: wakeKind, Due: due.UTC()})
		if err != nil {
			return nil, nil, fmt.Errorf("encode wake-up: %w", err)
		}
		outs = append(outs, queue.Outgoing{Body: body, Delay: delay})
		at = append(at, now.Add(delay))
		if len(w.rung) < remembered {
			w.rung = append(w.rung, now.Add(delay))
		}
	}
	return at, outs, nil
}

// covered tells whether a wake-up that is under way serves a due time: it rings
// within a second after it, or before it and late enough to ring on for it.
func (w *Waker) covered(now, due time.Time) bool {
	for _, at := range w.rung {
		if !at.Before(due.Add(tick)) {
			continue
		}
		if sure := settled; !at.Before(now.Add(sure)) {
			return true
		}
		if !at.Before(due) && !at.Before(now.Add(visible)) {
			return true
		}
	}
	return false
}

// Counts returns how many wake-ups were sent, and how many could not be, since
// it was last called.
func (w *Waker) Counts() (sent, failed int64) { return w.sent.Swap(0), w.failed.Swap(0) }

// Waking returns the ledger with wake-ups: after a commit, before it returns,
// the sweep is rung for what is due soon. It is before, for a function may be
// frozen as soon as it has answered; most commits send nothing. A wake-up that
// cannot be sent is told and counted, and never fails the commit, which is done:
// the minute tick sees what is due.
func Waking(l ledger.Ledger, w *Waker) ledger.Ledger { return &waking{Ledger: l, waker: w} }

type waking struct {
	ledger.Ledger
	waker *Waker
}

var (
	_ ledger.Foreseer = (*waking)(nil)
	_ ledger.DuePager = (*waking)(nil)
)

// Commit implements ledger.Ledger.
func (l *waking) Commit(ctx context.Context, writes ...ledger.Write) error {
	err := l.Ledger.Commit(ctx, writes...)
	if err != nil && !errors.Is(err, ledger.ErrUnknown) { // else it may have been applied
		return err
	}
	var dues []time.Time
	sure := l.waker.Now().Add(settled)
	for _, wr := range writes {
		due, was := wr.Item.Due, wr.WasDue
		if wr.Kind != ledger.Put || due.IsZero() || was.Equal(due) || !was.Before(sure) && !was.After(due) {
			continue
		}
		dues = append(dues, due)
	}
	if len(dues) == 0 {
		return err
	}
	// The commit stands, even if its caller has gone away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendWithin)
	defer cancel()
	if err := l.waker.Ring(ctx, dues...); err != nil {
		l.waker.Logger.WarnContext(ctx, "a wake-up was not sent: the minute tick makes up for it", "err", err)
	}
	return err
}

// NextDue implements ledger.Foreseer over any engine.
func (l *waking) NextDue(ctx context.Context, after, until time.Time) (time.Time, error) {
	return nextDue(ctx, l.Ledger, after, until)
}

// DueFrom implements ledger.DuePager over any engine.
func (l *waking) DueFrom(ctx context.Context, from, until time.Time, limit int) ([]ledger.Item, error) {
	return dueFrom(ctx, l.Ledger, from, until, limit)
}

// nextDue foresees the next due time; an engine that cannot foresee reads the
// items.
func nextDue(ctx context.Context, l ledger.Reader, after, until time.Time) (time.Time, error) {
	if f, ok := l.(ledger.Foreseer); ok {
		return f.NextDue(ctx, after, until)
	}
	items, err := l.Due(ctx, until, batch)
	if err != nil {
		return time.Time{}, fmt.Errorf("read what is due next: %w", err)
	}
	for _, it := range items {
		if it.Due.After(after) {
			return it.Due, nil
		}
	}
	return time.Time{}, nil
}
