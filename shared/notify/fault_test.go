package notify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// errCrash is that the process ended.
var errCrash = errors.New("crashed")

// crashing is a ledger whose process ends at its at'th commit: before it, or after.
type crashing struct {
	ledger.Ledger
	mu      sync.Mutex
	n, at   int
	applied bool
}

func (l *crashing) Commit(ctx context.Context, ws ...ledger.Write) error {
	l.mu.Lock()
	l.n++
	dead, now := l.n > l.at, l.n == l.at
	l.mu.Unlock()
	if dead || now && !l.applied {
		return errCrash
	}
	if err := l.Ledger.Commit(ctx, ws...); err != nil {
		return err
	}
	if now {
		return errCrash
	}
	return nil
}

// crash is a night whose first process ends at its at'th commit, before or after it,
// while another goes on. It returns how many commits the first made.
func (p *plane) crash(at int, applied bool) (commits int) {
	t := p.t
	t.Helper()
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
	am := newFake(t, p)
	rm, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	var alerts []*alert.Alert
	for i := range 15 {
		alerts = append(alerts, p.alert(fmt.Sprintf("rule%d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	p.tell(alert.TypeResolved, alerts[:5]...)
	c := &crashing{Ledger: p.db, at: at, applied: applied}
	one := p.another(c)
	one.roots = p.roots
	_ = one.Follow(context.Background(), stream)
	for _, x := range []Receiver{r, rm} {
		_ = one.Deliver(context.Background(), record.LaneKey(x.ID))
	}
	p.advance(2 * time.Minute) // the dead one's leases end
	p.run()
	if ids := s.ids(); len(ids) != 20 {
		t.Errorf("crash at %d (applied %v): %d messages came", at, applied, len(ids))
	}
	if d := p.deliveries(r, ""); len(d) != 20 || len(p.deliveries(r, Delivered)) != 20 {
		t.Errorf("crash at %d (applied %v): %d messages were made", at, applied, len(d))
	}
	if firing := am.firing(p.clock()); len(firing) != 10 {
		t.Errorf("crash at %d (applied %v): the Alertmanager has %d", at, applied, len(firing))
	}
	return c.n
}

// TestCrashes: a process that ends at any of its commits, before or after it, and
// another that goes on: each transition is made one message, and none is lost; what
// is sent twice has the same id.
func TestCrashes(t *testing.T) {
	t.Parallel()
	commits := setup(t).crash(1<<30, false)
	if commits < 30 {
		t.Fatalf("the night is too quiet: %d commits", commits)
	}
	for at := 1; at <= commits; at++ {
		setup(t).crash(at, at%2 == 0)
		if at <= 12 {
			setup(t).crash(at, at%2 != 0)
		}
	}
}

// two has two notifiers work at once.
func (p *plane) two(alerts int) {
	t := p.t
	t.Helper()
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL})
	var wg sync.WaitGroup
	other := p.another(p.db)
	other.roots = p.roots
	for i := range alerts {
		p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("rule%d", i)))
		for _, x := range []*Service{p.Service, other} {
			wg.Go(func() {
				if err := x.Follow(context.Background(), stream); err != nil {
					t.Error(err)
				}
				if err := x.Deliver(context.Background(), record.LaneKey(r.ID)); err != nil {
					t.Error(err)
				}
			})
		}
		if i%10 == 9 {
			wg.Wait()
		}
	}
	wg.Wait()
	p.run()
	ids := s.ids()
	if len(ids) != alerts || len(p.deliveries(r, Delivered)) != alerts {
		t.Errorf("%d messages came, %d are delivered", len(ids), len(p.deliveries(r, Delivered)))
	}
	for id, n := range ids {
		if n > 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// TestTwoNotifiers: two at once make each message once, and send it once.
func TestTwoNotifiers(t *testing.T) {
	t.Parallel()
	setup(t).two(100)
}

// TestFlood: a thousand alerts at once reach a receiver that works while one that
// never answers and one that fails keep only their own waiting.
func TestFlood(t *testing.T) {
	t.Parallel()
	p := setup(t)
	stuck := make(chan struct{})
	slow := newSite(t, p, func(_ http.ResponseWriter, rq *http.Request, _ int) {
		select {
		case <-stuck:
		case <-rq.Context().Done():
		}
	})
	failing := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusBadGateway) })
	good := newSite(t, p, nil)
	defer close(stuck)
	var rs []Receiver
	for name, s := range map[string]*site{"slow": slow, "failing": failing, "good": good} {
		sp := Spec{Name: name, Kind: KindWebhook, URL: s.URL}
		if s == slow { // the others have time enough on a busy machine
			sp.Timeout = alert.Duration(time.Second)
		}
		r, _ := p.receiver(sp)
		rs = append(rs, r)
	}
	var alerts []*alert.Alert
	for i := range 1000 {
		alerts = append(alerts, p.alert(fmt.Sprintf("rule%d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	began := time.Now()
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	t.Logf("1,000 alerts for 3 receivers: made in %s", time.Since(began))
	began = time.Now()
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			if err := p.Deliver(t.Context(), record.LaneKey(r.ID)); err != nil {
				t.Error(err)
			}
			if r.Name == "good" {
				t.Logf("and sent to one in %s", time.Since(began))
			}
		})
	}
	wg.Wait()
	if n := len(good.ids()); n != 1000 || len(good.all()) != 1000 {
		t.Errorf("%d of 1,000 came, in %d requests", n, len(good.all()))
	}
	// One round, and then a pause: neither is hammered.
	if n, m := len(slow.all()), len(failing.all()); n > webhookRound || m > webhookRound {
		t.Errorf("the slow one got %d requests, the failing one %d", n, m)
	}
	for _, r := range rs {
		if r.Name == "slow" {
			d := p.deliveries(r, Pending)
			if len(d) != 1000 {
				t.Errorf("%d wait for the slow one", len(d))
			}
			tried := 0
			for _, x := range d {
				if x.LastError == "no answer in time" {
					tried++
				}
			}
			if tried == 0 {
				t.Error("none says that there was no answer in time")
			}
		}
	}
}

