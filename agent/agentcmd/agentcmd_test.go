package agentcmd

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

func TestUsage(t *testing.T) {
	t.Setenv(TokenEnv, "opt_test")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no plane", nil, exitUsage, "--plane"},
		{"unknown flag", []string{"--token", "x"}, exitUsage, "not defined"},
		{"argument", []string{"--plane", "https://p", "x"}, exitUsage, "unexpected"},
		{"concurrency", []string{"--plane", "https://p", "--concurrency", "0"}, exitUsage, "concurrency"},
		{"token in the clear", []string{"--plane", "http://plane.example", "--sim-state", "x"}, exitUsage, "--insecure"},
		{"token in the clear by address", []string{"--plane", "HTTP://10.0.0.1:80", "--sim-state", "x"}, exitUsage, "--insecure"},
		{"a name like the loopback's", []string{"--plane", "http://localhost.example", "--sim-state", "x"}, exitUsage, "--insecure"},
		{"insecure", []string{"--plane", "http://plane.example", "--insecure"}, exitUsage, "--sim-state"},
		{"loopback", []string{"--plane", "http://localhost:1"}, exitUsage, "--sim-state"},
		{"loopback IPv4", []string{"--plane", "http://127.0.0.2:1"}, exitUsage, "--sim-state"},
		{"loopback IPv6", []string{"--plane", "http://[::1]:1"}, exitUsage, "--sim-state"},
		{"no region", []string{"--plane", "https://p", "--aws-region", "Frankfurt"}, exitUsage, "--aws-region"},
		{"too much concurrency", []string{"--plane", "https://p", "--concurrency", "10001"}, exitUsage, "10000"},
		{"no stop grace", []string{"--plane", "https://p", "--stop-grace", "0s"}, exitUsage, "--stop-grace"},
		{"no port to listen on", []string{"--plane", "https://p", "--listen", "localhost"}, exitUsage, "host:port"},
		{"a port past the last", []string{"--plane", "https://p", "--listen", ":65536"}, exitUsage, "65535"},
		{"a long name", []string{"--plane", "https://p", "--name", strings.Repeat("a", 254)}, exitUsage, "253"},
		{"help", []string{"--help"}, exitOK, "token-file"},
		{"version", []string{"--version"}, exitOK, "opsplane-agent"},
		{"kube", []string{"--plane", "https://p", "--executor", "kube"}, exitUsage, "not built into this agent"},
		{"no sim state", []string{"--plane", "https://p"}, exitUsage, "--sim-state"},
		{"no token file", []string{"--plane", "https://p", "--sim-state", "x", "--token-file", "/nonexistent"}, exitFailed, "read token"},
		{"empty token file", []string{"--plane", "https://p", "--sim-state", "x", "--token-file", empty}, exitFailed, "one token"},
		{"credential in URL", []string{"--plane", "https://u:p@p", "--sim-state", t.TempDir()}, exitFailed, "credential"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			if code := Main(t.Context(), tc.args, strings.NewReader(""), &out, Sim()); code != tc.code || !strings.Contains(out.String(), tc.says) {
				t.Errorf("code %d, says %s", code, out.String())
			}
		})
	}
}

// The agent starts with a simulated cluster, and stops when its parent's pipe ends.
func TestParentPipe(t *testing.T) {
	t.Setenv(TokenEnv, "opt_test")
	beats := make(chan protocol.Heartbeat, 100)
	plane := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/agent/heartbeat":
			var hb protocol.Heartbeat
			_ = json.NewDecoder(r.Body).Decode(&hb)
			beats <- hb
			_ = json.NewEncoder(w).Encode(protocol.HeartbeatAnswer{AgentID: "agt_1", Cluster: "clu_1", LeaseMS: 15000, CallDeadlineMS: 10000})
		case "/v1/agent/queue/receive":
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done() // a long poll
		default:
			http.NotFound(w, r)
		}
	}))
	defer plane.Close()
	r, w := io.Pipe()
	code := make(chan int)
	var log strings.Builder
	go func() {
		code <- Main(context.Background(), []string{"--plane", plane.URL, "--name", "a1", "--sim-state", t.TempDir(), "--state-dir", t.TempDir(), "--parent-pipe"}, r, &log, Sim())
	}()
	if hb := <-beats; hb.Name != "a1" || hb.Boot == "" || len(hb.Capabilities) == 0 || hb.Stopping {
		t.Errorf("first heartbeat %+v", hb)
	}
	_ = w.Close()
	select {
	case c := <-code:
		if c != exitOK {
			t.Errorf("exit code %d: %s", c, log.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the agent did not stop")
	}
	last := protocol.Heartbeat{}
	for len(beats) > 0 {
		last = <-beats
	}
	if !last.Stopping {
		t.Error("no last heartbeat")
	}
	if strings.Contains(log.String(), "opt_test") {
		t.Error("the token is in the log")
	}
}

func TestRefusedToken(t *testing.T) {
	t.Setenv(TokenEnv, "opt_test")
	plane := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"detail":"no such token"}`, http.StatusUnauthorized)
	}))
	defer plane.Close()
	var log strings.Builder
	if code := Main(t.Context(), []string{"--plane", plane.URL, "--sim-state", t.TempDir()}, nil, &log, Sim()); code != exitRefused {
		t.Errorf("exit code %d: %s", code, log.String())
	}
}
