package notify

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// paceOf answers that it wants a pause.
func paceOf(w http.ResponseWriter, status int, pause string) {
	if pause != "" {
		w.Header().Set("Retry-After", pause)
	}
	w.WriteHeader(status)
}

// TestPaceOfOneMessage: a message that is always answered with the pace keeps back others for a
// while alone, whoever has the lane, also the end of its own alert, and is tried at that pace
// until it is superseded.
func TestPaceOfOneMessage(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		status  int
		pause   string
		least   time.Duration
		another bool // process each time
		failed  bool // at first
	}{
		"503 with a pause":                    {503, "10", 10 * time.Second, false, false},
		"503 with a pause, in many processes": {503, "10", 10 * time.Second, true, false},
		"503 with a long pause":               {503, "20", 20 * time.Second, false, false},
		"503 with a pause, which failed":      {503, "10", 10 * time.Second, false, true},
		"429 with a pause":                    {429, "10", 10 * time.Second, false, false},
		"429":                                 {429, "", time.Second, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			var mu sync.Mutex
			var tried []time.Time
			s := newPicky(t, p, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if tried = append(tried, p.clock()); x.failed && len(tried) == 1 {
					w.WriteHeader(500)
					return
				}
				paceOf(w, x.status, x.pause)
			})
			s.answer = func(answer func(http.ResponseWriter, *http.Request, int)) func(http.ResponseWriter, *http.Request, int) {
				return func(w http.ResponseWriter, r *http.Request, n int) {
					if s.all()[n-1].message.Type != alert.TypeResolved {
						answer(w, r, n)
					}
				}
			}(s.answer)
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			bad := p.alert("bad")
			p.tell(alert.TypeFiring, bad)
			p.run()
			late := 0
			rules := max(30, 6*int(x.least/time.Second))
			for i := range rules {
				if x.another {
					roots := p.roots
					p.Service = p.another(p.db)
					p.roots = roots
				}
				for range 3 {
					p.advance(time.Second)
					p.serve()
				}
				rule := fmt.Sprintf("good%d", i)
				p.tell(alert.TypeFiring, p.alert(rule))
				if p.run(); i > rules/4 && !p.took(r, rule) {
					late++
				}
			}
			if late > 0 {
				t.Errorf("%d of %d are late", late, rules)
			}
			p.tell(alert.TypeResolved, bad)
			for range int(x.least/time.Second) + 1 {
				p.run()
				p.advance(time.Second)
			}
			over := p.deliveries(r, Superseded)
			if len(over) != 1 || over[0].Rule != "bad" || !p.took(r, "bad") {
				t.Errorf("its end is taken: %v; superseded: %+v", p.took(r, "bad"), over)
			}
			mu.Lock()
			defer mu.Unlock()
			for i := 1; i < len(tried); i++ {
				if since := tried[i].Sub(tried[i-1]); since < x.least && !(x.failed && i == 1) {
					t.Errorf("it was tried again after %s", since)
				}
			}
			if n, most := len(tried), rules*3/int(x.least/time.Second); n > most+1 || n < most*2/3 {
				t.Errorf("it was tried %d times, of %d", n, most)
			}
		})
	}
}

