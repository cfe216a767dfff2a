package local

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
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
