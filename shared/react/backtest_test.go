package react

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
)

const second = "clu_00000000000000000000000001"

// fill puts n events, one a millisecond, into a stream.
func (b *bench) fill(stream string, n int, typ string) {
	b.t.Helper()
	var evs []event.Event
	for i := range n {
		evs = append(evs, b.fact(typ, fmt.Sprint(stream[len(stream)-1:], "-", i), nil))
		b.advance(time.Millisecond)
		if len(evs) == 250 || i == n-1 {
			if _, err := event.Append(context.Background(), b.db, stream, evs, nil); err != nil {
				b.t.Fatal(err)
			}
			evs = nil
		}
	}
}

// lasting is a context in which so much time is left whenever it is asked, however
// long the machine takes, and which does not end before the one within.
type lasting struct {
	context.Context
	left time.Duration
}

func (l lasting) Deadline() (time.Time, bool) { return time.Now().Add(l.left), true }

// A test over several streams whose time is up says so, and how far all of them
// were judged; it is no error, and it looks at no further stream.
func TestBacktestWhoseTimeIsUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(stream, 1500, "x.a")
	b.fill(second, 1500, "x.a")
	b.advance(time.Hour)
	b.rule("name: over\non: [x.over]\n")
	rule := alert.Rule{Name: "x", On: []string{"x.a"}, InhibitedBy: []alert.Inhibitor{{Rule: "over"}}} // which cannot be looked up when no time is left
	for _, tt := range []struct {
		name    string
		left    time.Duration
		streams []string
		judged  int64
		through time.Time
	}{
		{"none is left", -time.Second, []string{stream, second}, 0, t0},
		{"the first stream takes it", 900 * time.Millisecond, []string{stream, second}, backtestBatch, t0},
		{"the last stream takes it", 900 * time.Millisecond, []string{stream}, backtestBatch, t0.Add((backtestBatch - 1) * time.Millisecond)},
		{"there is enough", time.Hour, []string{stream, second}, 3000, b.clock()},
	} {
		within := time.Hour
		if tt.left < 0 {
			within = tt.left
		}
		over, cancel := context.WithTimeout(t.Context(), within)
		got, err := b.service.Backtest(lasting{over, tt.left}, Backtest{Rule: rule, Streams: tt.streams, Since: t0})
		cancel()
		if err != nil || got.Complete != (tt.left == time.Hour) || got.Judged != tt.judged || !got.Through.Equal(tt.through) {
			t.Errorf("%s: complete %v, judged %d through %s, %v; want %d through %s", tt.name, got.Complete, got.Judged, got.Through, err, tt.judged, tt.through)
		}
	}
}

// The alerts of all streams are listed in the order in which they began, the first
// ones of all: one stream does not take up the list.
func TestBacktestOfSeveralStreams(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(second, 5, "x.a")
	b.fill(stream, MaxBacktestAlerts+100, "x.a")
	b.advance(time.Minute)
	got, err := b.service.Backtest(t.Context(), Backtest{
		Rule: alert.Rule{Name: "x", On: []string{"x.a"}, GroupBy: map[string]string{"g": "event.subject.name"}}, Streams: []string{stream, second}, Since: t0})
	if err != nil || len(got.Alerts) != MaxBacktestAlerts || !got.More || !got.Complete {
		t.Fatalf("%d alerts, more %v, complete %v, %v", len(got.Alerts), got.More, got.Complete, err)
	}
	for i, a := range got.Alerts {
		if (i < 5) != (a.Stream == second) || i > 0 && a.Since.Before(got.Alerts[i-1].Since) {
			t.Fatalf("alert %d is of stream %s and began at %s", i, a.Stream, a.Since)
		}
	}
}

// What a clock that was ahead wrote is no later than the set-back behind it: neither how
// far a test judged nor where a stream's events begin is in the future.
func TestBacktestOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.follow()
	b.advance(400 * 24 * time.Hour)
	b.fill(stream, backtestBatch, "x.a")
	b.advance(-400*24*time.Hour - backtestBatch*time.Millisecond + time.Minute)
	for range 2 {
		b.follow()
		b.advance(SetBackAfter)
	}
	if n := b.reactor.Metrics.Read().SetBack; n != 1 {
		t.Fatalf("the clock was set back %d times", n)
	}
	to := t0.Add(time.Minute + SetBackAfter)
	b.advance(time.Hour)
	b.fill(stream, 10, "x.a")
	test := func(left time.Duration) Backtested {
		t.Helper()
		got, err := b.service.Backtest(lasting{t.Context(), left}, Backtest{Rule: alert.Rule{Name: "x", On: []string{"x.a"}}, Streams: []string{stream}, Since: t0})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := []EventsFrom{{Stream: stream, At: to}}
	if got := test(900 * time.Millisecond); got.Complete || !got.Through.Equal(to) || !cmp.Equal(got.EventsFrom, want) {
		t.Errorf("time is up: complete %v, through %s, events from %v; want %s", got.Complete, got.Through, got.EventsFrom, to)
	}
	if got := test(time.Hour); !got.Complete || got.Matched != backtestBatch+10 || !got.Through.Equal(b.clock()) {
		t.Errorf("complete %v, %d matched through %s", got.Complete, got.Matched, got.Through)
	}
	if _, _, err := event.Trim(t.Context(), b.db, stream, to.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	want = []EventsFrom{{Stream: stream, At: to.Add(SetBackAfter + time.Hour), Expired: true}}
	if got := test(time.Hour); !cmp.Equal(got.EventsFrom, want) || got.Judged != 10 {
		t.Errorf("what is in front is gone: events from %v, want %v, %d judged", got.EventsFrom, want, got.Judged)
	}
}
