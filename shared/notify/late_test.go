package notify

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// asked has an Alertmanager be asked by a notifier, within a time, what it does not answer
// until it is let.
func (p *plane) asked(t *testing.T, x *Service, within time.Duration) (r Receiver, slow *fake, opens func(), done <-chan error) {
	t.Helper()
	slow, gate := newSlowFake(t, p)
	r, _ = p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{slow.URL}, Timeout: alert.Duration(MaxTimeout)})
	p.tell(alert.TypeFiring, p.alert("hot"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	x.roots, x.patience = p.roots, time.Millisecond
	c := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		c <- x.Deliver(ctx, record.LaneKey(r.ID))
	}()
	eventually(t, "it is asked, and postponed", func() bool {
		d := p.deliveries(r, Pending)
		return len(slow.all()) == 1 && len(d) == 1 && d[0].Waits
	})
	return r, slow, func() { close(gate) }, c
}

// again says that what was asked is asked again by now, once, and taken.
func (f *fake) again(t *testing.T, p *plane, r Receiver) {
	t.Helper()
	p.serve()
	if d := p.deliveries(r, Active); len(d) != 1 || d[0].Waits || d[0].LastError != "" || len(f.all()) != 2 {
		t.Errorf("of %d requests came %+v", len(f.all()), p.deliveries(r, ""))
	}
}

// What is cut off since the time is over, when nothing else is asked, is told by whoever
// comes next, and not when it was postponed to.
func TestCutOffAtTheDeadline(t *testing.T) {
	t.Parallel()
	p := setup(t)
	r, slow, opens, done := p.asked(t, p.another(p.db), 3*time.Second+keepWithin)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	opens()
	slow.again(t, p, r)
}

// forgetful is a ledger that does not keep what came of a message, once, from when it is
// armed.
type forgetful struct {
	ledger.Ledger
	armed atomic.Bool
}

var errForgot = errors.New("not kept")

func (l *forgetful) Commit(ctx context.Context, ws ...ledger.Write) error {
	if ws[0].Item.Index != nil && l.armed.CompareAndSwap(true, false) {
		return errForgot
	}
	return l.Ledger.Commit(ctx, ws...)
}

// An answer that the ledger does not keep is asked for again soon, and not when its message
// was postponed to.
func TestAnswerThatIsNotKept(t *testing.T) {
	t.Parallel()
	p := setup(t)
	db := &forgetful{Ledger: p.db}
	r, slow, opens, done := p.asked(t, p.another(db), time.Hour)
	db.armed.Store(true)
	opens()
	if err := <-done; !errors.Is(err, errForgot) {
		t.Fatal(err)
	}
	p.advance(againAfter)
	slow.again(t, p, r)
}

// logged counts what is logged by its message.
type logged struct {
	slog.Handler
	mu sync.Mutex
	n  map[string]int
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n[r.Message]++
	return nil
}

// That an Alertmanager had yet to answer when somebody else has the lane makes of what it
// refuses for the first time nothing that is known, and of what it took nothing that failed.
func TestWhatItDidBeforeIsKnown(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		before  bool // it answered so before
		status  int
		state   State
		tries   int
		refuses int   // logged
		retried int64 // by who has the lane next
	}{
		"refused":       {false, http.StatusRequestEntityTooLarge, Pending, 1, 1, 0},
		"refused again": {true, http.StatusRequestEntityTooLarge, Pending, 2, 1, 1},
		"taken":         {false, http.StatusOK, Active, 1, 0, 0},
		"taken again":   {true, http.StatusOK, Active, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			log := &logged{Handler: slog.DiscardHandler, n: map[string]int{}}
			var hangs atomic.Bool
			am := newSite(t, p, func(w http.ResponseWriter, r *http.Request, _ int) {
				if hangs.Load() {
					<-r.Context().Done()
				}
				w.WriteHeader(want.status)
			})
			notifier := func() *Service {
				x := p.another(p.db)
				x.roots, x.Logger = p.roots, slog.New(log)
				return x
			}
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}, Timeout: alert.Duration(MaxTimeout)})
			p.tell(alert.TypeFiring, p.alert("hot"))
			if err := p.Follow(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			if p.Service = notifier(); want.before {
				p.serve()
				p.advance(resend + 10*time.Second)
			}
			hangs.Store(true)
			x := notifier()
			x.patience = time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- x.Deliver(ctx, record.LaneKey(r.ID)) }()
			eventually(t, "it is postponed", func() bool {
				d := p.deliveries(r, "")
				return len(d) == 1 && d[0].LastError == "it has not answered yet"
			})
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			hangs.Store(false)
			p.Service = notifier()
			p.serve()
			if d := p.deliveries(r, want.state); len(d) != 1 || d[0].Tries != want.tries || d[0].LastStatus != want.status {
				t.Errorf("%+v", p.deliveries(r, ""))
			}
			if n := log.n["an Alertmanager refuses alerts"]; n != want.refuses {
				t.Errorf("that it refuses is logged %d times", n)
			}
			if n := p.Metrics.Read().Retried; n != want.retried {
				t.Errorf("%d are retried", n)
			}
		})
	}
}
