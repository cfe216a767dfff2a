package local

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// TestJudgesOver: whoever wants a stream while it is judged is served: at once, or
// later when judging it fails.
func TestJudgesOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                  string
		wanted, failed        bool
		again, later, busyYet bool
	}{
		{"it was judged", false, false, false, false, false},
		{"it was judged, and wanted meanwhile", true, false, true, false, true},
		{"it failed", false, true, false, false, false},
		{"it failed, and was wanted meanwhile", true, true, false, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j := newJudges()
			begun := 0
			j.begin = func(string) { begun++ }
			j.want("clu_a")
			if tt.wanted {
				j.want("clu_a")
			}
			again, later := j.over("clu_a", tt.failed, false)
			if _, busy := j.busy["clu_a"]; again != tt.again || later != tt.later || busy != tt.busyYet || begun != 1 {
				t.Errorf("again %t, later %t, busy %t, begun %d", again, later, busy, begun)
			}
		})
	}
}

// failing is the reactor's ledger, which answers at once that it cannot.
type failing struct {
	ledger.Ledger
	fails atomic.Bool
	asked func()
}

func (l *failing) GetMany(ctx context.Context, keys []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	if l.asked != nil {
		l.asked()
	}
	if l.fails.Load() {
		return nil, fmt.Errorf("%w: a disk that is broken", ledger.ErrUnavailable)
	}
	return l.Ledger.GetMany(ctx, keys)
}

// failingEngine is an engine that does not run, and whose reactor's ledger fails.
func failingEngine(t *testing.T) (*Engine, *failing) {
	t.Helper()
	e := newEngine(t)
	l := &failing{Ledger: e.ledger}
	l.fails.Store(true)
	e.Reactor.Store = &record.Store{Ledger: l, Now: e.Store.Now, Timing: e.Store.Timing}
	return e, l
}

// TestNothingJudgedIsSilence: a reactor that can judge no stream, though none hangs,
// is silent; one that can judge one of two is not.
func TestNothingJudgedIsSilence(t *testing.T) {
	t.Parallel()
	e, l := failingEngine(t)
	old := time.Now().Add(-31 * time.Second)
	e.pulse.at = old
	judge := func(want bool) {
		t.Helper()
		e.judges.slots <- struct{}{}
		if failed, hung := e.judgeOnce(t.Context(), event.PlaneStream); failed != want || hung {
			t.Fatalf("failed %t, hung %t", failed, hung)
		}
	}
	judge(true)
	e.feedLives()
	if at := e.reactorSince(); !at.Equal(old) {
		t.Errorf("it lives since %s though nothing was judged", at)
	}
	if err := e.ready(t.Context()); err == nil {
		t.Error("ready, though nothing is judged")
	}
	e.behind.add("clu_poisoned")
	l.fails.Store(false)
	judge(false)
	if at := e.reactorSince(); !at.After(old) {
		t.Errorf("it lives since %s though a stream was judged", at)
	}
	if err := e.ready(t.Context()); err != nil {
		t.Errorf("unready though a stream was judged: %v", err)
	}
}

// TestWantedWhileItFailed: a stream that is wanted while judging it fails, after it was
// noted to be tried again and taken for that, is noted again.
func TestWantedWhileItFailed(t *testing.T) {
	t.Parallel()
	e, l := failingEngine(t)
	done := make(chan struct{})
	e.judges.begin = func(stream string) {
		go func() {
			defer close(done)
			e.judge(t.Context(), stream)
		}()
	}
	l.asked = func() { // as the loop does which tries again
		e.judges.want(event.PlaneStream)
	}
	e.opts.Logger = taking(func() { e.behind.take() })
	e.judges.want(event.PlaneStream)
	<-done
	if !e.behind.has(event.PlaneStream) {
		t.Error("nobody tries it again")
	}
}

// taking is a logger that calls before each line, at which point nothing else has
// been noted of a failure.
func taking(call func()) *slog.Logger { return slog.New(lines(call)) }

type lines func()

func (l lines) Enabled(context.Context, slog.Level) bool  { return true }
func (l lines) Handle(context.Context, slog.Record) error { l(); return nil }
func (l lines) WithAttrs([]slog.Attr) slog.Handler        { return l }
func (l lines) WithGroup(string) slog.Handler             { return l }

// TestAClockThatWentBack: a clock that is set back has all streams looked at, once; one
// that stands still for a moment, or is set forward, has not.
func TestAClockThatWentBack(t *testing.T) {
	t.Parallel()
	var w wall
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for i, c := range []struct {
		by   time.Duration
		want bool
	}{{0, false}, {time.Second, false}, {2 * time.Hour, false}, {-2 * time.Hour, true}, {2 * time.Second, false}, {-time.Minute, false}, {-61 * time.Second, true}, {time.Second, false}} {
		if now = now.Add(c.by); w.wentBack(now) != c.want {
			t.Errorf("look %d, by %s: %v", i, c.by, !c.want)
		}
	}
}
