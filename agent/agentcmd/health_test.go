package agentcmd

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/shared/protocol"
)

// sick is a simulated cluster that can be lost.
type sick struct {
	executor.Executor
	mu    sync.Mutex
	err   error
	lacks string
}

func (s *sick) Lacks() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lacks
}

func (s *sick) setLacks(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lacks = what
}

func (s *sick) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *sick) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// kind offers the executor, with a metric and a flag of its own.
func (s *sick) kind(t *testing.T) Kind {
	return Kind{Name: "sick", Flags: func(fs *flag.FlagSet) (func() error, func(Env) (*Opened, error)) {
		fs.String("sick-note", "", "unused")
		return nil, func(env Env) (*Opened, error) {
			e, err := sim.Open(sim.Options{Scenario: "demo/alpha", StateDir: t.TempDir(), Logger: env.Log})
			if err != nil {
				return nil, err
			}
			s.Executor = e
			own := prometheus.NewCounter(prometheus.CounterOpts{Name: "opsplane_sick_total", Help: "Own."})
			return &Opened{Executor: s, Close: func() { _ = e.Close() }, Collectors: []prometheus.Collector{own}}, nil
		}
	}}
}

// beatingPlane answers heartbeats as long as it is up.
type beatingPlane struct {
	mu sync.Mutex
	up bool
}

func (p *beatingPlane) setUp(up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up = up
}

func (p *beatingPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	p.mu.Lock()
	up := p.up
	p.mu.Unlock()
	switch {
	case !up:
		http.Error(w, "away", http.StatusServiceUnavailable)
	case r.URL.Path == "/v1/agent/heartbeat":
		_ = json.NewEncoder(w).Encode(protocol.HeartbeatAnswer{AgentID: "agt_1", Cluster: "clu_1", LeaseMS: 15000, CallDeadlineMS: 10000, HeartbeatMS: 1000})
	case r.URL.Path == "/v1/agent/queue/receive":
		select {
		case <-r.Context().Done():
		case <-time.After(100 * time.Millisecond):
		}
		_, _ = io.WriteString(w, `{"messages":[]}`)
	default:
		http.NotFound(w, r)
	}
}

// The agent's own endpoints: ready once the plane and the executor answer, not
// ready while one of them does not, alive all the time; every metric is there.
func TestHealth(t *testing.T) {
	t.Setenv(TokenEnv, "opt_test")
	p := &beatingPlane{}
	plane := httptest.NewServer(p)
	defer plane.Close()
	s := &sick{}
	stdin, stop := io.Pipe()
	var log syncBuffer
	code := make(chan int)
	go func() {
		code <- Main(t.Context(), []string{"--plane", plane.URL, "--name", "a1", "--executor", "sick", "--listen", "127.0.0.1:0", "--parent-pipe"},
			stdin, &log, Sim(), s.kind(t))
	}()
	address := regexp.MustCompile(`"health and metrics are served","agent_name":"a1","address":"([^"]+)"`)
	eventually(t, "the listener's address in the log", func() bool { return address.MatchString(log.String()) })
	base := "http://" + address.FindStringSubmatch(log.String())[1]
	get := func(path string) (int, string) {
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	readyz := func(status int, says string) func() bool {
		return func() bool {
			got, body := get("/readyz")
			return got == status && strings.Contains(body, says)
		}
	}
	if got, body := get("/readyz"); got != http.StatusServiceUnavailable || !strings.Contains(body, "the plane has not answered yet") {
		t.Errorf("before the first heartbeat: %d %s", got, body)
	}
	p.setUp(true)
	eventually(t, "ready", readyz(http.StatusOK, `"cluster": "clu_1"`))
	s.setLacks("the right to create events")
	eventually(t, "ready, with what it lacks", readyz(http.StatusOK, `"detail": "the right to create events"`))
	s.setLacks("")
	eventually(t, "the queue heard", readyz(http.StatusOK, `"queue": {
    "ok": true`))

	s.set(errors.New("API server: token=opt_secret refused"))
	eventually(t, "not ready without the executor", readyz(http.StatusServiceUnavailable, "API server"))
	if _, body := get("/readyz"); strings.Contains(body, "opt_secret") || strings.Contains(body, `"code"`) {
		t.Errorf("a secret, or a name for a reason that has none, in %s", body)
	}
	s.set(errors.Join(errors.New("one thing"), fmt.Errorf("another: %w", away{})))
	eventually(t, "the reason's name", readyz(http.StatusServiceUnavailable, `"code": "api_unavailable"`))
	if got, body := get("/healthz"); got != http.StatusOK {
		t.Errorf("not alive: %d %s", got, body)
	}
	_, metrics := get("/metrics")
	if !strings.Contains(metrics, "opsplane_agent_executor_up 0") {
		t.Error("the metrics do not tell of the executor")
	}
	s.set(nil)
	eventually(t, "ready again", readyz(http.StatusOK, ""))

	p.setUp(false)
	eventually(t, "not ready without the plane", readyz(http.StatusServiceUnavailable, "the plane has not answered for"))
	if got, body := get("/healthz"); got != http.StatusOK {
		t.Errorf("the plane's silence kills the agent: %d %s", got, body)
	}
	p.setUp(true)
	eventually(t, "ready once more", readyz(http.StatusOK, ""))

	_, metrics = get("/metrics")
	want := []string{`opsplane_agent_info{agent_name="a1",executor="sick",version="`, "opsplane_sick_total 0", "go_goroutines", "process_open_fds", "opsplane_agent_executor_up 1"}
	for _, m := range plain {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(m.desc.String())[1]
		want = append(want, "\n"+name+" ")
	}
	for _, w := range want {
		if !strings.Contains(metrics, w) {
			t.Errorf("the metrics lack %q", w)
		}
	}
	for path, status := range map[string]int{"/": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound} {
		if got, _ := get(path); got != status {
			t.Errorf("%s: %d", path, got)
		}
	}
	if resp, err := http.Post(base+"/healthz", "text/plain", nil); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v %v", resp, err)
	}
	_ = stop.Close()
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, log.String())
	}
	if _, err := http.Get(base + "/healthz"); err == nil {
		t.Error("it listens after its end")
	}
}

