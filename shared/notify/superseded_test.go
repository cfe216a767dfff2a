package notify

import (
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// What a webhook took last of an alert is what is so: what it did not take before is not sent
// after that, by whoever has the lane then.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var s *site
	var back atomic.Bool
	s = newSite(t, p, func(w http.ResponseWriter, _ *http.Request, n int) {
		if !back.Load() && s.all()[n-1].message.Type != alert.TypeResolved {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	a, other := p.alert("a"), p.alert("b")
	for _, typ := range []string{alert.TypeFiring, alert.TypeFlapping, alert.TypeResolved} {
		p.tell(typ, a)
		if typ != alert.TypeResolved {
			p.tell(typ, other)
		}
		p.run()
		p.advance(time.Second)
		p.run()
	}
	for n := 0; len(p.deliveries(r, Delivered)) == 0 && n < 100; n++ {
		p.advance(time.Second)
		p.serve()
	}
	back.Store(true)
	for range 20 {
		p.advance(time.Minute)
		p.serve()
	}
	var took []string
	for _, g := range s.all() {
		if g.message.Data.ID == a.ID {
			took = append(took, g.message.Type)
		}
	}
	if last := took[len(took)-1]; last != alert.TypeResolved || slices.Index(took, last) != len(took)-1 {
		t.Errorf("it was told %v", took)
	}
	n := map[State]int{}
	for _, d := range p.deliveries(r, "") {
		n[d.State]++
		if later := d.Rule == "a" && d.Type == alert.TypeResolved || d.Rule == "b" && d.Type == alert.TypeFlapping; later != (d.State == Delivered) || d.DoneAt.IsZero() || !d.Next.IsZero() {
			t.Errorf("%s of %s is %s after %d tries", d.Type, d.Rule, d.State, d.Tries)
		}
	}
	if !maps.Equal(n, map[State]int{Delivered: 2, Superseded: 3}) {
		t.Errorf("there are %v", n)
	}
	if is := p.Metrics.Read(); is.Given > 0 || is.Superseded != 3 {
		t.Errorf("counted %+v", is)
	}
}

// What comes before a message that was given up is superseded as well.
func TestSupersededBeforeWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var s *site
	var back atomic.Bool
	s = newSite(t, p, func(w http.ResponseWriter, _ *http.Request, n int) {
		switch typ := s.all()[n-1].message.Type; {
		case typ == alert.TypeFlapping:
			w.WriteHeader(http.StatusGone)
		case typ == alert.TypeFiring && !back.Load():
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	a := p.alert("a")
	p.tell(alert.TypeFiring, a)
	p.run()
	p.tell(alert.TypeFlapping, a)
	for n := 0; len(p.deliveries(r, Failed)) == 0 && n < 20; n++ {
		p.run()
		p.advance(time.Second)
	}
	if _, err := p.Update(t.Context(), call, r.ID, 0, r.Spec); err != nil {
		t.Fatal(err)
	}
	p.tell(alert.TypeResolved, a)
	for n := 0; len(p.deliveries(r, Delivered)) == 0 && n < 20; n++ {
		p.run()
		p.advance(time.Second)
	}
	back.Store(true)
	for range 10 {
		p.advance(time.Minute)
		p.serve()
	}
	if all := s.all(); all[len(all)-1].message.Type != alert.TypeResolved {
		t.Errorf("it was told %s last", all[len(all)-1].message.Type)
	}
	if n := len(p.deliveries(r, Superseded)); n != 1 {
		t.Errorf("%d are superseded", n)
	}
}
