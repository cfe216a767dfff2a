package notify

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestOldestWaiting: how long the oldest message has waited, of all receivers that are to
// be told.
func TestOldestWaiting(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var taking atomic.Bool
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if !taking.Load() {
			w.WriteHeader(500)
		}
	})
	is := func(when string, want time.Duration) {
		t.Helper()
		if got, err := p.OldestWaiting(t.Context()); err != nil || got != want {
			t.Errorf("%s: %s, want %s; %v", when, got, want, err)
		}
	}
	p.receiver(Spec{Name: "good", Kind: KindWebhook, URL: newSite(t, p, nil).URL})
	is("nothing happened", 0)
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	p.tell(alert.TypeFiring, p.alert("first"))
	p.run()
	p.advance(time.Hour)
	p.tell(alert.TypeFiring, p.alert("second"))
	p.run()
	is("two wait", time.Hour)
	d := p.deliveries(r, Pending)
	if d[0].CreatedAt.After(d[1].CreatedAt) {
		d[0] = d[1]
	}
	p.advance(time.Hour)
	if _, err := p.Redeliver(t.Context(), call, r.ID, d[0].ID); err != nil {
		t.Fatal(err)
	}
	is("the older one was redelivered", time.Hour)
	p.enable(&r, false)
	is("it is disabled", 0)
	p.advance(time.Hour)
	p.enable(&r, true)
	p.advance(time.Minute)
	is("it is enabled again", time.Minute)
	taking.Store(true)
	p.run()
	is("all are taken", 0)
}
