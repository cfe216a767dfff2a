package local

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
)

// stuckLedger is a ledger that does not answer the reactor from some time on, as a
// disk that hangs.
type stuckLedger struct {
	ledger.Ledger
	stuck atomic.Bool
}

func (l *stuckLedger) GetMany(ctx context.Context, keys []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	if l.stuck.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.Ledger.GetMany(ctx, keys)
}

// TestWatchdog: a reactor that hangs and a sweep that does not come round are told
// and make the engine unready; a stream that cannot be judged is told and does not.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	var l *stuckLedger
	var log bytes.Buffer
	s := newSite(t, t.TempDir(), func(e *Engine) {
		l = &stuckLedger{Ledger: e.ledger}
		e.Reactor.Store = &record.Store{Ledger: l, Now: e.Store.Now, Timing: e.Store.Timing}
		poison(t, e, "clu_poisoned")
	})
	logger := slog.New(slog.NewTextHandler(&log, nil))
	told := func(after time.Duration) string {
		log.Reset()
		e := &Engine{Reactor: s.Reactor, opts: Options{Logger: logger}}
		e.swept.Store(s.swept.Load())
		e.pulse.at = s.reactorSince()
		e.pulse.judged = s.Reactor.Metrics.Read().Judged
		e.behind.since = s.since()
		e.watch(time.Now().Add(after))
		return log.String()
	}
	s.wait("a stream is behind", time.Minute, func() bool { return len(s.since()) == 1 })
	if got := told(0); got != "" {
		t.Errorf("told at once: %s", got)
	}
	began := s.reactorSince()
	s.wait("the reactor lives without events", time.Minute, func() bool { return s.reactorSince().After(began) })
	if got := told(31 * time.Second); !strings.Contains(got, "streams=1") {
		t.Errorf("of the stream is told %q", got)
	}
	l.stuck.Store(true)
	s.ask(1)
	s.wait("the reactor hangs", time.Minute, func() bool { return time.Since(s.reactorSince()) > 3*time.Second })
	if err := s.ready(t.Context()); err != nil {
		t.Errorf("unready too soon: %v", err)
	}
	after := watchdogAfter - 2*time.Second
	if got := told(after); !strings.Contains(got, "part=reactor") {
		t.Errorf("of the reactor is told %q", got)
	}
	s.stop()
	s.swept.Store(time.Now().Add(-time.Minute).UnixMilli())
	if q := s.silent(time.Now()); len(q) == 0 || q[0].part != "sweep" {
		t.Errorf("silent are %+v", q)
	}
}

// since are the streams that are behind, and since when.
func (s *site) since() map[string]time.Time {
	s.behind.mu.Lock()
	defer s.behind.mu.Unlock()
	out := map[string]time.Time{}
	for k, v := range s.behind.since {
		out[k] = v
	}
	return out
}

// TestUnreadyWhenSilent: /readyz says what is silent.
func TestUnreadyWhenSilent(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	if err := e.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.pulse.at = time.Now().Add(-31 * time.Second)
	if err := e.ready(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "the reactor has been silent for 3") {
		t.Errorf("silent reactor: %v", err)
	}
	e.reactorLives()
	e.swept.Store(time.Now().Add(-31 * time.Second).UnixMilli())
	if err := e.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "the sweep has been silent for 3") {
		t.Errorf("silent sweep: %v", err)
	}
}

func newEngine(t *testing.T) *Engine {
	t.Helper()
	e, err := New(t.Context(), Options{Data: t.TempDir(), Timing: fast, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if _, _, err := e.AdminToken(t.Context()); err != nil { // before there is another token
		t.Fatal(err)
	}
	return e
}

// exposition reads /metrics as an administrator.
func (e *Engine) exposition(t *testing.T) string {
	t.Helper()
	token, _, err := e.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("metrics: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// TestEventMetrics: what an agent sends, what is lost of it, what the rules make
// of it and how long that took are in the exposition.
func TestEventMetrics(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	ctx := t.Context()
	c, err := e.Registry.Create(ctx, PlaneCall(), "small")
	if err != nil {
		t.Fatal(err)
	}
	hb, err := e.Agents.Heartbeat(ctx, c.Cluster.ID, protocol.Heartbeat{Name: "a", Boot: "boot", Version: "v1", SentAt: time.Now(), Capacity: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range []alert.Rule{
		{Name: "fails", On: []string{"device.degraded"}, When: "event.detail.missing == 1"},
		{Name: "at-once", On: []string{"device.degraded"}, GroupBy: map[string]string{"device": "event.subject.id"}}, // the one that ships waits
	} {
		if _, err := e.Alerts.CreateRule(ctx, PlaneCall(), rule); err != nil {
			t.Fatal(err)
		}
	}
	degraded := func(n int64, ago time.Duration) protocol.Event {
		return protocol.Event{N: n, Type: "device.degraded", At: time.Now().Add(-ago),
			Subject: protocol.Subject{Kind: "device", UID: "GPU-" + strconv.FormatInt(n, 10), Name: "gpu"}}
	}
	bad := degraded(6, 0)
	bad.Type = "no type"
	req := protocol.EventsRequest{AgentID: hb.AgentID, Boot: "boot", Events: []protocol.Event{degraded(1, 0), degraded(5, 10*time.Minute), bad}}
	for range 2 {
		if _, err := e.Agents.Events(ctx, c.Cluster.ID, req); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Reactor.Follow(ctx, c.Cluster.ID); err != nil {
		t.Fatal(err)
	}
	text := e.exposition(t)
	for name, want := range map[string]float64{
		"events_in_total": 2, "events_resent_total": 3, "events_refused_total": 1, "event_gaps_total": 1, "events_missing_total": 3, "events_clock_ahead_total": 0,
		"events_late_total": 1, "events_unjudged_total": 0, "rule_matches_total": 6, "rule_errors_total": 2, `rule_failures_total{rule="fails"}`: 2, "rule_faults_total": 0, "stream_clocks_set_back_total": 0,
		`alerts_told_total{type="alert.firing"}`: 3, `alerts_told_total{type="alert.resolved"}`: 0,
		`alert_latency_seconds_bucket{le="300"}`: 2, "alert_latency_seconds_count": 3, "reactor_streams_behind": 0,
	} {
		m := regexp.MustCompile(`(?m)^opsplane_` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
		if m == nil {
			t.Errorf("no %s", name)
			continue
		}
		if got, err := strconv.ParseFloat(m[1], 64); err != nil || got != want {
			t.Errorf("%s is %v, want %v", name, m[1], want)
		}
	}
	if got, _, err := e.Alerts.Alerts(ctx, react.Filter{States: []alert.State{alert.Firing}}, "", 10); err != nil || len(got) != 3 {
		t.Errorf("%d alerts, %v", len(got), err)
	}
}
