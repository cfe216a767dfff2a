package notify

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// spoil changes an item's data, and nothing else of it.
func (p *plane) spoil(k ledger.Key, change func(string) string) {
	p.t.Helper()
	it, err := p.db.Get(p.t.Context(), k)
	if err != nil {
		p.t.Fatal(err)
	}
	w := ledger.Write{Expect: it.Version, WasDue: it.Due, Item: it}
	w.Item.Data, w.Item.Version = []byte(change(string(it.Data))), 0
	if err := p.db.Commit(p.t.Context(), w); err != nil {
		p.t.Fatal(err)
	}
}

func torn(data string) string { return data[:len(data)/2] }

func replace(old, with string) func(string) string {
	return func(data string) string { return strings.Replace(data, old, with, 1) }
}

// anew is the plane with a notifier that knows nothing yet.
func (p *plane) anew() {
	x := p.another(p.db)
	x.roots = p.roots
	p.Service = x
}

// rulesOf are the rules of the messages that a site got, sorted.
func rulesOf(s *site) []string {
	out := []string{}
	for _, g := range s.all() {
		out = append(out, g.message.Data.Rule)
	}
	slices.Sort(out)
	return out
}

// TestUnreadableReceivers: receivers that cannot be read, or whose matchers cannot,
// are left out, told and counted; the others are told. They are shown as disabled, and
// are replaced, or deleted.
func TestUnreadableReceivers(t *testing.T) {
	t.Parallel()
	p := setup(t)
	good, bad, odd := newSite(t, p, nil), newSite(t, p, nil), newSite(t, p, nil)
	_, _ = p.receiver(Spec{Name: "good", Kind: KindWebhook, URL: good.URL})
	b, _ := p.receiver(Spec{Name: "bad", Kind: KindWebhook, URL: bad.URL})
	o, _ := p.receiver(Spec{Name: "odd", Kind: KindWebhook, URL: odd.URL, Matchers: []alert.Match{{Field: "rule", Op: alert.OpNotEqual, Value: "x"}}})
	p.tell(alert.TypeFiring, p.alert("before"))
	if err := p.Follow(t.Context(), stream); err != nil { // so that all have something to be sent
		t.Fatal(err)
	}
	p.spoil(record.ReceiverKey(b.ID), torn)
	p.spoil(record.ReceiverKey(o.ID), replace(`"op":"!="`, `"op":"of a newer version"`))
	p.anew()
	p.tell(alert.TypeFiring, p.alert("hot"))
	p.run()
	if d := cmp.Diff([]string{"before", "hot"}, rulesOf(good)); d != "" {
		t.Errorf("the good one (-want +got):\n%s", d)
	}
	if n := p.Metrics.Read().Unread; n < 2 {
		t.Errorf("%d are counted", n)
	}
	list, err := p.Receivers(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("%d are listed, %v", len(list), err)
	}
	for _, r := range list {
		if (r.Disabled != nil) != (r.ID == b.ID || r.ID == o.ID) {
			t.Errorf("%s %s: disabled %+v", r.ID, r.Name, r.Disabled)
		}
	}
	if _, _, err := p.Rotate(t.Context(), call, o.ID, "", 0); err == nil || !strings.Contains(err.Error(), "precondition_failed") {
		t.Errorf("rotated: %v", err)
	}
	for _, x := range []Receiver{b, o} {
		if _, err := p.Test(t.Context(), call, x.ID); err == nil || !strings.Contains(err.Error(), "precondition_failed") {
			t.Errorf("tested: %v", err)
		}
		if _, err := p.Update(t.Context(), call, x.ID, 0, x.Spec); err != nil {
			t.Fatal(err)
		}
	}
	p.advance(time.Second)
	p.tell(alert.TypeFiring, p.alert("after"))
	p.run()
	for name, s := range map[string]*site{"bad": bad, "odd": odd} { // what was left to send, and what is new
		if d := cmp.Diff([]string{"after", "before"}, rulesOf(s)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	p.spoil(record.ReceiverKey(b.ID), func(string) string { return "[]" })
	if err := p.Delete(t.Context(), call, b.ID, 0); err != nil {
		t.Fatal(err)
	}
	p.run()
	if list, err := p.Receivers(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%d are left, %v", len(list), err)
	}
}

// TestUnknownKind: a receiver of a kind that another version of the plane has is left out, and
// one whose URL cannot be dialled fails; either is shown.
func TestUnknownKind(t *testing.T) {
	t.Parallel()
	p := setup(t)
	k, _ := p.receiver(Spec{Name: "kind", Kind: KindWebhook, URL: "https://example.com"})
	w, _ := p.receiver(Spec{Name: "webhook", Kind: KindWebhook, URL: "https://example.com"})
	a, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{"https://example.com"}})
	p.spoil(record.ReceiverKey(k.ID), replace(`"kind":"webhook"`, `"kind":"pigeon"`))
	for _, r := range []Receiver{w, a} {
		p.spoil(record.ReceiverKey(r.ID), replace(`https://example.com`, `example:9093`))
	}
	p.anew()
	p.tell(alert.TypeFiring, p.alert("hot"))
	p.run()
	if got, err := p.Receiver(t.Context(), k.ID); err != nil || got.Disabled == nil {
		t.Errorf("%+v, %v", got, err)
	}
	for _, r := range []Receiver{w, a} {
		if d := p.deliveries(r, Pending); len(d) != 1 || !strings.HasSuffix(d[0].LastError, errURL) {
			t.Errorf("%s: %+v", r.Name, d)
		}
	}
}

