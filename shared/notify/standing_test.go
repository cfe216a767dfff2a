package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// change changes what is said of a receiver.
func (p *plane) change(r *Receiver, f func(*Spec)) {
	p.t.Helper()
	sp := r.Spec
	f(&sp)
	got, err := p.Update(context.Background(), call, r.ID, 0, sp)
	if err != nil {
		p.t.Fatal(err)
	}
	*r = got
}

func (p *plane) enable(r *Receiver, on bool) { p.change(r, func(sp *Spec) { sp.Enabled = &on }) }

// What ended while a receiver was disabled, however shortly, ends at its Alertmanager as
// soon as it is enabled; what fires is told then, and as ever.
func TestAlertmanagerEnabledAgain(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	var alerts []*alert.Alert
	for i := range pushRound + 6 { // more than one round
		alerts = append(alerts, p.alert(fmt.Sprint("hot", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	p.run()
	p.advance(time.Second)
	p.enable(&r, false)
	p.run()
	p.tell(alert.TypeResolved, alerts[2:]...)
	p.run()
	pushes := len(am.all())
	p.advance(time.Second)
	p.enable(&r, true)
	p.run()
	if got := am.firing(p.clock()); !cmp.Equal(got, []string{"hot0", "hot1"}) {
		t.Errorf("fire when it is enabled: %v", got)
	}
	if n := len(am.all()) - pushes; n != 2 {
		t.Errorf("%d pushes when it is enabled", n)
	}
	p.advance(10 * time.Second)
	p.run()
	if n := len(am.all()) - pushes; n != 2 {
		t.Errorf("%d pushes since it is enabled", n)
	}
}

// An Alertmanager knows what fires as soon as its receiver is made, enabled or changed:
// all of it, and nothing else, by what is said of the receiver now.
func TestAlertmanagerIsToldWhatFires(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	var all []string
	var alerts []*alert.Alert
	for i := range 2*standingPage + 7 {
		alerts = append(alerts, p.alert(fmt.Sprintf("hot%03d", i)))
		all = append(all, alerts[i].Rule)
	}
	p.tell(alert.TypeFiring, alerts...)
	pending, muted := p.alert("pending"), p.alert("muted")
	pending.State, pending.FiredAt = alert.Pending, nil
	p.keep(pending)
	muted.SilencedBy = "sil_1"
	p.tell(alert.TypeFiring, muted)
	p.run()
	p.advance(time.Hour)
	is := func(when string, want ...string) {
		t.Helper()
		p.advance(time.Second)
		p.run()
		if diff := cmp.Diff(append([]string{}, want...), am.firing(p.clock())); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", when, diff)
		}
	}
	webhook := newSite(t, p, nil)
	p.receiver(Spec{Name: "webhook", Kind: KindWebhook, URL: webhook.URL})
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	is("made", all...)
	if n := len(webhook.all()); n != 0 {
		t.Errorf("a webhook, which has events, was sent %d of before", n)
	}
	p.change(&r, func(sp *Spec) { sp.Matchers = []alert.Match{{Field: "rule", Op: "=~", Value: "hot00[0-3]"}} })
	p.advance(2 * time.Minute) // what is chosen no more ends with its next push
	is("narrowed", all[:4]...)
	p.change(&r, func(sp *Spec) { sp.Matchers = sp.Matchers[:0] })
	is("widened", all...)

	p.enable(&r, false)
	is("disabled", all...)
	p.tell(alert.TypeResolved, alerts[1:]...)
	again := p.alert("hot002") // the same labels, of which nobody was told
	again.ID = "alr_again"
	p.tell(alert.TypeFiring, again)
	is("changed while it is disabled", all...)
	p.advance(time.Hour) // nobody told it for so long: it has forgotten
	is("disabled for long")
	p.enable(&r, true)
	is("enabled", all[0], all[2])

	p.change(&r, func(sp *Spec) { sp.Labels = map[string]string{"plane": "eu"} })
	is("labels", all[0], all[2])
	for _, a := range am.alerts {
		if a.EndsAt.After(p.clock()) && a.Labels["plane"] != "eu" {
			t.Errorf("fires under the labels of before: %v", a.Labels)
		}
	}
	p.tell(alert.TypeResolved, again)
	is("one is over", all[0])
	p.tell(alert.TypeResolved, alerts[0])
	is("all are over")
}

// Whoever dies while an Alertmanager is told what fires, and however often, another tells
// all of it.
func TestCrashWhileToldWhatFires(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	var all []string
	for i := range standingPage + 20 {
		a := p.alert(fmt.Sprintf("hot%03d", i))
		all = append(all, a.Rule)
		p.tell(alert.TypeFiring, a)
	}
	p.run()
	p.advance(time.Hour)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	deaths := 0
	for n := 1; ; n += 3 { // each gets three commits further than the one before
		s := p.another(&crashing{Ledger: p.db, at: n, applied: n%2 == 0})
		s.roots = p.roots
		err := s.Deliver(t.Context(), record.LaneKey(r.ID))
		if err == nil {
			break
		}
		if deaths++; !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		p.advance(time.Hour) // its lease ends
	}
	if deaths < 5 {
		t.Errorf("only %d died", deaths)
	}
	p.run()
	if diff := cmp.Diff(all, am.firing(p.clock())); diff != "" {
		t.Errorf("fire (-want +got):\n%s", diff)
	}
}

// What the index of open alerts did not show when a receiver was made, and whose event
// came before that, is told when the index shows all.
func TestToldWhatTheIndexShowsLate(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.Store.IndexLag = time.Minute
	am := newFake(t, p)
	seen, late := p.alert("seen"), p.alert("late")
	p.tell(alert.TypeFiring, seen, late)
	unlisted := alertWrite(late)
	unlisted.Item.Index = nil
	commit := func(w ledger.Write) {
		t.Helper()
		if err := p.db.Commit(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	commit(unlisted)
	p.advance(time.Second)
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	p.run()
	if got := am.firing(p.clock()); !slices.Equal(got, []string{"seen"}) {
		t.Errorf("fire at first: %v", got)
	}
	commit(alertWrite(late))
	p.advance(time.Minute)
	p.run()
	if got := am.firing(p.clock()); !slices.Equal(got, []string{"late", "seen"}) {
		t.Errorf("fire when the index shows all: %v", got)
	}
}
