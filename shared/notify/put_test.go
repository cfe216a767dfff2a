package notify

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
)

// TestPutsBurnNoTries: a receiver that is put again and again while it fails, as it is or
// with changes, has its messages given up when they are a day old, not before. A change has
// them tried at once, and no later than they would be without it; what changes nothing does
// not.
func TestPutsBurnNoTries(t *testing.T) {
	t.Parallel()
	yes := true
	for name, c := range map[string]struct {
		put   func(sp *Spec)
		tries int // in ten minutes
	}{
		"as it is": {func(*Spec) {}, 5},
		"as it is, written out": {func(sp *Spec) {
			sp.Enabled, sp.SendResolved, sp.Timeout, sp.Matchers, sp.URLs = &yes, &yes, alert.Duration(DefaultTimeout), []alert.Match{}, []string{}
		}, 5},
		"changed": {func(sp *Spec) { sp.Timeout ^= alert.Duration(MinTimeout) }, 121},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(500) })
			r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL})
			p.tell(alert.TypeFiring, p.alert("hot"))
			p.run()
			was := r.Revision
			for range 120 {
				p.advance(5 * time.Second)
				p.change(&r, c.put)
				p.serve()
			}
			if n := len(s.all()); n != c.tries || (r.Revision == was) != (c.tries == 5) {
				t.Errorf("%d tries in ten minutes, revision %d, then %d", n, was, r.Revision)
			}
			d := p.deliveries(r, Pending)
			if len(d) != 1 || d[0].Tries-d[0].Early != 5 || d[0].Next.Sub(t0) > 25*time.Minute {
				t.Fatalf("after ten minutes: %+v", p.deliveries(r, ""))
			}
			for len(p.deliveries(r, Pending)) > 0 && p.clock().Sub(t0) < maxAge {
				p.advance(10 * time.Minute)
				p.serve()
			}
			if age := p.clock().Sub(t0); age < minAge || age > 26*time.Hour || len(p.deliveries(r, Failed)) != 1 || !slices.Equal(p.told(), []string{event.TypeNotifyFailing, event.TypeNotifyFailed}) {
				t.Errorf("after %s: %+v", age, p.deliveries(r, ""))
			}
		})
	}
}
