package notify

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// laneOf is a receiver's lane as it is kept, and when it is due.
func (p *plane) laneOf(r Receiver) (lane, time.Time) {
	p.t.Helper()
	it, err := p.db.Get(context.Background(), record.LaneKey(r.ID))
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := record.Decode[lane](it)
	if err != nil {
		p.t.Fatal(err)
	}
	return l, it.Due
}

// TestRaisedTimeout: a lane is held for as long as a round may take by what the receiver
// is by now.
func TestRaisedTimeout(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opens := make(chan struct{})
	s := newSite(t, p, func(_ http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-opens:
		case <-r.Context().Done():
		}
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(20 * time.Second)})
	p.tell(alert.TypeFiring, p.alert("one"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "it is asked", func() bool { return len(s.all()) == 1 })
	p.change(&r, func(sp *Spec) { sp.Timeout = alert.Duration(MaxTimeout) })
	p.tell(alert.TypeFiring, p.alert("two"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	opens <- struct{}{}
	eventually(t, "it is asked again", func() bool { return len(s.all()) == 2 })
	want := webhookRound/perHost*MaxTimeout + leaseBeyond
	if l, due := p.laneOf(r); l.Lease.Sub(p.clock()) != want || due != l.Lease {
		t.Errorf("the lease is %s, and due %s, want %s", l.Lease.Sub(p.clock()), due.Sub(p.clock()), want)
	}
	close(opens)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// woken is a ledger in which a lane is woken just before it is written.
type woken struct {
	ledger.Ledger
	times atomic.Int32
	wake  func()
}

func (l *woken) Commit(ctx context.Context, ws ...ledger.Write) error {
	lane := func(w ledger.Write) bool { return record.LaneOf(w.Item.Key) != "" }
	if slices.ContainsFunc(ws, lane) && l.times.Add(-1) >= 0 {
		l.wake()
	}
	return l.Ledger.Commit(ctx, ws...)
}

// TestWokenAtItsEnd: a lane whose process ends is given back, also where it is woken at
// that very moment.
func TestWokenAtItsEnd(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s, _ := newGate(t, p, 200)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.tell(alert.TypeFiring, p.alert("one"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	db := &woken{Ledger: p.db, wake: func() {
		ws, err := p.wake(context.Background(), r.ID)
		if err == nil {
			err = p.db.Commit(context.Background(), ws...)
		}
		if err != nil {
			t.Error(err)
		}
	}}
	x := p.another(db)
	x.roots = p.roots
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.Deliver(ctx, record.LaneKey(r.ID)) }()
	eventually(t, "it is asked", func() bool { return len(s.all()) == 1 })
	db.times.Store(3)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if l, due := p.laneOf(r); l.Holder != "" || due.After(p.clock()) || db.times.Load() > 0 {
		t.Errorf("held by %q, due in %s, woken %d times less", l.Holder, due.Sub(p.clock()), db.times.Load())
	}
}
