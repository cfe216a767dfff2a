package worker_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/worker"
)

// TestReceiversDelayNoDeadline: a lane that is due is served behind the pass, once
// however often it was found; by then what else was due is dealt with. One that
// fails leaves the others alone, and is served again when it is found again.
func TestReceiversDelayNoDeadline(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.expiring(0, 5*time.Second)
	p.settle()
	p.pass(6 * time.Second)
	good, bad := record.LaneKey("rcv_good"), record.LaneKey("rcv_bad")
	for _, k := range []ledger.Key{good, bad} {
		p.no(p.db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: k, Data: []byte("{}"), Due: p.now().Add(-time.Second)}}))
	}
	h := p.sweepFunction()
	var mu sync.Mutex
	served := map[ledger.Key]int{}
	began := time.Now()
	h.Lanes = &worker.Lanes{Logger: quiet(), Deliver: func(ctx context.Context, lane ledger.Key) error {
		p.want(op, operation.TimedOut)
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > 40*time.Second || at.Sub(began) < notify.MaxTimeout+3*time.Second {
			t.Errorf("a lane has until %s: not enough for one try, or no bound", at)
		}
		mu.Lock()
		defer mu.Unlock()
		if served[lane]++; lane == bad {
			return errors.New("it does not answer")
		}
		return nil
	}}
	h.Sweep.Notify = h.Lanes.Found
	for pass := 1; pass <= 2; pass++ {
		out, err := invoke(t.Context(), h.Handle, fromQueue(wakeFor(p.now()), wakeFor(p.now())))
		if err != nil || out != none {
			t.Fatalf("answer %s, %v", out, err)
		}
		if served[good] != pass || served[bad] != pass {
			t.Errorf("pass %d: served %v", pass, served)
		}
	}
}

// comes waits for a signal.
func comes(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("%s: not within a minute", what)
	}
}

// TestSlowReceiver: a receiver with the timeout that receivers have by themselves is
// told by the sweep, however long it takes; a deadline that passes while the sweep
// waits for it is kept.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := t.Context()
	came, release := make(chan struct{}, 10), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server sees it go
		came <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	n := &notify.Service{Store: p.store, Logger: quiet(), Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	rc, _, err := n.Create(ctx, call(), notify.Spec{Name: "slow", Kind: notify.KindWebhook, URL: srv.URL})
	p.no(err)
	op := p.expiring(0, 25*time.Second)
	p.settle()
	p.rule("hot", alert.Rule{})
	p.happens(p.cluster, "hot", "n0")
	f := p.reactFunction(p.reacting())
	f.Follow = worker.Telling(f.Follow, n.Follow)
	if out, err := invoke(ctx, f.Handle, worker.StreamEvent{Records: p.heads()}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	h := p.sweepFunction()
	h.Lanes = &worker.Lanes{Deliver: n.Deliver, Logger: quiet()}
	h.Sweep.Notify = h.Lanes.Found
	swept := make(chan struct{}, 1)
	p.tap.after = func(_ int, ws []ledger.Write) error {
		if touches(ws, record.OperationPK(op)) {
			select {
			case swept <- struct{}{}:
			default:
			}
		}
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(ctx, 50*time.Second) // as the function has it
		defer cancel()
		if out, err := invoke(limited, h.Handle, fromQueue(wakeFor(p.now()))); err != nil || out != none {
			t.Errorf("answer %s, %v", out, err)
		}
	}()
	comes(t, came, "the receiver is told")
	p.pass(26 * time.Second)
	comes(t, swept, "the deadline")
	p.want(op, operation.TimedOut)
	close(release)
	comes(t, ended, "the end of the invocation")
	if d, _, err := n.Deliveries(ctx, rc.ID, "", record.Span{Limit: 10}); err != nil || len(d) != 1 || d[0].State != notify.Delivered {
		t.Errorf("deliveries %+v, %v", d, err)
	}
}

// TestReceiverFoundMeanwhile: a receiver that has something to be told while the sweep
// waits for another is served at once, or, when too little time is left, rung for.
func TestReceiverFoundMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		within time.Duration
		served int
	}{"time enough": {time.Hour, 1}, "too late": {30 * time.Second, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			slow, other := record.LaneKey("rcv_slow"), record.LaneKey("rcv_other")
			due := func(k ledger.Key, at time.Time) {
				p.no(p.db.Commit(t.Context(), ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{Key: k, Data: []byte("{}"), Due: at}}))
			}
			due(slow, p.now())
			came, found, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var once, otherOnce, slowOnce sync.Once
			served := 0 // read when the invocation is over
			h := p.sweepFunction()
			// A lane that is looked at between its being found and its being served is
			// found again, and then there is nothing to be told.
			h.Lanes = &worker.Lanes{Logger: quiet(), Deliver: func(_ context.Context, lane ledger.Key) error {
				due(lane, time.Time{})
				if lane == other {
					otherOnce.Do(func() { served++; close(release) })
					return nil
				}
				slowOnce.Do(func() { close(came); <-release })
				return nil
			}}
			h.Sweep.Notify = func(ctx context.Context, lane ledger.Key) error {
				err := h.Lanes.Found(ctx, lane)
				if lane == other {
					once.Do(func() { close(found) })
				}
				return err
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				ctx, cancel := context.WithTimeout(t.Context(), c.within)
				defer cancel()
				if out, err := invoke(ctx, h.Handle, fromQueue(wakeFor(p.now()))); err != nil || out != none {
					t.Errorf("answer %s, %v", out, err)
				}
			}()
			comes(t, came, "the slow one is told")
			due(other, p.now())
			comes(t, found, "the other one is found")
			if c.served == 0 {
				close(release)
			}
			comes(t, ended, "the end of the invocation")
			if served != c.served {
				t.Errorf("the other one was served %d times", served)
			}
			if got := p.rung(); c.served == 0 && !slices.Contains(got, 5*time.Second) {
				t.Errorf("rung after %v", got)
			}
		})
	}
}
