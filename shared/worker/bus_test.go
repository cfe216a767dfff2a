package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// pickyBus is a bus that does not accept some events.
type pickyBus struct {
	refuse func(m bus.Message) error
	ids    []string
}

func (b *pickyBus) Publish(_ context.Context, ms ...bus.Message) error {
	var failed bus.PartialError
	for i, m := range ms {
		if err := b.refuse(m); err != nil {
			if failed.Failed = append(failed.Failed, i); failed.Err == nil {
				failed.Err = err
			}
			continue
		}
		b.ids = append(b.ids, m.ID)
	}
	if failed.Failed != nil {
		return &failed
	}
	return nil
}

// TestBusAcceptsSome: an event that the bus will never take holds up none behind
// it; one that it cannot take now does, and none before it is put again.
func TestBusAcceptsSome(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		why   error
		stays bool
	}{
		"never one of no kind it takes": {why: bus.ErrInvalid},
		"never one so large":            {why: bus.ErrTooLarge},
		"not now":                       {why: bus.ErrUnavailable, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			for n := range 3 {
				p.drain(n)
			}
			p.settle()
			evs, head, err := event.ReadStream(t.Context(), p.db, p.cluster, 1, 100)
			p.no(err)
			ids := func(evs []event.Event) (out []string) {
				for _, e := range evs {
					out = append(out, e.ID)
				}
				return out
			}
			b := &pickyBus{}
			bad, again := 2, true
			b.refuse = func(m bus.Message) error {
				if again && m.ID == evs[bad].ID {
					return tt.why
				}
				return nil
			}
			r := p.relay()
			r.Bus = b
			p.no(p.db.Commit(t.Context(), ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.StreamBusKey(p.cluster)}}))
			if err := r.PublishBus(t.Context(), p.cluster); tt.stays != errors.Is(err, tt.why) || !tt.stays && err != nil {
				t.Fatalf("got %v", err)
			}
			again = false
			first := b.ids
			b.ids = nil
			p.no(r.PublishBus(t.Context(), p.cluster))
			if !tt.stays {
				if want := slices.Delete(ids(evs), bad, bad+1); !slices.Equal(slices.Compact(slices.Sorted(slices.Values(first))), slices.Sorted(slices.Values(want))) || len(b.ids) > 0 {
					t.Errorf("on the bus: %v, then %v, want %v", first, b.ids, want)
				}
				return
			}
			if d := cmp.Diff(ids(evs)[bad:], b.ids); d != "" {
				t.Errorf("of %d events, behind what was taken (-want +got):\n%s", head.Next-1, d)
			}
		})
	}
}

// TestBusAcceptsNone: a bus that says of all events what it would say of one that
// it cannot take is at fault itself: nothing is passed over.
func TestBusAcceptsNone(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.drain(0)
	p.settle()
	evs, _, err := event.ReadStream(t.Context(), p.db, p.cluster, 1, 100)
	p.no(err)
	p.no(p.db.Commit(t.Context(), ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.StreamBusKey(p.cluster)}}))
	why := bus.ErrInvalid
	b := &pickyBus{refuse: func(bus.Message) error { return why }}
	r := p.relay()
	r.Bus = b
	for range 3 {
		if err := r.PublishBus(t.Context(), p.cluster); !errors.Is(err, why) {
			t.Fatalf("got %v", err)
		}
	}
	why = nil
	if p.no(r.PublishBus(t.Context(), p.cluster)); len(b.ids) != len(evs) {
		t.Errorf("%d of %d events on the bus", len(b.ids), len(evs))
	}
}
