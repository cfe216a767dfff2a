package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/record"
)

// TestReceiversOfTheEngine: what happens in a cluster is told by a webhook and to an
// Alertmanager; an engine that is stopped while a receiver keeps it waiting stops,
// and the next one tells under the same id.
func TestReceiversOfTheEngine(t *testing.T) {
	t.Parallel()
	var (
		mu     sync.Mutex
		hooks  []string // type and webhook-id
		pushed []string
		hang   = true
	)
	stuck := make(chan struct{}, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/api/v2/alerts" {
			pushed = append(pushed, string(b))
			return
		}
		var m notify.Message
		if err := json.Unmarshal(b, &m); err != nil {
			t.Errorf("body %s: %v", b, err)
		}
		hooks = append(hooks, m.Type+" "+r.Header.Get("webhook-id"))
		if hang {
			mu.Unlock()
			stuck <- struct{}{}
			<-r.Context().Done()
			mu.Lock()
		}
	}))
	defer srv.Close()
	dir := t.TempDir()
	allow := func(e *Engine) { e.Receivers.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	s := newSite(t, dir, allow)
	ctx := t.Context()
	for _, sp := range []notify.Spec{
		{Name: "hook", Kind: notify.KindWebhook, URL: srv.URL + "/hook", Timeout: alert.Duration(notify.MaxTimeout)},
		{Name: "am", Kind: notify.KindAlertmanager, URLs: []string{srv.URL}},
	} {
		if _, _, err := s.Receivers.Create(ctx, PlaneCall(), sp); err != nil {
			t.Fatal(err)
		}
	}
	rule := alert.Rule{Name: "cordoned", On: []string{"operation.succeeded"}, When: `operation.type == "node.cordon"`, ResolveAfter: alert.Duration(time.Second)}
	if _, err := s.Alerts.CreateRule(ctx, PlaneCall(), rule); err != nil {
		t.Fatal(err)
	}
	s.finish(s.ask(1)...)
	select {
	case <-stuck:
	case <-time.After(time.Minute):
		t.Fatal("the webhook was not called")
	}
	s.wait("the Alertmanager knows", time.Minute, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(pushed) > 0 && strings.Contains(pushed[0], `"alertname":"cordoned"`)
	})
	began := time.Now()
	s.stop()
	if took := time.Since(began); took >= notify.MaxTimeout { // one that waits for the answer takes no less
		t.Errorf("it stopped after %s", took)
	}
	mu.Lock()
	hang = false
	first := hooks[0]
	mu.Unlock()
	s = newSite(t, dir, allow)
	r, err := s.Receivers.Receiver(ctx, "hook")
	if err != nil {
		t.Fatal(err)
	}
	s.wait("both transitions are delivered", time.Minute, func() bool {
		d, _, err := s.Receivers.Deliveries(ctx, r.ID, notify.Delivered, record.Span{Limit: 10})
		return err == nil && len(d) == 2
	})
	mu.Lock()
	defer mu.Unlock()
	again, resolved := false, false
	for _, h := range hooks[1:] {
		again = again || h == first
		resolved = resolved || strings.HasPrefix(h, alert.TypeResolved)
	}
	if !again || !resolved || !strings.HasPrefix(first, alert.TypeFiring) {
		t.Errorf("told %v", hooks)
	}
}

