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
	p.advance(time.Minute + standingSecond)
	p.run()
	if got := am.firing(p.clock()); !slices.Equal(got, []string{"late", "seen"}) {
		t.Errorf("fire when the index shows all: %v", got)
	}
}

// between is a ledger under which something happens after alerts were read.
type between struct {
	ledger.Ledger
	then func()
}

func (b *between) GetMany(ctx context.Context, keys []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	items, err := b.Ledger.GetMany(ctx, keys)
	if then := b.then; then != nil && keys[0].SK == record.AlertKey("").SK {
		b.then = nil
		then()
	}
	return items, err
}

// What becomes of an alert, and is told by its event, while an Alertmanager is told what
// fires is not undone by what was read before.
func TestAlertThatChangesWhileItIsTold(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, after func(*alert.Alert)
		typ           string
		want          []string // severities of what fires
	}{
		"its silence ends": {func(a *alert.Alert) { a.SilencedBy = "sil_1" }, func(a *alert.Alert) { a.SilencedBy = "" }, alert.TypeFiring, []string{"error"}},
		"it is graver":     {func(*alert.Alert) {}, func(a *alert.Alert) { a.Severity = "critical" }, alert.TypeFiring, []string{"critical"}},
		"it is silenced":   {func(*alert.Alert) {}, func(a *alert.Alert) { a.SilencedBy = "sil_1" }, alert.TypeSilenced, nil},
		"it is over":       {func(*alert.Alert) {}, func(*alert.Alert) {}, alert.TypeResolved, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			a := p.alert("hot")
			tt.before(a)
			p.tell(alert.TypeFiring, a)
			p.run()
			p.advance(time.Second)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			p.advance(time.Second)
			s := p.another(&between{Ledger: p.db, then: func() {
				tt.after(a)
				p.tell(tt.typ, a)
				if err := p.Follow(t.Context(), stream); err != nil {
					t.Error(err)
				}
			}})
			s.roots = p.roots
			if err := s.Deliver(t.Context(), record.LaneKey(r.ID)); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				p.run()
				if got := am.severities(p.clock()); !slices.Equal(got, tt.want) {
					t.Errorf("fire: %v", got)
				}
				p.advance(time.Minute)
			}
		})
	}
}

// A list that cannot be read keeps nothing else from an Alertmanager.
func TestListOfWhatFiresFails(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	p.tell(alert.TypeFiring, p.alert("before"))
	p.run()
	p.advance(time.Second)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	p.advance(time.Second)
	p.tell(alert.TypeFiring, p.alert("after"))
	l := &unlisted{Ledger: p.db, fails: true}
	s := p.another(l)
	s.roots = p.roots
	is := func(when string, want ...string) {
		t.Helper()
		if err := s.Follow(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
		if err := s.Deliver(t.Context(), record.LaneKey(r.ID)); err != nil {
			t.Fatal(err)
		}
		if got := am.firing(p.clock()); !slices.Equal(got, want) {
			t.Errorf("%s fire %v", when, got)
		}
	}
	is("while it fails", "after")
	if l.asked > 3 {
		t.Errorf("it was asked for %d times at once", l.asked)
	}
	l.fails = false
	p.advance(2 * time.Minute)
	is("later", "after", "before")
}

// unlisted is a ledger whose list of open alerts fails.
type unlisted struct {
	ledger.Ledger
	fails bool
	asked int
}

func (u *unlisted) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	if q.Index == ledger.Live {
		if u.asked++; u.fails {
			return ledger.Page{}, errors.New("an item cannot be read")
		}
	}
	return u.Ledger.Query(ctx, q)
}

// A receiver that was made by a clock that was ahead is told what fires, and no more often
// than twice.
func TestToldWhatFiresByOtherClocks(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"back a minute": -time.Minute, "back an hour": -time.Hour, "back a year": -365 * 24 * time.Hour, "ahead a week": 7 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			p.run()
			p.keep(p.alert("hot")) // no event tells of it
			p.change(&r, func(sp *Spec) { sp.Labels = map[string]string{"plane": "eu"} })
			p.advance(jump)
			p.tell(alert.TypeFiring, p.alert("after"))
			l := &unlisted{Ledger: p.db}
			p.Service = func() *Service { s := p.another(l); s.roots = p.roots; return s }()
			for range 4 * 60 { // the longest that a clock set back an hour can cost
				p.advance(time.Minute)
				p.run()
			}
			if got := am.firing(p.clock()); !slices.Equal(got, []string{"after", "hot"}) || l.asked != 2 {
				t.Errorf("fire %v, the list was asked for %d times", got, l.asked)
			}
		})
	}
}
