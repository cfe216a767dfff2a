package react

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// What inhibits the rule may have begun to fire before what is tested: it is judged
// from a day before, and of the rule nothing is.
func TestInhibitorsThatBeganBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: over\non: [x.over]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.under]}\n")
	at := func(d time.Duration, typ, name string) {
		b.advance(t0.Add(d).Sub(b.clock()))
		b.tell(typ, name)
	}
	const h = time.Hour
	since := t0.Add(50 * h)
	at(0, "x.over", "long before")
	at(27*h, "x.over", "before")
	at(28*h, "x.over", "over since")
	at(29*h, "x.bad", "before")
	at(30*h, "x.under", "over since")
	for _, name := range []string{"long before", "before", "over since"} {
		at(51*h, "x.bad", name)
	}
	b.advance(time.Second)
	r := alert.Rule{Name: "mine", On: []string{"x.bad"}, GroupBy: map[string]string{"g": "event.subject.name"}, InhibitedBy: []alert.Inhibitor{{Rule: "over", Equal: []string{"g"}}}}
	got, err := b.service.Backtest(t.Context(), Backtest{Rule: r, Streams: []string{stream}, Since: since})
	if err != nil {
		t.Fatal(err)
	}
	inhibited := map[string]bool{}
	for _, a := range got.Alerts {
		inhibited[a.Group["g"]] = a.InhibitedBy != ""
		if a.Since.Before(since) || a.Count != 1 {
			t.Errorf("%+v", a)
		}
	}
	if d := cmp.Diff(map[string]bool{"long before": false, "before": true, "over since": false}, inhibited); d != "" {
		t.Errorf("inhibited (-want +got):\n%s", d)
	}
	if got.Judged != 3 || got.Matched != 3 || got.InhibitorCost == 0 || !got.Complete {
		t.Errorf("%+v", got)
	}
	// Without inhibitors nothing is read before it.
	r.InhibitedBy = nil
	if alone, err := b.service.Backtest(t.Context(), Backtest{Rule: r, Streams: []string{stream}, Since: since}); err != nil || alone.Judged != 3 || alone.Cost != got.Cost {
		t.Errorf("%+v, %v", alone, err)
	}
}
