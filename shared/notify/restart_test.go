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

// killed is a ledger whose process is no more once it is dead.
type killed struct {
	ledger.Ledger
	dead atomic.Bool
}

func (l *killed) Commit(ctx context.Context, ws ...ledger.Write) error {
	if l.dead.Load() {
		return errCrash
	}
	return l.Ledger.Commit(ctx, ws...)
}

// What an Alertmanager was being asked when the process ended is told at the next start, as
// a webhook is, not when whoever asked would have given up on the answer.
func TestToldAtTheNextStart(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]bool{"stopped": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			p.patience = time.Millisecond
			am := newFake(t, p)
			var hangs atomic.Bool
			take := am.answer
			am.answer = func(w http.ResponseWriter, r *http.Request, n int) {
				if hangs.Load() {
					<-r.Context().Done()
					return
				}
				take(w, r, n)
			}
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}, Timeout: alert.Duration(MaxTimeout)})
			over, hot, other := p.alert("over"), p.alert("hot"), p.alert("other")
			p.tell(alert.TypeFiring, over, other)
			p.patience = time.Minute
			p.run()
			p.patience = time.Millisecond
			hangs.Store(true)
			p.tell(alert.TypeFiring, hot)
			p.tell(alert.TypeResolved, over)
			if err := p.Follow(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			db := &killed{Ledger: p.db}
			x := p.another(db)
			x.roots, x.patience = p.roots, p.patience
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- x.Deliver(ctx, record.LaneKey(r.ID)) }()
			eventually(t, "both are asked, and not answered", func() bool {
				waits := func(d Delivery) bool { return d.LastError == "it has not answered yet" }
				return len(am.all()) == 2 && len(slices.DeleteFunc(p.deliveries(r, Pending), func(d Delivery) bool { return !waits(d) })) == 2
			})
			db.dead.Store(kill)
			cancel()
			if err := <-done; (err != nil) != kill {
				t.Fatal(err)
			}
			hangs.Store(false)
			n := len(am.all())
			if err := p.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.patience = time.Minute
			p.serve()
			if got := am.firing(p.clock()); !slices.Equal(got, []string{"hot", "other"}) {
				t.Errorf("what fires there: %v, and %+v", got, p.deliveries(r, Pending))
			}
			if m := len(am.all()); m != n+1 {
				t.Errorf("it was asked %d times", m-n)
			}
			for _, d := range p.deliveries(r, "") {
				it, err := p.db.Get(t.Context(), record.DeliveryKey(r.ID, d.ID))
				if kept, err2 := decodeDelivery(it); err != nil || err2 != nil || kept.Waits || kept.LastError != "" {
					t.Errorf("kept: %+v, %v, %v", kept, err, err2)
				}
			}
			if l, _ := p.laneOf(r); !l.Hasten.Began.IsZero() {
				t.Errorf("it is still gone through: %+v", l.Hasten)
			}
		})
	}
}
