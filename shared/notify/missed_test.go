package notify

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// said are the alerts that a site was told of, in order: what fires, and, with a minus, what
// is over.
func (s *site) said(t *testing.T, at time.Time) (out []string) {
	t.Helper()
	for _, g := range s.all() {
		var list []push
		if err := json.Unmarshal(g.body, &list); err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			name := a.Labels["alertname"]
			if !a.EndsAt.After(at) {
				name = "-" + name
			}
			out = append(out, name)
		}
	}
	return out
}

// What an Alertmanager missed that failed once, or was held, it is told when its hold is
// over, while another has not answered: what fires as what ends, and nothing that fires
// after its end.
func TestFailsBesideASlowOne(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.patience = time.Millisecond
	x, up := newFake(t, p), newFake(t, p)
	slow, opens := newGate(t, p, 200)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{slow.URL, x.URL, up.URL}, Timeout: alert.Duration(MaxTimeout)})
	follow := func(typ string, a *alert.Alert) {
		t.Helper()
		p.tell(typ, a)
		if err := p.Follow(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	fires := func(f *fake, what ...string) func() bool {
		return func() bool { return slices.Equal(f.firing(p.clock()), what) }
	}
	fails := func(after int) { // it has once more, and is held
		t.Helper()
		eventually(t, "it fails, and is held", func() bool {
			l, _ := p.laneOf(r)
			return len(x.all()) == after+1 && l.Holds[x.URL].Until.After(p.clock())
		})
	}
	hot, later := p.alert("hot"), p.alert("later")
	x.breaks(true)
	follow(alert.TypeFiring, hot)
	done := p.delivering(r)
	fails(0)
	follow(alert.TypeFiring, later)
	eventually(t, "the one that is up knows both", fires(up, "hot", "later"))
	x.breaks(false)
	p.advance(3 * time.Second)
	eventually(t, "the one that failed knows both", fires(x, "hot", "later"))

	x.breaks(true)
	n := len(x.all())
	follow(alert.TypeResolved, hot)
	fails(n)
	x.breaks(false)
	p.advance(3 * time.Second)
	eventually(t, "the one that failed knows the end", fires(x, "later"))
	if n := len(slow.all()); n != 1 {
		t.Errorf("the slow one was asked %d times before it answered", n)
	}
	p.advance(time.Second)
	got := x.said(t, p.clock())
	if slices.Sort(got[1:min(3, len(got))]); !slices.Equal(got, []string{"hot", "hot", "later", "-hot", "-hot"}) {
		t.Errorf("the one that failed was told %q", got)
	}
	opens()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if d, a := p.deliveries(r, Delivered), p.deliveries(r, Active); len(d) != 1 || d[0].Tries != 1 || len(a) != 1 || a[0].Tries != 1 {
		t.Errorf("over %+v, active %+v", d, a)
	}
}

// One that fails for long beside one that does not answer does not keep an end from being
// given up.
func TestGivenUpBesideASlowOne(t *testing.T) {
	t.Parallel()
	p := setup(t)
	x, slow := newFake(t, p), newFake(t, p)
	r, _ := p.receiver(Spec{Name: "ha", Kind: KindAlertmanager, URLs: []string{slow.URL, x.URL}, Timeout: alert.Duration(MaxTimeout)})
	a := p.alert("hot")
	p.tell(alert.TypeFiring, a)
	p.run()
	x.breaks(true)
	gated, gate := newSlowFake(t, p)
	p.patience = time.Millisecond
	p.change(&r, func(sp *Spec) { sp.URLs = []string{gated.URL, x.URL} })
	p.tell(alert.TypeResolved, a)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "it is asked, and fails", func() bool {
		l, _ := p.laneOf(r)
		return len(gated.all()) == 1 && l.Holds[x.URL].Fails == 1
	})
	p.advance(resolvedFor + time.Second)
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if d := p.deliveries(r, Failed); len(d) != 1 || d[0].LastError != "/urls/1: answered 500" {
		t.Errorf("%+v", p.deliveries(r, ""))
	}
}