// Every metric is in the docs, by its full name or by what follows the prefix.
func TestDocsNameEveryMetric(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../infra/docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	descs := []*prometheus.Desc{ended, steps, effects, executes}
	for _, m := range plain {
		descs = append(descs, m.desc)
	}
	for _, d := range descs {
		name := regexp.MustCompile(`fqName: "opsplane_agent(_[^"]+)"`).FindStringSubmatch(d.String())[1]
		if !regexp.MustCompile("`(opsplane_agent)?" + name + "[`{]").Match(doc) {
			t.Errorf("infra/docs/kubernetes.md does not name opsplane_agent%s", name)
		}
	}
}

// Loops that hang make the agent's life end, and say which.
func TestStuckIsNotAlive(t *testing.T) {
	t.Parallel()
	h := &health{status: func() loop.Status { return loop.Status{Stuck: []string{"heartbeat"}} }}
	w := httptest.NewRecorder()
	h.live(w, nil)
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "heartbeat") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Probes do not load the executor: it is asked once in a while.
func TestHealthIsAskedNowAndThen(t *testing.T) {
	t.Parallel()
	now, asked := time.Now(), 0
	h := &health{executor: asks(func() error { asked++; return nil }), now: func() time.Time { return now }, within: time.Minute}
	for range 10 {
		_ = h.works()
	}
	now = now.Add(checkEvery)
	_ = h.works()
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}

// An executor that does not answer is not well, and is not asked ever more.
func TestHealthWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	release, asked := make(chan struct{}), 0
	h := &health{executor: asks(func() error { asked++; <-release; return nil }), within: time.Millisecond,
		now: func() time.Time { return time.Time{} }} // never checked lately
	for range 3 {
		if err := h.works(); err == nil || !strings.Contains(err.Error(), "does not say") {
			t.Errorf("well: %v", err)
		}
	}
	close(release)
	h.within = time.Minute
	if err := h.works(); err != nil {
		t.Errorf("not well: %v", err)
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// away is a reason with a name.
type away struct{}

func (away) Error() string { return "away" }
func (away) Code() string  { return "api_unavailable" }

type asks func() error

func (f asks) Healthy() error { return f() }

func TestPlanePart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		heard    time.Duration
		stopping bool
		ok       bool
	}{{-1, false, false}, {0, false, true}, {18 * time.Second, false, true}, {19 * time.Second, false, false}, {0, true, false}} {
		if p := planePart(loop.Status{Heard: tc.heard, HeartbeatEvery: 5 * time.Second, Stopping: tc.stopping}); p.OK != tc.ok || (p.Detail == "") != tc.ok {
			t.Errorf("%+v: %+v", tc, p)
		}
	}
}

// Flags belong to one executor; those of another are refused, not ignored.
func TestFlagsOfAnotherExecutor(t *testing.T) {
	t.Setenv(TokenEnv, "opt_test")
	s := &sick{}
	for _, tc := range []struct {
		name string
		args []string
		says string
	}{
		{"another's", []string{"--executor", "sim", "--sim-state", "x", "--sick-note", "y"}, "--sick-note is a flag of --executor sick, and this is sim"},
		{"none named", nil, "--executor is needed: one of sick, sim"},
		{"unknown", []string{"--executor", "kube"}, "it has: sick, sim"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			if code := Main(t.Context(), append([]string{"--plane", "https://p"}, tc.args...), nil, &out, Sim(), s.kind(t)); code != exitUsage || !strings.Contains(out.String(), tc.says) {
				t.Errorf("code %d, says %s", code, out.String())
			}
		})
	}
}

func TestListenTaken(t *testing.T) {
	t.Setenv(TokenEnv, "opt_test")
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	var out strings.Builder
	code := Main(t.Context(), []string{"--plane", "https://p", "--sim-state", t.TempDir(), "--listen", taken.Listener.Addr().String()}, nil, &out, Sim())
	if code != exitFailed || !strings.Contains(out.String(), "--listen") {
		t.Errorf("code %d, says %s", code, out.String())
	}
}

// A token file is read again; one that is spoilt for a while changes nothing.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("opt_first\n")
	var log syncBuffer
	now := time.Now()
	f := newTokenFile(path, "opt_first", slog.New(slog.NewJSONHandler(&log, nil)))
	f.now = func() time.Time { return now }
	is := func(want string) {
		t.Helper()
		if got := f.current(); got != want {
			t.Errorf("token %q, want %q", got, want)
		}
	}
	write("opt_second\n")
	is("opt_first") // not looked at yet
	now = now.Add(tokenEvery + time.Second)
	is("opt_second")
	for _, spoilt := range []string{"", "two tokens", strings.Repeat("x", maxTokenBytes+1)} {
		write(spoilt)
		now = now.Add(tokenEvery)
		is("opt_second")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	now = now.Add(tokenEvery)
	is("opt_second")
	write("opt_third")
	now = now.Add(tokenEvery)
	is("opt_third")
	if n := strings.Count(log.String(), "cannot be read again"); n != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "opt_") {
		t.Error("a token is in the log")
	}
}
