package notify

import (
	"maps"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
)

// TestOldestWaiting: how long the oldest message has waited, for each receiver
// that is to be told.
func TestOldestWaiting(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var taking atomic.Bool
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if !taking.Load() {
			w.WriteHeader(500)
		}
	})
	enabled := true
	is := func(when string, want time.Duration) {
		t.Helper()
		all := map[string]time.Duration{"good": 0}
		if enabled {
			all["r"] = want
		}
		if got, err := p.OldestWaiting(t.Context()); err != nil || !maps.Equal(got, all) {
			t.Errorf("%s: %v, want %v; %v", when, got, all, err)
		}
	}
	p.receiver(Spec{Name: "good", Kind: KindWebhook, URL: newSite(t, p, nil).URL})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
	is("nothing happened", 0)
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
	enabled = false
	is("it is disabled", 0)
	p.advance(time.Hour)
	p.enable(&r, true)
	enabled = true
	p.advance(time.Minute)
	is("it is enabled again", time.Minute)
	taking.Store(true)
	p.run()
	is("all are taken", 0)
}
