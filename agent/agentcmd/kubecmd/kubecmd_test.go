package kubecmd

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/agent/agentcmd"
)

// The executor opens whatever its API server does, counts what it asked, and says
// in its health why it cannot work.
func TestOpen(t *testing.T) {
	asked := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		http.Error(w, "away", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}]}`, server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k := Kind()
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	check, open := k.Flags(fs)
	if err := fs.Parse([]string{"--kubeconfig", path}); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	o, err := open(agentcmd.Env{Version: "v1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	<-asked
	h, ok := o.Executor.(agentcmd.Healthy)
	if !ok || h.Healthy() == nil {
		t.Error("the executor is well without an API server")
	}
	reg := prometheus.NewRegistry()
	for _, c := range o.Collectors {
		if err := reg.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	for counted := false; !counted; { // the request is counted once its answer is read
		<-asked
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					counted = counted || f.GetName() == "opsplane_agent_kube_requests_total" && l.GetName() == "code" && l.GetValue() == "503" && m.GetCounter().GetValue() > 0
				}
			}
		}
	}
}

// Credentials that are not there are said at once.
func TestOpenWithoutCredentials(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for args, says := range map[string]string{"": "no kubeconfig is named", "--kubeconfig=/nonexistent": "read kubeconfig"} {
		fs := flag.NewFlagSet("test", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		_, open := Kind().Flags(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if _, err := open(agentcmd.Env{Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