// TestAnswers: what a receiver answers, and what becomes of the message.
func TestAnswers(t *testing.T) {
	t.Parallel()
	target := newSite(t, nil, nil)
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter)
		state  State
		err    string
		pause  time.Duration // at least
		events []string
	}{
		{"204", func(w http.ResponseWriter) { w.WriteHeader(204) }, Delivered, "", 0, nil},
		{"redirect", func(w http.ResponseWriter) { w.Header().Set("Location", target.URL); w.WriteHeader(307) }, Pending, "answered 307: redirects are not followed", 0, nil},
		{"404", func(w http.ResponseWriter) { w.WriteHeader(404) }, Pending, "answered 404", 0, nil},
		{"gone", func(w http.ResponseWriter) { w.WriteHeader(410) }, Failed, "answered 410", 0, []string{event.TypeNotifyDisabled, event.TypeNotifyFailed}},
		{"429", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "600"); w.WriteHeader(429) }, Pending, "answered 429", 10 * time.Minute, nil},
		{"503, date", func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", t0.Add(20*time.Minute).Format(http.TimeFormat))
			w.WriteHeader(503)
		}, Pending, "answered 503", 20 * time.Minute, nil},
		{"503, for a year", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "31536000"); w.WriteHeader(503) }, Pending, "answered 503", time.Hour, nil},
		{"500, long", func(w http.ResponseWriter) { w.WriteHeader(500); _, _ = w.Write(make([]byte, 1<<20)) }, Pending, "answered 500", 0, nil},
		{"200, endless", func(w http.ResponseWriter) {
			for range 100 {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, Delivered, "", 0, nil},
		{"headers, long", func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 64<<10)) }, Pending, "net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 16384 bytes; aborted", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { c.answer(w) })
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			p.tell(alert.TypeFiring, p.alert("a"))
			p.run()
			d := p.deliveries(r, "")
			if len(d) != 1 || d[0].State != c.state || d[0].LastError != c.err {
				t.Fatalf("%d are made, it is %s, %s", len(d), d[0].State, d[0].LastError)
			}
			if c.pause > 0 {
				if next := d[0].Next.Sub(t0); next < c.pause || next > c.pause+time.Hour {
					t.Errorf("next after %s", next)
				}
				p.tell(alert.TypeFiring, p.alert("b"))
				p.advance(c.pause - 2*time.Second)
				if p.run(); len(s.all()) != 1 {
					t.Error("the receiver was not left alone")
				}
			}
			if diff := cmp.Diff(c.events, p.told()); diff != "" {
				t.Error(diff)
			}
			got, err := p.Receiver(t.Context(), r.ID)
			if err != nil || (got.Disabled != nil) != (c.name == "gone") {
				t.Errorf("disabled %+v, %v", got.Disabled, err)
			}
		})
	}
	t.Cleanup(func() {
		if n := len(target.all()); n != 0 {
			t.Errorf("a redirect was followed %d times", n)
		}
	})
}

// TestRelease: what was in flight when the only process was killed is sent by the next at
// once, under the id that it had.
func TestRelease(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "pager", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MaxTimeout)})
	p.tell(alert.TypeFiring, p.alert("hot"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	dead := p.another(&crashing{Ledger: p.db, at: 3}) // it takes the lane and keeps it, and what it sends it does not keep
	dead.roots = p.roots
	if err := dead.Deliver(t.Context(), record.LaneKey(r.ID)); !errors.Is(err, errCrash) {
		t.Fatalf("killed: %v", err)
	}
	p.advance(time.Millisecond)
	for range 2 { // the second finds nothing to release
		if err := p.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.run()
	}
	if ids := s.ids(); len(s.all()) != 2 || len(ids) != 1 || len(p.deliveries(r, Delivered)) != 1 {
		t.Errorf("sent %v, delivered %d", ids, len(p.deliveries(r, Delivered)))
	}
}
