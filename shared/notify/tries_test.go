package notify

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// TestOldMessages: one that is redelivered, or whose receiver is enabled again, when
// it is older than messages get is tried again as often as any.
func TestOldMessages(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(p *plane, r Receiver){
		"redelivered": func(p *plane, r Receiver) {
			for range 60 {
				if len(p.deliveries(r, Failed)) > 0 {
					break
				}
				p.advance(time.Hour)
				p.serve()
			}
			p.advance(3 * 24 * time.Hour)
			if _, err := p.Redeliver(p.t.Context(), call, r.ID, p.deliveries(r, Failed)[0].ID); err != nil {
				p.t.Fatal(err)
			}
		},
		"enabled again": func(p *plane, r Receiver) {
			off := r.Spec
			off.Enabled = new(bool)
			if _, err := p.Update(p.t.Context(), call, r.ID, 0, off); err != nil {
				p.t.Fatal(err)
			}
			p.advance(3 * 24 * time.Hour)
			if _, err := p.Update(p.t.Context(), call, r.ID, 0, r.Spec); err != nil {
				p.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			var taking atomic.Bool
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
				if !taking.Load() {
					w.WriteHeader(http.StatusBadGateway)
				}
			})
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			p.tell(alert.TypeFiring, p.alert("hot"))
			p.run()
			wait(p, r)
			before := len(s.all())
			for range 3 {
				p.serve()
				p.advance(5 * time.Minute)
			}
			d := p.deliveries(r, Pending)
			if n := len(s.all()) - before; n != 3 || len(d) != 1 || d[0].CreatedAt.After(t0) {
				t.Fatalf("tried %d times: %+v", n, p.deliveries(r, ""))
			}
			taking.Store(true)
			p.advance(time.Hour)
			p.serve()
			if n := len(p.deliveries(r, Delivered)); n != 1 {
				t.Errorf("delivered %d", n)
			}
		})
	}
}

