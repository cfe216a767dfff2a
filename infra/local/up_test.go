package local

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/notify"
)

// TestRefusedStarts leave nothing behind and show no token.
func TestRefusedStarts(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	const free = "127.0.0.1:0"
	for name, o := range map[string]Options{
		"not loopback": {Addr: "0.0.0.0:0"},
		"taken":        {Addr: taken.Addr().String()},
		"no address":   {Addr: "nonsense"},
		"half a pair":  {Addr: free, TLSCert: junk},
		"a bad pair":   {Addr: free, TLSCert: junk, TLSKey: junk},
		"no pair":      {Addr: free, TLSCert: junk + "x", TLSKey: junk},
		"bad OIDC":     {Addr: free, OIDC: &auth.OIDCConfig{}},
	} {
		o.Data, o.Logger = filepath.Join(t.TempDir(), "data"), quiet
		var out bytes.Buffer
		if err := Up(t.Context(), o, false, &out); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(o.Data); !os.IsNotExist(err) || out.Len() > 0 {
			t.Errorf("%s: folder %v, output %q", name, err, out.String())
		}
	}
}

func TestWorkloadMetrics(t *testing.T) {
	t.Parallel()
	e, err := New(t.Context(), Options{Data: filepath.Join(t.TempDir(), "data"), Timing: fast, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	token, _, err := e.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Registry.Create(t.Context(), PlaneCall(), "small"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Receivers.Create(t.Context(), PlaneCall(), notify.Spec{Name: "hook", Kind: notify.KindWebhook, URL: "https://example.com"}); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	b, _ := io.ReadAll(w.Body)
	for _, line := range []string{`opsplane_operations_live{phase="running"} 0`, `opsplane_queue_depth{cluster="small"} 0`,
		`opsplane_agents_online{cluster="small"} 0`, "opsplane_dead_letters 0", "opsplane_notify_superseded_total 0", `opsplane_notify_oldest_waiting_seconds{receiver="hook"} 0`} {
		if !strings.Contains(string(b), line+"\n") {
			t.Errorf("%d: no %s in %.300s", w.Code, line, b)
		}
	}
}
