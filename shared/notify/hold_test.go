package notify

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// An Alertmanager that fails, or asks for a pause, keeps no other of its cluster waiting:
// those know what fires at every time, and what is over at once.
func TestOneAlertmanagerIsAway(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter){
		"it fails":            func(w http.ResponseWriter) { w.WriteHeader(500) },
		"it asks for a pause": func(w http.ResponseWriter) { w.Header().Set("Retry-After", "600"); w.WriteHeader(503) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			p.pushMost = 20
			up := newFake(t, p)
			away := true
			down := newFake(t, p)
			take := down.answer
			down.answer = func(w http.ResponseWriter, r *http.Request, n int) {
				if away {
					answer(w)
					return
				}
				take(w, r, n)
			}
			p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{down.URL, up.URL}})
			var alerts []*alert.Alert
			var all []string
			for i := range p.pushMost + 6 { // more than one round
				alerts = append(alerts, p.alert(fmt.Sprintf("hot%03d", i)))
				all = append(all, alerts[i].Rule)
			}
			p.tell(alert.TypeFiring, alerts...)
			for i := range 30 { // five minutes: by then it would have forgotten
				switch i {
				case 10:
					late := p.alert("late")
					p.tell(alert.TypeFiring, late)
					all = append(all, late.Rule)
				case 20:
					p.tell(alert.TypeResolved, alerts[0])
					all = all[1:]
				}
				p.run()
				if d := cmp.Diff(all, up.firing(p.clock())); d != "" {
					t.Fatalf("after %d s the one that is up knows (-want +got):\n%s", i*10, d)
				}
				p.advance(10 * time.Second)
			}
			if n := len(down.all()); n > 40 {
				t.Errorf("the one that is away was asked %d times", n)
			}
			away = false
			for range 12 {
				p.advance(time.Minute)
				p.run()
			}
			if d := cmp.Diff(all, down.firing(p.clock())); d != "" {
				t.Errorf("the one that is back knows (-want +got):\n%s", d)
			}
		})
	}
}

// A pause that somebody asked for, and one for what failed, end with a change of the
// receiver: it may lead elsewhere. What waits is sent then.
func TestPauseEndsWithAChange(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{KindWebhook, KindAlertmanager} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			bad, good := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Retry-After", "3600")
				w.WriteHeader(503)
			}), newSite(t, p, nil)
			leads := func(sp *Spec, to string) {
				if kind == KindWebhook {
					sp.URL = to
				} else {
					sp.URLs = []string{to}
				}
			}
			sp := Spec{Name: "r", Kind: kind}
			leads(&sp, bad.URL)
			r, _ := p.receiver(sp)
			p.tell(alert.TypeFiring, p.alert("before"))
			p.run()
			p.advance(10 * time.Second)
			p.tell(alert.TypeFiring, p.alert("meanwhile"))
			p.run()
			if len(bad.all()) != 1 || len(p.deliveries(r, Pending)) != 2 {
				t.Fatalf("%d requests, %+v", len(bad.all()), p.deliveries(r, Pending))
			}
			p.change(&r, func(sp *Spec) { leads(sp, good.URL) })
			p.run()
			taken := slices.Concat(p.deliveries(r, Delivered), p.deliveries(r, Active))
			if len(taken) != 2 || len(bad.all()) != 1 {
				t.Errorf("taken %+v, pending %+v", taken, p.deliveries(r, Pending))
			}
		})
	}
}

// What a stream's clock that was ahead says of an alert's beginning and end is no later
// than now at an Alertmanager: till then it would fire there.
func TestStreamAheadAtAnAlertmanager(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	p.advance(30 * time.Minute)
	a := p.alert("hot")
	p.tell(alert.TypeFiring, a)
	p.advance(-30 * time.Minute)
	p.run()
	if got := am.firing(p.clock()); !slices.Equal(got, []string{"hot"}) {
		t.Errorf("fire: %v", got)
	}
	p.advance(30 * time.Minute)
	p.tell(alert.TypeResolved, a)
	p.advance(-30*time.Minute + time.Second)
	p.run()
	if got := am.firing(p.clock()); len(got) != 0 {
		t.Errorf("fire when it is over: %v", got)
	}
	for _, k := range am.alerts {
		if k.StartsAt.After(p.clock()) {
			t.Errorf("it begins at %s, now is %s", k.StartsAt, p.clock())
		}
	}
}