// TestStopOfTheEngine: what a webhook is being told when the engine is stopped is answered yet, and
// told once.
func TestStopOfTheEngine(t *testing.T) {
	t.Parallel()
	asked, answers := make(chan struct{}, 100), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else its end is not seen
		asked <- struct{}{}
		select {
		case <-answers:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	dir := t.TempDir()
	allow := func(e *Engine) { e.Receivers.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	s := newSite(t, dir, allow)
	ctx := t.Context()
	hook, _, err := s.Receivers.Create(ctx, PlaneCall(), notify.Spec{Name: "hook", Kind: notify.KindWebhook, URL: srv.URL, Timeout: alert.Duration(notify.MaxTimeout)})
	if err != nil {
		t.Fatal(err)
	}
	rule := alert.Rule{Name: "cordoned", On: []string{"operation.succeeded"}, When: `operation.type == "node.cordon"`, ResolveAfter: alert.Duration(time.Hour)}
	if _, err := s.Alerts.CreateRule(ctx, PlaneCall(), rule); err != nil {
		t.Fatal(err)
	}
	s.finish(s.ask(1)...)
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Fatal("the webhook was not called")
	}
	stopped := make(chan struct{})
	go func() {
		s.stop()
		close(stopped)
	}()
	s.wait("nothing more is sent", time.Minute, func() bool {
		s.lanes.mu.Lock()
		defer s.lanes.mu.Unlock()
		return s.lanes.serves == nil
	})
	close(answers)
	<-stopped
	s = newSite(t, dir, allow)
	d, _, err := s.Receivers.Deliveries(ctx, hook.ID, "", record.Span{Limit: 10})
	if err != nil || len(d) != 1 || d[0].State != notify.Delivered || d[0].Tries != 1 || len(asked) > 0 {
		t.Errorf("told %d times more: %+v, %v", len(asked), d, err)
	}
}

// TestLaneOfTheDead: a lane that a killed process held is served at once by the next.
func TestLaneOfTheDead(t *testing.T) {
	t.Parallel()
	told := make(chan struct{}, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { told <- struct{}{} }))
	defer srv.Close()
	s := newSite(t, t.TempDir(), func(e *Engine) {
		e.Receivers.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		ctx := t.Context()
		r, _, err := e.Receivers.Create(ctx, PlaneCall(), notify.Spec{Name: "hook", Kind: notify.KindWebhook, URL: srv.URL})
		if err != nil {
			t.Fatal(err)
		}
		it, err := e.Store.Ledger.Get(ctx, record.LaneKey(r.ID))
		if err != nil {
			t.Fatal(err)
		}
		until := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
		held := ledger.Item{Key: it.Key, Data: record.Encode(map[string]any{"holder": "dead", "lease": until}), Due: until}
		if err := e.Store.Ledger.Commit(ctx, ledger.Write{Expect: it.Version, WasDue: it.Due, Item: held}); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := s.Alerts.CreateRule(t.Context(), PlaneCall(), alert.Rule{Name: "cordoned", On: []string{"operation.succeeded"}}); err != nil {
		t.Fatal(err)
	}
	s.finish(s.ask(1)...)
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Fatal("the webhook was not called")
	}
}

// refusing is the receivers' ledger, which answers by stream.
type refusing struct {
	ledger.Ledger
	errs map[string]error
}

func (l refusing) GetMany(ctx context.Context, keys []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	for stream, err := range l.errs {
		if slices.Contains(keys, record.ToldKey(stream)) {
			return nil, fmt.Errorf("read: %w", err)
		}
	}
	return l.Ledger.GetMany(ctx, keys)
}

// TestALostRaceIsNoError: a stream that could not be told since another wrote first is
// tried again, and nobody is alarmed; what else fails is logged as an error, also
// beside lost races.
func TestALostRaceIsNoError(t *testing.T) {
	t.Parallel()
	lost, broken := &ledger.ConflictError{}, fmt.Errorf("%w: a disk that is broken", ledger.ErrUnavailable)
	for _, tt := range []struct {
		name  string
		errs  map[string]error
		level string // "": nothing is logged
	}{
		{"none", nil, ""},
		{"lost", map[string]error{"clu_a": lost, "clu_b": lost}, "DEBUG"},
		{"broken", map[string]error{"clu_a": broken}, "ERROR"},
		{"one of each", map[string]error{"clu_a": lost, "clu_b": broken}, "ERROR"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			var log bytes.Buffer
			e.opts.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			e.Receivers.Store = &record.Store{Ledger: refusing{e.ledger, tt.errs}, Now: e.Store.Now, Timing: e.Store.Timing}
			var changes []ledger.Change
			for _, stream := range []string{"clu_a", "clu_b"} {
				changes = append(changes, ledger.Change{Key: record.StreamHeadKey(stream)})
			}
			if err := e.notify(t.Context(), changes); err != nil {
				t.Fatal(err)
			}
			if again := e.untold.take(); len(again) != len(tt.errs) {
				t.Errorf("%v are tried again", again)
			}
			if got := log.String(); tt.level == "" && got != "" || tt.level != "" && (strings.Count(got, "\n") != 1 || !strings.Contains(got, `"level":"`+tt.level+`"`)) {
				t.Errorf("logged %s", got)
			}
		})
	}
}
