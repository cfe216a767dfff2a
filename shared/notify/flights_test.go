package notify

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/record"
)

// ofOneRule are alerts of one rule, by their names.
func (p *plane) ofOneRule(name string, n int) (alerts []*alert.Alert) {
	p.t.Helper()
	for i := range n {
		a := p.alert(fmt.Sprintf("%s%03d", name, i))
		a.Rule, a.RuleID = "nodes", "rul_1"
		alerts = append(alerts, a)
	}
	return alerts
}

// newChoosy is a site that answers what is told of alerts whose names begin with bad as it is
// told.
func newChoosy(t testing.TB, p *plane, bad func(w http.ResponseWriter, r *http.Request)) *site {
	t.Helper()
	var s *site
	s = newSite(t, p, func(w http.ResponseWriter, r *http.Request, n int) {
		if strings.Contains(string(s.all()[n-1].body), `"summary":"bad`) {
			bad(w, r)
		}
	})
	return s
}

// hangs does not answer.
func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// slowly answers after a while.
func slowly(status int) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-r.Context().Done():
		}
		w.WriteHeader(status)
	}
}

// TestBesideAStorm: what is told just before a storm of messages that a webhook does not
// take, of the same rule, and what is told just after it, is taken long before those were
// tried.
func TestBesideAStorm(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(w http.ResponseWriter, r *http.Request){
		"it hangs on them":           hangs,
		"it fails on them slowly":    slowly(500),
		"it refuses them slowly":     slowly(422),
		"it refuses them":            func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) },
		"it says that it has enough": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			p.patience = 100 * time.Millisecond
			s := newChoosy(t, p, bad)
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MinTimeout)})
			old := p.ofOneRule("old", 2)
			p.tell(alert.TypeFiring, old...)
			p.run()
			for _, some := range [][]*alert.Alert{p.ofOneRule("badbefore", 60), p.ofOneRule("before", 1), p.ofOneRule("bad", 300), p.ofOneRule("after", 1), p.ofOneRule("badafter", 60)} {
				p.advance(time.Millisecond)
				if p.tell(alert.TypeFiring, some...); len(some) == 1 {
					p.tell(alert.TypeResolved, old[0])
					old = old[1:]
				}
				if err := p.Follow(t.Context(), stream); err != nil {
					t.Fatal(err)
				}
			}
			const good = 6
			for range 40 {
				if len(p.deliveries(r, Delivered)) == good {
					break
				}
				p.serve()
				p.advance(3 * time.Second)
			}
			if n := len(p.deliveries(r, Delivered)); n != good {
				t.Errorf("%d are taken", n)
			}
			if n := len(s.all()); n > 5*webhookRound {
				t.Errorf("they were taken of %d requests", n)
			}
		})
	}
}

// TestBesideWhatHangs: what is told to a webhook that hangs on many messages is taken while
// those are out, and what is told of an alert comes in order.
func TestBesideWhatHangs(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = 50 * time.Millisecond
	s := newChoosy(t, p, hangs)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MaxTimeout)})
	bad := p.ofOneRule("bad", perHost)
	p.tell(alert.TypeFiring, bad...)
	p.tell(alert.TypeResolved, bad...)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "as many as go at once are out", func() bool { return len(s.all()) == perHost })
	const others = 10
	for i := range others {
		for _, typ := range []string{alert.TypeFiring, alert.TypeResolved} {
			a := p.ofOneRule(fmt.Sprintf("good%d", i), 1)
			p.tell(typ, a...)
		}
		if err := p.Follow(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all others are taken", func() bool { return len(p.deliveries(r, Delivered)) == 2*others })
	if n := len(s.all()); n != perHost+2*others {
		t.Errorf("%d requests: another of an alert that is out", n)
	}
	s.CloseClientConnections()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	order := map[string]int64{}
	for _, g := range s.all() {
		is := g.message.Data
		if is.Sequence < order[is.ID] {
			t.Errorf("of %s number %d came after %d", is.ID, is.Sequence, order[is.ID])
		}
		order[is.ID] = is.Sequence
	}
}

// TestPace: a webhook that takes one message a second, and has enough then, takes all at that
// pace: what it had enough at is not kept waiting for the pauses of what failed, and uses up
// no try.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]string{"": "", "it says when": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			var taken atomic.Int64 // the second in which it took one last
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
				if now := p.clock().Unix(); taken.Swap(now) == now {
					if after != "" {
						w.Header().Set("Retry-After", after)
					}
					w.WriteHeader(http.StatusTooManyRequests)
				}
			})
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			const many = 60
			p.tell(alert.TypeFiring, p.ofOneRule("a", many)...)
			for range many + many/5 {
				p.run()
				p.advance(time.Second)
			}
			all := p.deliveries(r, Delivered)
			if len(all) != many {
				t.Errorf("%d are taken, of %d requests; one waits for %s", len(all), len(s.all()), p.deliveries(r, Pending)[0].Next.Sub(p.clock()))
			}
			for _, d := range all {
				if d.Tries-d.Early != 1 {
					t.Errorf("%s was tried %d times, %d of them for its pace", d.ID, d.Tries, d.Early)
				}
			}
		})
	}
}

// TestEndlessPace: a message that a webhook answers with its pace for ever is given up when it
// is old.
func TestEndlessPace(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusTooManyRequests) })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.tell(alert.TypeFiring, p.alert("a"))
	p.run()
	for range 50 {
		p.advance(time.Hour)
		p.serve()
	}
	d := p.deliveries(r, Failed)
	if len(d) != 1 || d[0].DoneAt.Sub(d[0].CreatedAt) <= maxAge {
		t.Errorf("given up: %+v; pending: %+v", d, p.deliveries(r, Pending))
	}
	if n := len(s.all()); n > 52 {
		t.Errorf("%d requests", n)
	}
}

// A webhook that hangs on all is held also where too little of the time is left for another
// round when that is known.
func TestHangsToTheDeadline(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(2 * time.Second)})
	p.bad(1)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+keepWithin+time.Second) // one round
	defer cancel()
	if err := p.Deliver(ctx, record.LaneKey(r.ID)); err != nil {
		t.Fatal(err)
	}
	held, err := p.Holds(t.Context(), r)
	if err != nil || len(held[r.ID]) != 1 || held[r.ID][0].Fails != 1 || held[r.ID][0].Until == nil || len(s.all()) != 1 {
		t.Errorf("held after %d requests: %+v, %v", len(s.all()), held, err)
	}
}
