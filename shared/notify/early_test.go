package notify

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// asBefore makes of what an Alertmanager was told of alerts what planes kept that kept it
// by the alert. labels changes those that it was told with; nil leaves them.
func (p *plane) asBefore(r Receiver, labels func(map[string]string), alerts ...*alert.Alert) {
	p.t.Helper()
	for _, a := range alerts {
		it, err := p.db.Get(p.t.Context(), record.DeliveryKey(r.ID, pushID(r.ID, labelsOf(&r, a))))
		if err != nil {
			p.t.Fatal(err)
		}
		was, err := decodeDelivery(it)
		if err != nil {
			p.t.Fatal(err)
		}
		d := *was
		push := *was.Push
		d.ID, d.Push = earlyID(r.ID, a.ID), &push
		if push.Labels = maps.Clone(push.Labels); labels != nil {
			labels(push.Labels)
		}
		writes := []ledger.Write{
			{Item: d.item()}, {Item: ledger.Item{Key: d.pointer(), Data: []byte("{}")}},
			{Kind: ledger.Delete, Expect: it.Version, Item: ledger.Item{Key: it.Key}},
			{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: was.pointer()}},
			{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.ToldOfKey(r.ID, a.ID)}},
		}
		if err := p.db.Commit(p.t.Context(), writes...); err != nil {
			p.t.Fatal(err)
		}
	}
}

// knows makes an alert the only one that the Alertmanager has.
func (f *fake) knows(a *push, until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := *a
	one.EndsAt = &until
	f.alerts = map[string]push{labelsKey(one.Labels): one}
}

// TestEarlyDeliveries: what an Alertmanager was told of by a plane that kept it by the
// alert ends, and goes on, by the labels.
func TestEarlyDeliveries(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		labels func(map[string]string) // that it was told with, of those of today
		then   func(p *plane, a *alert.Alert)
		want   []string // severities that fire at once, and from then on
	}{
		"nothing happens": {nil, func(p *plane, _ *alert.Alert) { p.advance(2 * time.Minute) }, []string{"error"}},
		"its severity changes": {nil, func(p *plane, a *alert.Alert) {
			a.Severity = "critical"
			p.tell(alert.TypeFiring, a)
		}, []string{"critical"}},
		"its severity changes without a word": {nil, func(p *plane, a *alert.Alert) {
			a.Severity = "critical"
			p.keep(a)
			p.advance(2 * time.Minute)
		}, []string{"critical"}},
		"it resolves": {nil, func(p *plane, a *alert.Alert) { p.tell(alert.TypeResolved, a) }, nil},
		"it is inhibited": {nil, func(p *plane, a *alert.Alert) {
			a.InhibitedBy = "alr_other"
			p.tell(alert.TypeInhibited, a)
		}, nil},
		"it is gone": {nil, func(p *plane, a *alert.Alert) {
			if err := p.db.Commit(t.Context(), ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.AlertKey(a.ID)}}); err != nil {
				t.Fatal(err)
			}
			p.advance(2 * time.Minute)
		}, nil},
		"its labels collided": {func(l map[string]string) { delete(l, "node") }, func(p *plane, _ *alert.Alert) { p.advance(2 * time.Minute) }, []string{"error"}},
		"it resolves and its group fires": {nil, func(p *plane, a *alert.Alert) {
			p.tell(alert.TypeResolved, a)
			p.run()
			p.advance(3 * time.Second)
			b := p.alert("hot")
			b.ID = p.alert("next").ID
			p.tell(alert.TypeFiring, b)
		}, []string{"error"}},
		"its group fires, which nobody said resolved": {nil, func(p *plane, a *alert.Alert) {
			now := p.clock()
			a.State, a.ResolvedAt = alert.Resolved, &now
			p.keep(a)
			p.advance(3 * time.Second)
			b := p.alert("hot")
			b.ID = p.alert("next").ID
			p.tell(alert.TypeFiring, b)
		}, []string{"error"}},
		"it was told under other labels since": {func(l map[string]string) { l["severity"] = "warning" }, func(p *plane, a *alert.Alert) {
			r, err := p.Receiver(t.Context(), "am")
			if err != nil {
				t.Fatal(err)
			}
			mark := told{Delivery: pushID(r.ID, labelsOf(&r, a))}
			if err := p.db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: record.ToldOfKey(r.ID, a.ID), Data: record.Encode(mark)}}); err != nil {
				t.Fatal(err)
			}
			p.tell(alert.TypeFiring, a)
		}, []string{"error"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			a := p.alert("hot")
			p.tell(alert.TypeFiring, a)
			p.run()
			p.asBefore(r, tt.labels, a)
			am.knows(p.deliveries(r, Active)[0].Push, p.clock().Add(endsAhead))
			p.advance(time.Minute)
			tt.then(p, a)
			p.run()
			for range 12 {
				if got := am.severities(p.clock()); !cmp.Equal(got, tt.want) {
					t.Fatalf("%s after: %v fire, want %v", p.clock().Sub(t0), got, tt.want)
				}
				p.advance(time.Minute)
				p.run()
			}
			if n := len(p.deliveries(r, Active)); n != len(tt.want) {
				t.Errorf("%d are active", n)
			}
			if _, err := p.db.Get(t.Context(), record.DeliveryKey(r.ID, earlyID(r.ID, a.ID))); err == nil {
				t.Error("it is left as it was")
			}
		})
	}
}

// TestEarlyEnd: an end that a plane before left to tell is told, and does not end what
// fires under its labels by then.
func TestEarlyEnd(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"the group is quiet": false, "it fires again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			a := p.alert("hot")
			p.tell(alert.TypeFiring, a)
			p.run()
			am.breaks(true)
			p.advance(time.Second)
			p.tell(alert.TypeResolved, a)
			p.run()
			p.asBefore(r, nil, a)
			var want []string
			if again {
				p.advance(time.Second)
				b := p.alert("hot")
				b.ID, want = p.alert("next").ID, []string{"hot"}
				p.tell(alert.TypeFiring, b)
				if err := p.Follow(t.Context(), stream); err != nil {
					t.Fatal(err)
				}
			}
			am.breaks(false)
			for range 5 {
				p.advance(time.Minute)
				p.run()
				if diff := cmp.Diff(append([]string{}, want...), am.firing(p.clock())); diff != "" {
					t.Fatal(diff)
				}
			}
		})
	}
}

// TestManyEarlyDeliveries: more of them than a commit takes, whose labels are others by
// now.
func TestManyEarlyDeliveries(t *testing.T) {
	t.Parallel()
	const many = 100
	for name, tell := range map[string]bool{"told of": true, "due": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			am := newFake(t, p)
			r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
			var alerts []*alert.Alert
			for i := range many {
				alerts = append(alerts, p.alert(fmt.Sprint("hot", i)))
			}
			p.tell(alert.TypeFiring, alerts...)
			p.run()
			p.asBefore(r, nil, alerts...)
			p.advance(2 * time.Minute)
			for _, a := range alerts {
				if a.Severity = "critical"; !tell {
					p.keep(a)
				}
			}
			if tell {
				p.tell(alert.TypeFiring, alerts...)
			}
			p.run()
			got := am.severities(p.clock())
			for _, s := range got {
				if s != "critical" {
					t.Fatalf("%s fires", s)
				}
			}
			if len(got) != many {
				t.Errorf("%d fire", len(got))
			}
		})
	}
}
