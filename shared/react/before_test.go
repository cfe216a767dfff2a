package react

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
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

// A test tells what retention took of what it judged: details that the rule reads, by
// whatever name, and the events before the first that is left.
func TestBacktestTellsWhatRetentionTook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	for range 3 {
		b.put(b.fact("x.bad", "a", map[string]any{"i": 1}), b.fact("x.bare", "a", nil))
		b.advance(time.Hour)
	}
	began := func(rule alert.Rule, since time.Time) Backtested {
		t.Helper()
		rule.Name = "x"
		got, err := b.service.Backtest(ctx, Backtest{Rule: rule, Streams: []string{stream}, Since: since})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	detail := alert.Rule{On: []string{"x.bad"}, When: "event.detail.?i.orValue(-1) >= 0"}
	if got := began(detail, t0); got.Matched != 3 || got.DetailsExpired != 0 || got.EventsFrom != nil {
		t.Fatalf("nothing was taken: %+v", got)
	}
	if got := began(detail, t0.AddDate(0, 0, -400)); !cmp.Equal(got.EventsFrom, []EventsFrom{{Stream: stream, At: t0}}) {
		t.Errorf("the stream began later: %+v", got.EventsFrom)
	}
	if _, err := event.ExpireDetails(ctx, b.db, stream, "x.*", t0.Add(90*time.Minute), 100); err != nil {
		t.Fatal(err)
	}
	for expr, want := range map[string]int64{
		detail.When:                               2,
		"event.?detail.hasValue()":                2,
		"[event].exists(e, size(e.detail) > 0)":   2,
		"event.subject.name == 'a'":               0,
		"event.id != '' && operation.phase == ''": 0, // the event is of none
	} {
		if got := began(alert.Rule{On: []string{"x.*"}, When: expr}, t0); got.DetailsExpired != want || got.Judged != 6 {
			t.Errorf("%s: details of %d of %d events were taken, want %d", expr, got.DetailsExpired, got.Judged, want)
		}
	}
	if got := began(alert.Rule{On: []string{"x.bare"}, When: detail.When}, t0); got.DetailsExpired != 0 {
		t.Errorf("of others: %d", got.DetailsExpired)
	}
	if _, _, err := event.Trim(ctx, b.db, stream, t0.Add(30*time.Minute)); err != nil {
		t.Fatal(err)
	}
	want := []EventsFrom{{Stream: stream, At: t0.Add(time.Hour), Expired: true}}
	if got := began(detail, t0); !cmp.Equal(got.EventsFrom, want) || got.DetailsExpired != 1 || got.Judged != 4 {
		t.Errorf("some are gone: %+v, want from %v", got, want)
	}
	if got := began(detail, t0.Add(time.Hour)); got.EventsFrom != nil {
		t.Errorf("none of that time is gone: %v", got.EventsFrom)
	}
	if _, _, err := event.Trim(ctx, b.db, stream, b.clock()); err != nil {
		t.Fatal(err)
	}
	want = []EventsFrom{{Stream: stream, At: t0.Add(2 * time.Hour), Expired: true}}
	if got := began(detail, t0); !cmp.Equal(got.EventsFrom, want) || got.Judged != 0 {
		t.Errorf("all are gone: %+v, want from %v", got, want)
	}
}