// TestHeldWhileTried: what is said of an endpoint that fails has no time that is over.
func TestHeldWhileTried(t *testing.T) {
	t.Parallel()
	p := setup(t)
	again := make(chan struct{})
	s := newSite(t, p, func(w http.ResponseWriter, r *http.Request, n int) {
		if n > 1 {
			select {
			case <-again:
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(500)
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MaxTimeout)})
	held := func(when string, fails int, is bool) {
		t.Helper()
		all, err := p.Holds(t.Context(), r)
		if err != nil || len(all[r.ID]) != 1 {
			t.Fatalf("%s: %+v, %v", when, all, err)
		}
		if h := all[r.ID][0]; h.Fails != fails || (h.Until != nil) != is || is && !h.Until.After(p.clock()) {
			t.Errorf("%s: %+v, until %v", when, h, h.Until)
		}
	}
	p.tell(alert.TypeFiring, p.alert("hot"))
	p.run()
	held("it failed", 1, true)
	p.advance(6 * time.Second)
	held("it is due again", 1, false)
	done := p.delivering(r)
	eventually(t, "it is asked again", func() bool { return len(s.all()) == 2 })
	held("it is asked again", 1, false)
	close(again)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	held("it failed again", 2, true)
}

// TestSetBackWhileItHangs: a pause does not outlast its clock either while the webhook hangs on
// another message.
func TestSetBackWhileItHangs(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = 20 * time.Millisecond
	var s *site
	opens, fails := make(chan struct{}), atomic.Bool{}
	s = newSite(t, p, func(w http.ResponseWriter, r *http.Request, n int) {
		switch {
		case s.all()[n-1].message.Data.Rule == "hangs":
			select {
			case <-opens:
			case <-r.Context().Done():
			}
		case fails.Load():
			w.WriteHeader(500)
		}
	})
	fails.Store(true)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MaxTimeout)})
	p.tell(alert.TypeFiring, p.alert("hangs"), p.alert("fails"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "it is held", func() bool {
		l, _ := p.laneOf(r)
		return l.Holds[s.URL].Fails == 1
	})
	p.advance(-time.Hour)
	fails.Store(false)
	eventually(t, "what failed is taken", func() bool { return p.took(r, "fails") })
	close(opens)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestTakenWhileHeld: a webhook that takes, while it is held, what it was sent before is held no
// longer.
func TestTakenWhileHeld(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = 20 * time.Millisecond
	var s *site
	opens, fails := make(chan struct{}), atomic.Bool{}
	s = newSite(t, p, func(w http.ResponseWriter, r *http.Request, n int) {
		switch {
		case s.all()[n-1].message.Data.Rule == "slow":
			select {
			case <-opens:
			case <-r.Context().Done():
			}
		case fails.Load():
			w.WriteHeader(500)
		}
	})
	fails.Store(true)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MaxTimeout)})
	p.tell(alert.TypeFiring, p.alert("slow"), p.alert("fails"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "it is held", func() bool {
		l, _ := p.laneOf(r)
		return l.Holds[s.URL].Fails == 1
	})
	close(opens)
	fails.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.tell(alert.TypeFiring, p.alert("new"))
	p.run()
	if l, _ := p.laneOf(r); len(l.Holds) != 0 || !p.took(r, "new") {
		t.Errorf("held %+v, pending %+v", l.Holds, p.deliveries(r, Pending))
	}
}

// A pause that an Alertmanager asks for is cut short, however long it is: what fires there does
// not end by itself.
func TestAskedPauseEndsNothing(t *testing.T) {
	t.Parallel()
	p := setup(t)
	asks := 0
	am := newFake(t, p)
	take := am.answer
	am.answer = func(w http.ResponseWriter, r *http.Request, n int) {
		if asks > 0 {
			asks--
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(503)
			return
		}
		take(w, r, n)
	}
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	p.begins("hot", 20)
	p.run()
	asks = 1
	p.begins("late", 1)
	for i := range 60 {
		if p.run(); i >= 10 && len(am.firing(p.clock())) != 21 {
			t.Fatalf("after %d s %d fire there", i*10, len(am.firing(p.clock())))
		}
		p.advance(10 * time.Second)
	}
}
