package worker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// TestChainMissesNothing: what falls due while a woken sweep is at work has no
// wake-up of its own, and is looked at all the same, long before the next tick.
func TestChainMissesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		second time.Duration // when another operation falls due
		work   time.Duration // how long the sweep is at work on the first, due after 5 s
	}{
		"a moment later":        {5001 * time.Millisecond, 2 * time.Millisecond},
		"while it works":        {7 * time.Second, 3 * time.Second},
		"long before it ended":  {6 * time.Second, 20 * time.Second},
		"between milliseconds":  {5*time.Second + 1500*time.Microsecond, 2 * time.Millisecond},
		"as it begins to write": {7 * time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			first, second := p.expiring(0, 5*time.Second), p.expiring(1, tt.second)
			p.settle()
			p.rung()
			p.fresh()
			worked := false
			p.tap.commit = func(_ int, ws []ledger.Write) error {
				if touches(ws, record.OperationPK(first)) && !worked {
					worked = true
					p.pass(tt.work)
				}
				return nil
			}
			p.pass(5 * time.Second)
			p.wake(wakeFor(p.now()))
			p.want(first, operation.TimedOut)
			p.want(second, operation.Dispatched)
			if got := p.rung(); len(got) != 1 || got[0] > 2*time.Second {
				t.Fatalf("the chain rings after %v", got)
			}
			p.pass(2 * time.Second)
			p.wake(wakeFor(p.now()))
			p.want(second, operation.TimedOut)
		})
	}
}

// TestChainBetweenMilliseconds: an index keeps milliseconds, and a lease may end
// between two of them. A sweep that looks there finds nothing due yet, and must
// not be the last to look.
func TestChainBetweenMilliseconds(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	p.settle()
	p.pass(300*time.Microsecond + time.Second)
	claim := operation.Claim{Agent: "agt_1", Boot: "b", Until: p.now().Add(p.store.Timing.Lease)}
	if _, err := p.store.Update(t.Context(), op, func(*operation.Operation) (operation.Change, []ledger.Write, error) { return claim, nil, nil }); err != nil {
		t.Fatal(err)
	}
	running := p.want(op, operation.Running)
	over := p.store.Timing.LeaseOver(&running.State)
	for range 3 { // by the place that it was admitted with to the one where it belongs
		p.rung()
		p.fresh()
		next, err := p.store.Ledger.(ledger.Foreseer).NextDue(t.Context(), p.now(), p.now().Add(time.Minute))
		if err != nil || next.IsZero() {
			t.Fatalf("next due %v, %v", next, err)
		}
		p.pass(next.Sub(p.now()))
		p.wake(wakeFor(p.now()))
		o, err := p.store.Load(t.Context(), op)
		p.no(err)
		if o.State.Phase == operation.Reconciling {
			if late := p.now().Sub(over); late < 0 || late > time.Millisecond {
				t.Errorf("the lease was taken %s after its end", late)
			}
			return
		}
	}
	t.Errorf("the lease is still held %s after its end", p.now().Sub(over))
}

// slowReads is a ledger whose reads take a while.
type slowReads struct {
	ledger.Ledger
	take func()
}

func (l slowReads) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	l.take()
	return l.Ledger.GetMany(ctx, ks)
}

// TestChainAtTheSameTime: what falls due between the sweep's finding it early and
// putting it where it belongs is not left behind.
func TestChainAtTheSameTime(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	p.settle()
	// Its lease is over 50 ms after the place of its doorbell, where it stays.
	claim := operation.Claim{Agent: "agt_1", Boot: "b", Until: p.now().Add(50 * time.Millisecond)}
	if _, err := p.store.Update(t.Context(), op, func(*operation.Operation) (operation.Change, []ledger.Write, error) { return claim, nil, nil }); err != nil {
		t.Fatal(err)
	}
	p.rung()
	p.fresh()
	p.pass(10 * time.Second)
	p.tap.Ledger = slowReads{p.db, func() { p.pass(30 * time.Millisecond) }}
	p.wake(wakeFor(p.now()))
	p.tap.Ledger = p.db
	p.want(op, operation.Running)
	if got := p.rung(); len(got) == 0 || slices.Min(got) > time.Second {
		t.Fatalf("the chain rings after %v", got)
	}
	p.pass(time.Second)
	p.wake(wakeFor(p.now()))
	p.want(op, operation.Reconciling)
}