// TestMarksEnd: that a receiver was told of an alert is forgotten when the alert is
// over, also where that happened while nobody was told; of one that still fires it is
// not.
func TestMarksEnd(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	over, gone, firing := p.alert("over"), p.alert("gone"), p.alert("firing")
	p.tell(alert.TypeFiring, over, gone, firing)
	p.run()
	off := r.Spec
	off.Enabled = new(bool)
	if _, err := p.Update(t.Context(), call, r.ID, 0, off); err != nil {
		t.Fatal(err)
	}
	p.advance(time.Hour)
	p.tell(alert.TypeResolved, over, gone)
	p.run()
	p.advance(time.Hour)
	if _, err := p.Update(t.Context(), call, r.ID, 0, r.Spec); err != nil {
		t.Fatal(err)
	}
	if err := p.db.Commit(t.Context(), ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.AlertKey(gone.ID)}}); err != nil {
		t.Fatal(err)
	}
	p.advance(toldKept)
	late := p.alert("late")
	p.tell(alert.TypeFiring, late)
	p.run()
	from, to := record.ToldOfSpan()
	page, err := p.db.Query(t.Context(), ledger.Query{PK: record.OutboxPK(r.ID), From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, it := range page.Items {
		left = append(left, record.ToldOf(it.Key))
	}
	want := []string{firing.ID, late.ID}
	slices.Sort(want)
	if d := cmp.Diff(want, left); d != "" {
		t.Errorf("marks (-want +got):\n%s", d)
	}
	p.tell(alert.TypeResolved, firing)
	p.run()
	if g := s.all()[len(s.all())-1]; g.message.Type != alert.TypeResolved || g.message.Data.Rule != "firing" {
		t.Errorf("the last message is %s of %s", g.message.Type, g.message.Data.Rule)
	}
}

// TestTriesAreShown: a delivery shows how often it was tried, the time that it was taken
// among them, and begins anew where it is redelivered, wherever it stands.
func TestTriesAreShown(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{KindWebhook, KindAlertmanager} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			var taking atomic.Bool
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
				if !taking.Load() {
					w.WriteHeader(http.StatusBadGateway)
				}
			})
			sp := Spec{Name: "r", Kind: kind}
			if kind == KindWebhook {
				sp.URL = s.URL
			} else {
				sp.URLs = []string{s.URL}
			}
			r, _ := p.receiver(sp)
			is := func(when string, state State, tries, redelivered int) Delivery {
				t.Helper()
				all := p.deliveries(r, "")
				if all[0].State != state || all[0].Tries != tries || all[0].Redeliver != redelivered {
					t.Fatalf("%s: want %s, %d tries, %d times redelivered: %s, %d, %d", when, state, tries, redelivered, all[0].State, all[0].Tries, all[0].Redeliver)
				}
				return all[0]
			}
			redeliver := func(d Delivery) {
				t.Helper()
				if _, err := p.Redeliver(t.Context(), call, r.ID, d.ID); err != nil {
					t.Fatal(err)
				}
			}
			a := p.alert("hot")
			p.tell(alert.TypeFiring, a)
			p.run()
			is("it failed", Pending, 1, 0)
			p.advance(6 * time.Second)
			p.serve()
			redeliver(is("it failed again", Pending, 2, 0))
			is("redelivered", Pending, 0, 1)
			p.advance(5 * time.Second) // the receiver is given a pause
			p.serve()
			d := is("it failed anew", Pending, 1, 1)
			if wait := d.Next.Sub(p.clock()); wait > 6*time.Second && kind == KindWebhook {
				t.Errorf("tried again after %s", wait)
			}
			taking.Store(true)
			p.advance(10 * time.Second)
			p.serve()
			taken := Delivered
			if kind == KindAlertmanager {
				taken = Active
				is("taken", taken, 2, 1)
				p.advance(2 * time.Minute)
				p.serve()
				is("told again", taken, 1, 1)
				taking.Store(false)
				p.advance(2 * time.Minute)
				p.serve()
				is("told again, it failed", taken, 1, 1)
				p.advance(10 * time.Second)
				p.serve()
				is("twice", taken, 2, 1)
				taking.Store(true)
				p.advance(time.Minute)
				p.serve()
				is("taken once more", taken, 3, 1)
				p.tell(alert.TypeResolved, a)
				p.run()
				taken = Delivered
				d = is("over", taken, 1, 0)
			} else {
				d = is("taken", taken, 2, 1)
			}
			n := d.Redeliver
			redeliver(d)
			is("redelivered when it was taken", Pending, 0, n+1)
			p.serve()
			is("taken again", Delivered, 1, n+1)
			if st := p.Metrics.Read(); kind == KindWebhook && (st.Retried != 2 || st.Failed != 3 || st.Sent != 2) {
				t.Errorf("counted %+v", st)
			}
		})
	}
}

// TestOldEndsAreTried: that an alert is over is tried for as long when it was redelivered,
// or its receiver was enabled again, long after.
func TestOldEndsAreTried(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(p *plane, r Receiver){
		"redelivered": func(p *plane, r Receiver) {
			for range 60 {
				p.advance(time.Minute)
				p.serve()
			}
			if _, err := p.Redeliver(p.t.Context(), call, r.ID, p.deliveries(r, Failed)[0].ID); err != nil {
				p.t.Fatal(err)
			}
		},
		"enabled again": func(p *plane, r Receiver) {
			off := r.Spec
			off.Enabled = new(bool)
			for _, sp := range []Spec{off, r.Spec} {
				if _, err := p.Update(p.t.Context(), call, r.ID, 0, sp); err != nil {
					p.t.Fatal(err)
				}
				p.advance(time.Hour)
				if sp.Enabled == nil {
					p.advance(-time.Hour)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			a := p.alert("hot")
			p.tell(alert.TypeFiring, a)
			p.run()
			am.breaks(true)
			p.advance(time.Minute)
			p.tell(alert.TypeResolved, a)
			p.run()
			wait(p, r)
			for range 10 {
				p.advance(time.Minute)
				p.serve()
			}
			am.breaks(false)
			p.advance(2 * time.Minute)
			p.serve()
			if n := len(p.deliveries(r, Delivered)); n != 1 {
				t.Errorf("%d are delivered: %+v", n, p.deliveries(r, ""))
			}
		})
	}
}
