package notify

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// newPicky is a site that answers messages of rules that begin with bad as it is told.
func newPicky(t testing.TB, p *plane, bad func(w http.ResponseWriter, r *http.Request)) *site {
	t.Helper()
	var s *site
	s = newSite(t, p, func(w http.ResponseWriter, r *http.Request, n int) {
		if g := s.all()[n-1]; strings.HasPrefix(g.message.Data.Rule, "bad") {
			bad(w, r)
		}
	})
	return s
}

// bad tells of alerts that a picky site does not take.
func (p *plane) bad(n int) {
	p.t.Helper()
	var alerts []*alert.Alert
	for i := range n {
		alerts = append(alerts, p.alert(fmt.Sprintf("bad%03d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
}

// took tells whether a receiver took the message of a rule.
func (p *plane) took(r Receiver, rule string) bool {
	p.t.Helper()
	for _, d := range p.deliveries(r, Delivered) {
		if d.Rule == rule {
			return true
		}
	}
	return false
}

// TestRefusedMessages: a webhook that refuses messages, however many, is told others at
// once, and each refused one is tried by its own pauses, as long as it takes some. One that
// answers that it is not there, or not for the plane, is left alone for a while.
func TestRefusedMessages(t *testing.T) {
	t.Parallel()
	for status, is := range map[int]bool{400: true, 409: true, 413: true, 422: true, 431: true,
		401: false, 403: false, 404: false, 405: false, 407: false, 408: false, 425: false, 429: false, 300: false, 500: false, 503: false} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			s := newPicky(t, p, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			p.bad(webhookRound + perHost)
			p.run()
			p.tell(alert.TypeFiring, p.alert("good"))
			p.run()
			held, err := p.Holds(t.Context(), r)
			if err != nil || (len(held[r.ID]) == 0) != is || p.took(r, "good") != is {
				t.Errorf("the good one was taken: %v; held %+v, %v", p.took(r, "good"), held, err)
			}
			if !is {
				if n := len(s.all()); n > webhookRound {
					t.Errorf("%d requests to one that fails", n)
				}
				return
			}
			const others = 20
			for i := range others {
				for range 2 {
					p.advance(10 * time.Second)
					p.serve()
				}
				p.advance(10 * time.Second)
				rule := fmt.Sprintf("good%d", i)
				p.tell(alert.TypeFiring, p.alert(rule))
				if p.run(); !p.took(r, rule) {
					t.Errorf("%s is not taken", rule)
				}
			}
			if n := len(s.all()); n != 5*(webhookRound+perHost)+1+others {
				t.Errorf("%d requests in ten minutes", n)
			}
		})
	}
}

// TestAllAreRefused: a webhook that refuses message after message, and takes none, is given
// pauses, which are shown, as one that fails, and ends them when it takes one.
func TestAllAreRefused(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newPicky(t, p, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	held := func() []Held {
		t.Helper()
		all, err := p.Holds(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return all[r.ID]
	}
	p.bad(300)
	p.run()
	if n := len(s.all()); n != refusedMost {
		t.Errorf("%d requests at once", n)
	}
	if h := held(); len(h) != 1 || h[0].Fails != 1 || h[0].Error != "answered 400" || h[0].Until == nil {
		t.Errorf("held: %+v", h)
	}
	n, minutes := len(s.all()), 10
	for range 6 * minutes {
		p.advance(10 * time.Second)
		p.serve()
	}
	if n = len(s.all()) - n; n > (minutes+7)*probeRound { // the first pauses are shorter
		t.Errorf("%d requests in ten minutes", n)
	}
	p.tell(alert.TypeFiring, p.alert("good"))
	p.run()
	p.advance(maxFailHold)
	p.run()
	if !p.took(r, "good") {
		t.Errorf("the new one is not taken in a pause: %+v", held())
	}
	if h := held(); len(h) != 1 || h[0].Fails != 1 { // it refused as many since
		t.Errorf("held since one was taken: %+v", h)
	}
}

// TestNewestIsTried: what is new is among what a webhook is tried with that takes nothing of
// what is older.
func TestNewestIsTried(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newPicky(t, p, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.bad(100)
	p.run()
	for i := range 20 {
		rule := fmt.Sprintf("good%d", i)
		p.tell(alert.TypeFiring, p.alert(rule))
		p.run()
		before := len(s.all())
		p.advance(3 * time.Second) // behind the first pause, and the good one ends the later
		p.run()
		if !p.took(r, rule) {
			t.Fatalf("%s is not taken, of %d requests: %+v", rule, len(s.all())-before, p.deliveries(r, Pending)[0])
		}
	}
	for range 20 {
		p.advance(time.Hour)
		p.serve()
	}
	for _, d := range p.deliveries(r, Pending) {
		if d.Tries < 2 {
			t.Errorf("%s was tried %d times in a day", d.Rule, d.Tries)
		}
	}
}

// TestHangingMessages: a webhook that hangs on as many messages as go out until it is given a
// pause is told what is new by then first.
func TestHangingMessages(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newPicky(t, p, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MinTimeout)})
	p.bad(2 * webhookRound)
	p.run()
	if n := len(s.all()); n > webhookRound {
		t.Errorf("%d requests to one that hangs", n)
	}
	took := false
	for i := 0; i < 5 && !took; i++ { // one may take longer than the timeout on a busy machine, and is not new then
		good := fmt.Sprintf("good%d", i)
		p.tell(alert.TypeFiring, p.alert(good))
		p.advance(10 * time.Second)
		p.run()
		took = p.took(r, good)
	}
	if !took {
		t.Errorf("no good one is taken: %+v", p.deliveries(r, Pending)[0])
	}
}

// TestNewestOvertakesNoneOfItsAlert: what is told of an alert to a webhook that is back, and
// was not tried before, comes in order.
func TestNewestOvertakesNoneOfItsAlert(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var back atomic.Bool
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if !back.Load() {
			w.WriteHeader(500)
		}
	})
	p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	var alerts []*alert.Alert
	for i := range 60 {
		alerts = append(alerts, p.alert(fmt.Sprintf("rule%d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	p.run()
	tried := map[string]bool{}
	for _, g := range s.all() {
		tried[g.message.Data.ID] = true
	}
	p.advance(time.Second)
	p.tell(alert.TypeFlapping, alerts...)
	p.tell(alert.TypeResolved, alerts...)
	p.tell(alert.TypeFiring, p.alert("last"))
	p.advance(5 * time.Second)
	back.Store(true)
	n := len(s.all())
	p.run()
	all := s.all()[n:]
	came := map[string][]string{}
	for _, g := range all {
		came[g.message.Data.ID] = append(came[g.message.Data.ID], g.message.Type)
	}
	for _, a := range alerts {
		if want := []string{alert.TypeFiring, alert.TypeFlapping, alert.TypeResolved}; !tried[a.ID] && !slices.Equal(came[a.ID], want) {
			t.Errorf("of %s came %v", a.Rule, came[a.ID])
		}
	}
	if at := slices.IndexFunc(all, func(g got) bool { return g.message.Data.Rule == "last" }); at < 0 || at >= probeRound {
		t.Errorf("what is new came as number %d", at)
	}
}

// TestRefusedBurst: a webhook that refuses many more messages than it may, but for what it
// takes meanwhile, is told at once what it would take: ends of what it was told of, and what
// began and ended since.
func TestRefusedBurst(t *testing.T) {
	t.Parallel()
	for _, bad := range []int{refusedMost + 12, 300} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			t.Parallel()
			setup(t).refusedBurst(bad)
		})
	}
}

func (p *plane) refusedBurst(bad int) {
	t := p.t
	s := newPicky(t, p, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(422) })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	var known, short []*alert.Alert
	for i := range 3 * webhookRound {
		known = append(known, p.alert(fmt.Sprintf("known%d", i)))
		short = append(short, p.alert(fmt.Sprintf("short%d", i)))
	}
	p.tell(alert.TypeFiring, known...)
	p.run()
	p.advance(time.Minute)
	p.bad(bad)
	p.tell(alert.TypeResolved, known...)
	p.tell(alert.TypeFiring, short...)
	p.tell(alert.TypeResolved, short...)
	p.run()
	came := map[string][]string{}
	for _, d := range p.deliveries(r, Delivered) {
		came[d.Rule] = append(came[d.Rule], d.Type)
	}
	for _, a := range append(known, short...) {
		if got := came[a.Rule]; len(got) != 2 {
			t.Errorf("of %s came %v", a.Rule, got)
		}
	}
	order := map[string]int64{}
	for _, g := range s.all() {
		is := g.message.Data
		if is.Sequence < order[is.ID] {
			t.Errorf("of %s number %d came after %d", is.Rule, is.Sequence, order[is.ID])
		}
		order[is.ID] = is.Sequence
	}
}

// TestTakesOneASecond: a webhook that takes one message a second is given little more than
// it takes, and takes so many.
func TestTakesOneASecond(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var taken atomic.Int64 // the second in which it took one last
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if now := p.clock().Unix(); taken.Swap(now) == now {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.bad(300)
	const seconds = 60
	for range seconds {
		p.run()
		p.advance(time.Second)
	}
	if n := len(p.deliveries(r, Delivered)); n < seconds*9/10 {
		t.Errorf("%d are taken in %d s", n, seconds)
	}
	if n := len(s.all()); n > webhookRound+seconds*probeRound {
		t.Errorf("%d requests in %d s", n, seconds)
	}
}

// Nothing of a webhook that takes what it is told counts as unreadable.
func TestNothingIsUnreadable(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	a := p.alert("hot")
	for _, typ := range []string{alert.TypeFiring, alert.TypeFlapping, alert.TypeResolved} {
		p.tell(typ, a)
		p.run()
	}
	if n := p.Metrics.Read().Unread; n != 0 || len(p.deliveries(r, Delivered)) != 3 {
		t.Errorf("%d could not be read, %d were taken", n, len(p.deliveries(r, Delivered)))
	}
}

// TestPacedAfterNew: what a webhook answers with its pace, whatever else it takes, goes after
// what it was never sent, however old that is, and still has its turn beside that.
func TestPacedAfterNew(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newPicky(t, p, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	good := p.ofOneRule("good", 40)
	p.tell(alert.TypeFiring, good[:20]...)
	p.bad(8)
	p.tell(alert.TypeFiring, good[20:]...)
	for n := 0; len(p.deliveries(r, Delivered)) < len(good) && n < 100; n++ {
		p.run()
		p.advance(time.Second)
	}
	bad := 0
	for _, g := range s.all() {
		if strings.HasPrefix(g.message.Data.Rule, "bad") {
			bad++
		}
	}
	if n := len(p.deliveries(r, Delivered)); n < len(good) || bad < 9 || bad > 8+len(good)/2 {
		t.Errorf("%d of %d are taken, after %d tries of others", n, len(good), bad)
	}
}
