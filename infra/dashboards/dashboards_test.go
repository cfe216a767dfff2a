// Package dashboards holds a Grafana dashboard, and the test that it asks for
// metrics that there are.
package dashboards

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/agentcmd"
	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/notify"
)

type dashboard struct {
	SchemaVersion int
	UID, Title    string
	Panels        []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
}

var (
	served     = regexp.MustCompile(`"health and metrics are served".*"address":"([^"]+)"`)
	metricName = regexp.MustCompile(`\bopsplane_[a-z_]+`)
	grouped    = regexp.MustCompile(`by \(([a-z]+)\) \((?:rate|increase)?\(?(opsplane_[a-z_]+)`)
)

func read(t *testing.T) dashboard {
	t.Helper()
	raw, err := os.ReadFile("opsplane.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDashboardIsWhole(t *testing.T) {
	t.Parallel()
	d := read(t)
	if d.SchemaVersion < 42 || d.UID == "" || d.Title == "" {
		t.Errorf("schema %d, uid %q, title %q", d.SchemaVersion, d.UID, d.Title)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d %q: an id of its own, a title and something to show are needed", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or beyond the edge", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		for _, q := range p.Targets {
			if strings.Count(q.Expr, "(") != strings.Count(q.Expr, ")") || q.RefID == "" {
				t.Errorf("panel %q asks %q", p.Title, q.Expr)
			}
			for _, m := range regexp.MustCompile(`\{\{([a-z]+)\}\}`).FindAllStringSubmatch(q.LegendFormat, -1) {
				if !strings.Contains(q.Expr, "by ("+m[1]+")") {
					t.Errorf("panel %q names its lines by %s, which %q drops", p.Title, m[1], q.Expr)
				}
			}
		}
	}
}

// TestDashboardAsksForWhatIsThere compares it with what a running plane and a
// running agent tell.
func TestDashboardAsksForWhatIsThere(t *testing.T) {
	t.Parallel()
	told := exposition(t)
	n := 0
	for _, p := range read(t).Panels {
		for _, q := range p.Targets {
			for _, name := range metricName.FindAllString(q.Expr, -1) {
				n++
				if !regexp.MustCompile(`(?m)^` + name + `[ {]`).MatchString(told) {
					t.Errorf("panel %q asks for %s, which nobody tells", p.Title, name)
				}
				rated := strings.Contains(q.Expr, "rate("+name) || strings.Contains(q.Expr, "increase("+name)
				if counts := strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_bucket"); counts != rated {
					t.Errorf("panel %q takes a rate of what does not count, or none of what does: %s", p.Title, q.Expr)
				}
			}
			for _, m := range grouped.FindAllStringSubmatch(q.Expr, -1) {
				if !regexp.MustCompile(`(?m)^` + m[2] + `\{[^}]*\b` + m[1] + `="`).MatchString(told) {
					t.Errorf("panel %q groups %s by %s, which it does not have", p.Title, m[2], m[1])
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("it asks for %d metrics", n)
	}
}

// exposition runs a plane and an agent, has them carry an operation out, and reads
// the metrics of both.
func exposition(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	ctx := t.Context()
	e, err := local.New(ctx, local.Options{Data: filepath.Join(dir, "data"), Addr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	admin, _, err := e.AdminToken(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.Registry.Create(ctx, local.PlaneCall(), "small")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Receivers.Create(ctx, local.PlaneCall(), notify.Spec{Name: "hook", Kind: notify.KindWebhook, URL: "https://example.com"}); err != nil {
		t.Fatal(err)
	}
	token, scenario := filepath.Join(dir, "token"), filepath.Join(dir, "small.yaml")
	for path, text := range map[string]string{token: c.Secret, scenario: "cluster: small\nnodes: [{name: a}]\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := e.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	t.Cleanup(func() {
		stop()
		wg.Wait()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := e.Run(run, l); err != nil {
			t.Error(err)
		}
	})
	plane := "http://" + l.Addr().String()
	said, log := io.Pipe()
	wg.Go(func() {
		defer func() { _ = log.Close() }()
		agentcmd.Main(run, []string{"--plane", plane, "--token-file", token, "--name", "a", "--executor", "sim", "--sim-scenario", scenario,
			"--sim-state", filepath.Join(dir, "sim"), "--listen", "127.0.0.1:0"}, strings.NewReader(""), log, agentcmd.Sim())
	})
	agentAddr := ""
	for lines := bufio.NewScanner(said); agentAddr == "" && lines.Scan(); {
		if m := served.FindStringSubmatch(lines.Text()); m != nil {
			agentAddr = m[1]
		}
	}
	wg.Go(func() { _, _ = io.Copy(io.Discard, said) })
	ask := func(method, url, body string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+admin)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err.Error() // the agent does not listen yet
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	// A rule that fails is told of once it has.
	if status, answer := ask("POST", plane+"/v1/rules", `{"name":"fails","on":["operation.*"],"when":"event.detail.nothing == 1"}`); status != http.StatusCreated {
		t.Fatal(status, answer)
	}
	deadline, asked := time.Now().Add(2*time.Minute), false
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		if !asked {
			status, _ := ask("POST", plane+"/v1/operations", `{"type":"node.cordon","target":"node:a","reason":"a test"}`)
			asked = status/100 == 2
		}
		_, mine := ask("GET", "http://"+agentAddr+"/metrics", "")
		if strings.Contains(mine, `opsplane_agent_runs_ended_total{outcome="succeeded"}`) {
			status, planes := ask("GET", plane+"/metrics", "")
			if status != http.StatusOK {
				t.Fatal(status, planes)
			}
			if !strings.Contains(planes, "opsplane_rule_failures_total") && time.Now().Before(deadline) {
				continue // what happened is not judged yet
			}
			lines := slices.DeleteFunc(strings.Split(planes+"\n"+mine, "\n"), func(s string) bool { return strings.HasPrefix(s, "#") })
			return strings.Join(lines, "\n")
		}
		if time.Now().After(deadline) {
			t.Fatalf("no operation has ended:\n%s", mine)
		}
	}
}
