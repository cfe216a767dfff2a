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
