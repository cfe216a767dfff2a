package notify

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// The plane's silences hold before an Alertmanager: what is silenced ends there, is
// not pushed meanwhile, and fires there again when the silence is over.
func TestAlertmanagerAndSilences(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	a, b := p.alert("hot"), p.alert("cold")
	p.tell(alert.TypeFiring, a, b)
	p.run()
	is := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(append([]string{}, want...), am.firing(p.clock())); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	is("they fire", "cold", "hot")
	p.advance(30 * time.Second)
	a.SilencedBy = "sil_1"
	p.tell(alert.TypeSilenced, a)
	p.run()
	is("one is silenced", "cold")
	n := len(am.all())
	for range 5 {
		p.advance(30 * time.Second)
		p.run()
		is("silenced", "cold")
	}
	if n = len(am.all()) - n; n > 4 {
		t.Errorf("%d pushes in two minutes and a half: the silenced one's are among them", n)
	}
	// What was silenced while the event of it was missed ends with the next push.
	b.SilencedBy = "sil_2"
	p.keep(b)
	p.advance(2 * time.Minute)
	p.run()
	is("silenced without a word")
	a.SilencedBy = ""
	p.tell(alert.TypeUnsilenced, a)
	p.tell(alert.TypeFiring, a)
	p.run()
	is("the silence is over", "hot")
	p.tell(alert.TypeResolved, a, b)
	p.run()
	is("they are over")
}

// An alert that goes on under other labels is another one to an Alertmanager: the
// one before ends. So does one that the receiver does not choose any more.
func TestAlertmanagerAndOtherLabels(t *testing.T) {
	t.Parallel()
	p := setup(t)
	all, errs := newFake(t, p), newFake(t, p)
	p.receiver(Spec{Name: "all", Kind: KindAlertmanager, URLs: []string{all.URL}})
	p.receiver(Spec{Name: "errs", Kind: KindAlertmanager, URLs: []string{errs.URL}, Matchers: []alert.Match{{Field: "severity", Op: "=", Value: "error"}}})
	critical := newSite(t, p, nil)
	p.receiver(Spec{Name: "critical", Kind: KindWebhook, URL: critical.URL, Matchers: []alert.Match{{Field: "severity", Op: "=", Value: "critical"}}})
	a := p.alert("hot")
	p.tell(alert.TypeFiring, a)
	p.run()
	p.advance(10 * time.Second)
	a.Severity, a.Labels, a.Reason = "critical", map[string]string{"team": "pager"}, alert.ReasonChanged
	p.tell(alert.TypeFiring, a)
	p.run()
	if got := all.severities(p.clock()); !cmp.Equal(got, []string{"critical"}) {
		t.Errorf("fire after the change: %v", got)
	}
	if got := errs.firing(p.clock()); len(got) != 0 {
		t.Errorf("fires where it is not chosen: %v", got)
	}
	if n := len(critical.all()); n != 1 {
		t.Errorf("a webhook for what is critical heard %d times", n)
	}
	p.advance(10 * time.Minute)
	p.run()
	if got := all.severities(p.clock()); !cmp.Equal(got, []string{"critical"}) {
		t.Errorf("fire later: %v", got)
	}
	p.tell(alert.TypeResolved, a)
	p.run()
	if got := all.severities(p.clock()); len(got) != 0 {
		t.Errorf("fire after it is over: %v", got)
	}
}

// An alert that a receiver's changed matchers choose no more ends at its Alertmanager at
// once, and fires there when they choose it again.
func TestAlertmanagerAndChangedMatchers(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	a := p.alert("hot")
	p.tell(alert.TypeFiring, a, p.alert("cold"))
	p.run()
	change := func(ms ...alert.Match) {
		t.Helper()
		p.change(&r, func(sp *Spec) { sp.Matchers = ms })
		p.advance(time.Second)
		p.run()
	}
	change(alert.Match{Field: "rule", Op: "=", Value: "cold"})
	if got := am.firing(p.clock()); !cmp.Equal(got, []string{"cold"}) {
		t.Errorf("chosen by name: %v", got)
	}
	p.tell(alert.TypeFiring, a)
	change()
	if got := am.firing(p.clock()); !cmp.Equal(got, []string{"cold", "hot"}) {
		t.Errorf("all are chosen: %v", got)
	}
	p.tell(alert.TypeResolved, a)
	p.run()
	if got := am.firing(p.clock()); !cmp.Equal(got, []string{"cold"}) {
		t.Errorf("one is over: %v", got)
	}
}

// severities are those of the alerts that have not ended at the time.
func (f *fake) severities(at time.Time) (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.alerts {
		if a.EndsAt.After(at) {
			out = append(out, a.Labels["severity"])
		}
	}
	return out
}

// One event that changes an alert's labels at more Alertmanagers than a commit takes, all of
// which have yet to be told of those before, is told in commits of fewer.
func TestManyAlertmanagers(t *testing.T) {
	t.Parallel()
	const many = 24 // more than a commit
	p := setup(t)
	am := newFake(t, p)
	am.breaks(true)
	for i := range many {
		p.receiver(Spec{Name: fmt.Sprint("am", i), Kind: KindAlertmanager, URLs: []string{am.URL}, Labels: map[string]string{"receiver": fmt.Sprint(i)}})
	}
	a := p.alert("hot")
	p.tell(alert.TypeFiring, a)
	p.run()
	for _, severity := range []string{"critical", "error", "critical"} {
		p.advance(time.Millisecond)
		a.Severity = severity
		p.tell(alert.TypeFiring, a)
		if err := p.Follow(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	am.breaks(false)
	p.advance(10 * time.Second)
	p.serve()
	if got := am.severities(p.clock()); len(got) != many || slices.Contains(got, "error") {
		t.Errorf("fire: %v", got)
	}
	p.tell(alert.TypeResolved, a)
	p.run()
	if got := am.firing(p.clock()); len(got) != 0 {
		t.Errorf("fire when it is over: %v", got)
	}
}
