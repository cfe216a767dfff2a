package react

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// A silence that is made while an alert fires, and begins only later, is told when
// it begins and when it is over, by the due time of its stream alone.
func TestScheduledSilence(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: hot\non: [x.bad]\nresolve_when: {on: [x.good]}\n")
	b.tell("x.bad", "n1")
	b.follow()
	b.advance(time.Minute)
	_, err := b.service.CreateSilence(t.Context(), call, alert.Silence{Matchers: []alert.Match{{Field: "rule", Op: "=", Value: "hot"}},
		StartsAt: b.clock().Add(3 * time.Second), EndsAt: b.clock().Add(6 * time.Second), Reason: "work"})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		b.follow()
		b.advance(time.Second)
	}
	got := slices.DeleteFunc(b.told(), func(l string) bool { return strings.Contains(l, "condition_holds") })
	if d := cmp.Diff([]string{"1m3s silenced hotmap[] silenced", "1m6s unsilenced hotmap[] silence_over", "1m6s firing hotmap[] silence_over"}, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// A backtest says what could not be evaluated: the first errors, with their events.
func TestBacktestTellsErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 8 {
		b.put(b.fact("x.bad", "n1", map[string]any{"n": i}))
	}
	b.advance(time.Second)
	r, err := alert.ParseRule([]byte("name: hot\non: [x.bad]\nwhen: event.detail.missing == 7\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.service.Backtest(t.Context(), Backtest{Rule: *r, Streams: []string{stream}, Since: t0.Add(-time.Hour)})
	if err != nil || got.Errors != 8 || len(got.FirstErrors) != keptErrors {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, f := range got.FirstErrors {
		if !strings.HasPrefix(f.Event, "evt_") || f.Field != "/when" || !strings.Contains(f.Error, "missing") {
			t.Errorf("%+v", f)
		}
	}
}