// TestPauseForAll: a webhook that asks for a pause whatever it is told is left alone for so
// long, also where it took a few at a time before, so that many messages have a pace of their own.
func TestPauseForAll(t *testing.T) {
	t.Parallel()
	for _, before := range []int{0, 60} {
		t.Run(fmt.Sprint(before, " seconds after"), func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			var mu sync.Mutex
			var taken int64
			var asked []time.Time
			begins := t0.Add(time.Duration(before) * time.Second)
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
				mu.Lock()
				defer mu.Unlock()
				now := p.clock()
				if !now.Before(begins) {
					asked = append(asked, now)
					paceOf(w, 503, "300")
					return
				}
				if taken == now.Unix() {
					paceOf(w, 429, "1")
					return
				}
				taken = now.Unix()
			})
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			p.tell(alert.TypeFiring, p.ofOneRule("old", 100)...)
			for p.clock().Before(begins) {
				p.run()
				p.advance(time.Second)
			}
			apart := 0
			for _, d := range p.deliveries(r, Pending) {
				if d.apart() {
					apart++
				}
			}
			if before > 0 && apart < 10 {
				t.Errorf("%d have a pace of their own", apart)
			}
			const pauses = 5
			for i := range pauses * 300 {
				if i%20 == 0 {
					p.tell(alert.TypeFiring, p.ofOneRule(fmt.Sprintf("new%d", i), 1)...)
				}
				p.run()
				p.advance(time.Second)
			}
			mu.Lock()
			defer mu.Unlock()
			rounds := map[time.Time]int{}
			var last time.Time
			for _, at := range asked {
				if rounds[at]++; at != last && !last.IsZero() && at.Sub(last) < 300*time.Second {
					t.Errorf("it was asked again after %s", at.Sub(last))
				}
				last = at
			}
			for at, n := range rounds {
				if n > webhookRound {
					t.Errorf("%d requests at %s", n, at.Sub(t0))
				}
			}
			if len(rounds) != pauses {
				t.Errorf("%d rounds in %d pauses", len(rounds), pauses)
			}
		})
	}
}

// A message that has a pace of its own keeps that of others, which wait while the webhook takes a
// few at a time, short.
func TestLongPaceBesideShort(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var mu sync.Mutex
	var taken int64
	var s *site
	s = newSite(t, p, func(w http.ResponseWriter, _ *http.Request, n int) {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(s.all()[n-1].message.Data.Rule, "bad") {
			paceOf(w, 503, "600")
			return
		}
		if now := p.clock().Unix(); taken != now {
			taken = now
			return
		}
		paceOf(w, 429, "1")
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.bad(1)
	for i := range 8 { // until its pace is its own
		p.tell(alert.TypeFiring, p.ofOneRule(fmt.Sprintf("one%d", i), 1)...)
		p.run()
		p.advance(600 * time.Second)
		p.run()
	}
	if d := p.deliveries(r, Pending); len(d) != 1 || !d[0].apart() {
		t.Fatalf("there wait %+v", d)
	}
	const many = 60
	p.tell(alert.TypeFiring, p.ofOneRule("a", many)...)
	for range many * 6 / 5 {
		p.run()
		p.advance(time.Second)
	}
	if d := p.deliveries(r, Pending); len(d) != 1 {
		t.Errorf("%d wait still", len(d))
	}
}

// TestBehindAPaceOfItsOwn: what follows in its alert on a message that has a pace of its own does
// not wait while those have a pause.
func TestBehindAPaceOfItsOwn(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var s *site
	s = newSite(t, p, func(w http.ResponseWriter, _ *http.Request, n int) {
		if is := s.all()[n-1].message; is.Data.Rule == "bad" && is.Type == alert.TypeFiring {
			paceOf(w, 503, "600")
		}
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	bad := p.alert("bad")
	p.tell(alert.TypeFiring, bad)
	p.run()
	for i := range 8 {
		p.advance(300 * time.Second)
		p.tell(alert.TypeFiring, p.alert(fmt.Sprintf("good%d", i)))
		p.run()
		p.advance(300 * time.Second)
		p.run()
	}
	if d := p.deliveries(r, Pending); len(d) != 1 || !d[0].apart() {
		t.Fatalf("there wait %+v", d)
	}
	l, due := p.laneOf(r)
	p.advance(601 * time.Second)
	l.Apart = p.clock().Add(300 * time.Second) // another such asked for it
	if err := p.db.Commit(t.Context(), ledger.Write{Expect: ledger.AnyVersion, WasDue: due, Item: ledger.Item{Key: record.LaneKey(r.ID), Data: record.Encode(l), Due: due}}); err != nil {
		t.Fatal(err)
	}
	before := len(s.all())
	p.tell(alert.TypeResolved, bad)
	if p.run(); len(p.deliveries(r, Superseded)) != 1 || len(s.all()) != before+1 {
		t.Errorf("%d requests, %d wait", len(s.all())-before, len(p.deliveries(r, Pending)))
	}
}