// TestUnreadableMessage: a message that cannot be read is put aside as a dead letter,
// and those behind it are sent.
func TestUnreadableMessage(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(string) string{
		"torn":         torn,
		"another type": replace(`"tries":0`, `"tries":"none"`),
		"no payload":   replace(`"payload":`, `"content":`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			s := newSite(t, p, nil)
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			p.tell(alert.TypeFiring, p.alert("one"), p.alert("two"), p.alert("three"))
			if err := p.Follow(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			for _, d := range p.deliveries(r, Pending) {
				if d.Rule == "one" {
					p.spoil(record.DeliveryKey(r.ID, d.ID), change)
				}
			}
			if d, more, err := p.Deliveries(t.Context(), r.ID, "", record.Span{Limit: 10}); err != nil || more || len(d) < 2 {
				t.Errorf("%d are listed, %v", len(d), err)
			}
			p.serve()
			if d := cmp.Diff([]string{"three", "two"}, rulesOf(s)); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			letters, _, err := p.Store.DeadLetters(t.Context(), record.Span{Limit: 10})
			if err != nil || len(letters) != 1 || !strings.Contains(letters[0].Body, `"rule":"one"`) && name != "torn" || !strings.Contains(letters[0].Reason, r.ID) {
				t.Errorf("dead letters %+v, %v", letters, err)
			}
			if d := cmp.Diff([]string{event.TypeDeadLetter}, p.told()); d != "" || p.Metrics.Read().Unread == 0 {
				t.Errorf("counted %d, told %s", p.Metrics.Read().Unread, d)
			}
			page, err := p.db.Query(t.Context(), ledger.Query{PK: record.OutboxPK(r.ID)})
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range page.Items {
				if record.PendingOf(it.Key) != "" {
					t.Errorf("%s is left", it.Key)
				}
			}
		})
	}
}

// TestUnreadableState: what else cannot be read of a receiver's, it is told all the
// same.
func TestUnreadableState(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*plane, Receiver, *alert.Alert){
		"its lane": func(p *plane, r Receiver, _ *alert.Alert) { p.spoil(record.LaneKey(r.ID), torn) },
		"its message": func(p *plane, r Receiver, a *alert.Alert) {
			p.spoil(record.DeliveryKey(r.ID, pushID(r.ID, labelsOf(&r, a))), torn)
		},
		"the alert": func(p *plane, _ Receiver, a *alert.Alert) { p.spoil(record.AlertKey(a.ID), torn) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			a, other := p.alert("hot"), p.alert("cold")
			p.tell(alert.TypeFiring, a, other)
			p.run()
			spoil(p, r, a)
			p.anew()
			p.advance(2 * time.Minute)
			p.serve()
			if p.Metrics.Read().Unread == 0 {
				t.Error("nothing is counted")
			}
			p.advance(5 * time.Minute) // past what was pushed of it last
			p.tell(alert.TypeResolved, a)
			p.run()
			if d := cmp.Diff([]string{"cold"}, am.firing(p.clock())); d != "" {
				t.Errorf("firing (-want +got):\n%s", d)
			}
		})
	}
}

// TestUnreadableBefore: an alert whose message cannot be read is told all the same
// when it resolves, in the place of that.
func TestUnreadableBefore(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	a, other := p.alert("hot"), p.alert("cold")
	p.tell(alert.TypeFiring, a, other)
	p.run()
	p.spoil(record.DeliveryKey(r.ID, pushID(r.ID, labelsOf(&r, a))), torn)
	p.advance(time.Second)
	p.tell(alert.TypeResolved, a)
	p.run()
	if d := cmp.Diff([]string{"cold"}, am.firing(p.clock())); d != "" || p.Metrics.Read().Unread != 1 {
		t.Errorf("%d are counted; firing (-want +got):\n%s", p.Metrics.Read().Unread, d)
	}
}

// TestUnreadableSecrets: a receiver whose secrets cannot be read, or are none, waits, and is
// looked at now and then; another secret mends it. Nothing is sent that is not signed.
func TestUnreadableSecrets(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(p *plane, k ledger.Key) error{
		"torn":  func(p *plane, k ledger.Key) error { p.spoil(k, torn); return nil },
		"empty": func(p *plane, k ledger.Key) error { p.spoil(k, func(string) string { return "{}" }); return nil },
		"gone": func(p *plane, k ledger.Key) error {
			return p.db.Commit(context.Background(), ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: k}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			s := newSite(t, p, nil)
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			if err := lose(p, record.ReceiverSecretsKey(r.ID)); err != nil {
				t.Fatal(err)
			}
			p.tell(alert.TypeFiring, p.alert("hot"))
			p.run()
			due, err := p.db.Due(t.Context(), t0.Add(brokenAgain), 10)
			if err != nil || len(due) != 1 || !due[0].Due.Equal(t0.Add(brokenAgain)) {
				t.Errorf("due %v, %v", due, err)
			}
			if _, err := p.Test(t.Context(), call, r.ID); err == nil || len(s.all()) != 0 {
				t.Errorf("tested: %v; %d came", err, len(s.all()))
			}
			_, secret, err := p.Rotate(t.Context(), call, r.ID, "", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			p.serve()
			if all := s.all(); len(all) != 1 || !verify(t, all[0], secret) {
				t.Errorf("%d came", len(all))
			}
		})
	}
}
