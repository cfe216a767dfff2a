package notify

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// TestDeletedReceiver: what was to be sent goes with it, and nothing stays behind.
func TestDeletedReceiver(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(500) })
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	var alerts []*alert.Alert
	for i := range 60 {
		alerts = append(alerts, p.alert(time.Duration(i).String()))
	}
	p.tell(alert.TypeFiring, alerts...)
	p.run()
	n := len(s.all())
	if err := p.Delete(t.Context(), call, "r", 0); err != nil {
		t.Fatal(err)
	}
	p.advance(time.Hour)
	p.tell(alert.TypeResolved, alerts...)
	p.run()
	if len(s.all()) != n {
		t.Error("it was told when it was deleted")
	}
	for _, pk := range []string{record.OutboxPK(r.ID), record.ReceiversPK, record.ReceiverSecretsKey(r.ID).PK, record.ReceiverNameKey("r").PK} {
		page, err := p.db.Query(t.Context(), ledger.Query{PK: pk})
		if err != nil || len(page.Items) != 0 {
			t.Errorf("%d items are left in %s, %v", len(page.Items), pk, err)
		}
	}
	if r2, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL}); r2.ID == r.ID {
		t.Error("the name gave the same receiver")
	}
}

// TestDisabledReceiver: what happens while it is disabled is not told later, what was
// left to send is.
func TestDisabledReceiver(t *testing.T) {
	t.Parallel()
	p := setup(t)
	gone := true
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if gone {
			w.WriteHeader(503)
		}
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.tell(alert.TypeFiring, p.alert("left"))
	p.run()
	off := false
	sp := r.Spec
	sp.Enabled = &off
	if _, err := p.Update(t.Context(), call, "r", r.Revision, sp); err != nil {
		t.Fatal(err)
	}
	_, err := p.Update(t.Context(), call, "r", r.Revision, sp)
	if f, ok := errors.AsType[*operation.Refusal](err); !ok || f.ErrorCode != "precondition_failed" {
		t.Errorf("changed at an old revision: %v", err)
	}
	p.advance(time.Minute)
	p.tell(alert.TypeFiring, p.alert("meanwhile"))
	p.run()
	p.advance(time.Minute)
	before := len(s.all())
	gone = false
	if _, err := p.Update(t.Context(), call, "r", 0, r.Spec); err != nil {
		t.Fatal(err)
	}
	p.advance(time.Second)
	p.tell(alert.TypeFiring, p.alert("after"))
	p.run()
	var rules []string
	for _, g := range s.all()[before:] {
		rules = append(rules, g.message.Data.Rule)
	}
	if before != 1 || len(rules) != 2 || rules[0]+rules[1] != "leftafter" && rules[0]+rules[1] != "afterleft" {
		t.Errorf("%d before, then %v", before, rules)
	}
}

// TestGoneFromWhereItLed: that a webhook is gone from where its receiver led when it was
// asked neither disables that, nor ends the message.
func TestGoneFromWhereItLed(t *testing.T) {
	t.Parallel()
	p := setup(t)
	was, opens := newGate(t, p, http.StatusGone)
	is := newSite(t, p, nil)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: was.URL, Timeout: alert.Duration(MaxTimeout)})
	p.tell(alert.TypeFiring, p.alert("one"), p.alert("two"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := p.delivering(r)
	eventually(t, "it is asked", func() bool { return len(was.all()) == 2 })
	p.change(&r, func(sp *Spec) { sp.URL = is.URL })
	opens()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.serve()
	got, err := p.Receiver(t.Context(), r.ID)
	if n := len(p.deliveries(r, Delivered)); err != nil || got.Disabled != nil || n != 2 || len(is.all()) != 2 {
		t.Errorf("%v, disabled %+v, taken %+v", err, got.Disabled, p.deliveries(r, ""))
	}
}

// TestHistoryIsNotTold: a receiver is not told what happened before it was made,
// however long the stream is, also by a notifier that sees the stream for the first
// time.
func TestHistoryIsNotTold(t *testing.T) {
	t.Parallel()
	p := setup(t)
	s := newSite(t, p, nil)
	for i := range 700 {
		p.tell(alert.TypeFiring, p.alert(time.Duration(i).String()))
	}
	p.advance(time.Second)
	p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.advance(time.Second)
	p.tell(alert.TypeFiring, p.alert("now"))
	p.run()
	p.Service = func() *Service { x := p.another(p.db); x.roots = p.roots; return x }()
	p.tell(alert.TypeFiring, p.alert("later"))
	p.run()
	if all := s.all(); len(all) != 2 || all[0].message.Data.Rule != "now" || all[1].message.Data.Rule != "later" {
		t.Errorf("%d are told", len(all))
	}
}
