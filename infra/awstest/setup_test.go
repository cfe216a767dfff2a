//go:build awstest

package awstest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/operation"
)

// root is the repository.
var root = filepath.Join("..", "..")

// env is a variable that package up sets.
func env(tb testing.TB, name string) string {
	tb.Helper()
	v := os.Getenv(name)
	if v == "" {
		tb.Fatalf("%s is not set: these tests run by `make test-aws`", name)
	}
	return v
}

// plane is the deployed product with an administrator's token.
type plane struct {
	rig.Client
	tb    testing.TB
	stage string
}

func deployed(tb testing.TB) *plane {
	tb.Helper()
	return &plane{Client: rig.Client{URL: env(tb, "OPSPLANE_URL"), Token: env(tb, "OPSPLANE_TOKEN")}, tb: tb, stage: env(tb, "OPSPLANE_STAGE")}
}

// as is the plane by another token.
func (p *plane) as(token string) *plane {
	return &plane{Client: rig.Client{URL: p.URL, Token: token}, tb: p.tb, stage: p.stage}
}

func (p *plane) call(method, path string, body any, headers ...string) rig.Answer {
	p.tb.Helper()
	a, err := p.Do(p.tb.Context(), method, path, body, headers...)
	if err != nil {
		p.tb.Fatal(err)
	}
	return a
}

// code is the problem's error code.
func code(a rig.Answer) string {
	var p struct {
		ErrorCode string `json:"error_code"`
	}
	_ = json.Unmarshal(a.Body, &p) // no problem has no code
	return p.ErrorCode
}

// get reads what must be there.
func get[T any](p *plane, path string) T {
	p.tb.Helper()
	var v T
	a := p.call(http.MethodGet, path, nil)
	if a.Status != http.StatusOK {
		p.tb.Fatalf("GET %s: %d %s", path, a.Status, a.Body)
	}
	if err := a.Into(&v); err != nil {
		p.tb.Fatal(err)
	}
	return v
}

// list reads all pages of a list.
func list[T any](p *plane, path string) []T {
	p.tb.Helper()
	u, err := url.Parse(path)
	if err != nil {
		p.tb.Fatal(err)
	}
	q := u.Query()
	q.Set("limit", "200")
	for all := []T(nil); ; {
		u.RawQuery = q.Encode()
		page := get[struct {
			Items      []T     `json:"items"`
			NextCursor *string `json:"next_cursor"`
		}](p, u.String())
		all = append(all, page.Items...)
		if page.NextCursor == nil || len(page.Items) == 0 { // a stream of events always has a next
			return all
		}
		q.Set("cursor", *page.NextCursor)
	}
}

// op is an operation as the API shows it.
type op struct {
	ID          string                 `json:"id"`
	Phase       operation.Phase        `json:"phase"`
	Deadline    time.Time              `json:"deadline"`
	CreatedAt   time.Time              `json:"created_at"`
	FinishedAt  *time.Time             `json:"finished_at"`
	Waiting     *operation.Waiting     `json:"waiting"`
	Assignments []operation.Assignment `json:"assignments"`
	Result      *operation.Result      `json:"result"`
}

// request is the body that creates an operation.
type request struct {
	Type     string         `json:"type"`
	Target   string         `json:"target"`
	Reason   string         `json:"reason"`
	Deadline *time.Time     `json:"deadline,omitempty"`
	Payload  map[string]any `json:"payload,omitempty"`
}

func in(d time.Duration) *time.Time {
	t := time.Now().Add(d).UTC().Truncate(time.Millisecond)
	return &t
}

// create makes an operation that must be accepted.
func (p *plane) create(r request) op {
	p.tb.Helper()
	var o op
	a := p.call(http.MethodPost, "/v1/operations", r)
	if a.Status != http.StatusAccepted {
		p.tb.Fatalf("create %s of %s: %d %s", r.Type, r.Target, a.Status, a.Body)
	}
	if err := a.Into(&o); err != nil {
		p.tb.Fatal(err)
	}
	return o
}

// until reads an operation until it is as wanted.
func (p *plane) until(id string, within time.Duration, what string, want func(op) bool) op {
	p.tb.Helper()
	end := time.Now().Add(within)
	for {
		o := get[op](p, "/v1/operations/"+id)
		if want(o) {
			return o
		}
		if time.Now().After(end) {
			journal := p.call(http.MethodGet, "/v1/operations/"+id+"/journal", nil)
			p.tb.Fatalf("operation %s is not %s after %s: %+v\n%s", id, what, within, o, journal.Body)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p *plane) finish(id string, within time.Duration) op {
	p.tb.Helper()
	return p.until(id, within, "terminal", func(o op) bool { return o.Phase.Terminal() })
}

// eventually asks until the answer is yes.
func eventually(tb testing.TB, within time.Duration, what string, yes func() bool) {
	tb.Helper()
	for end := time.Now().Add(within); !yes(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not within %s", what, within)
		}
	}
}

// unique is a name nobody else has.
func unique(name string) string { return name + "-" + strings.ToLower(rand.Text()[:8]) }

// register makes a cluster with no agent.
func (p *plane) register(name string) rig.Cluster {
	p.tb.Helper()
	c, err := p.Register(p.tb.Context(), unique(name))
	if err != nil {
		p.tb.Fatal(err)
	}
	return c
}

// node is one node of the inventory.
type node struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// nodes waits until the cluster has told of n nodes.
func (p *plane) nodes(cluster string, n int) []node {
	p.tb.Helper()
	var all []node
	eventually(p.tb, time.Minute, fmt.Sprintf("%d nodes of %s", n, cluster), func() bool {
		all = list[node](p, "/v1/nodes?cluster="+cluster)
		return len(all) >= n
	})
	return all
}

// world writes a scenario of n nodes; on stuck ones a pod's disruption budget
// allows no drain.
func world(tb testing.TB, n int, stuck bool) string {
	tb.Helper()
	var w, pdbs strings.Builder
	w.WriteString("cluster: test\nspeeds: {stop: 50ms, start: 50ms}\nnodes:\n")
	for i := range n {
		if !stuck {
			fmt.Fprintf(&w, "  - {name: n-%03d, gpus: 1}\n", i)
			continue
		}
		fmt.Fprintf(&w, "  - {name: n-%03d, gpus: 1, pods: [{name: work/held-%03d, owner: Job, labels: {app: held-%03d}}]}\n", i, i, i)
		fmt.Fprintf(&pdbs, "  - {name: work/pdb-%03d, selector: {app: held-%03d}, min_available: 1}\n", i, i)
	}
	if stuck {
		w.WriteString("pdbs:\n" + pdbs.String())
	}
	file := filepath.Join(tb.TempDir(), "world.yaml")
	if err := os.WriteFile(file, []byte(w.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// agent runs the agent's program for a cluster and returns what stops it. It
// stops at the test's end at the latest, and with this process.
func (p *plane) agent(c rig.Cluster, scenario string, flags ...string) (stop func()) {
	p.tb.Helper()
	program, err := filepath.Abs(filepath.Join(root, rig.AgentProgram))
	if err != nil {
		p.tb.Fatal(err)
	}
	dir := p.tb.TempDir()
	log, err := os.Create(filepath.Join(dir, "agent.log"))
	if err != nil {
		p.tb.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(p.tb.Context()), program, append([]string{"--plane", p.URL, "--name", "agent-0", "--executor", "sim",
		"--sim-scenario", scenario, "--sim-state", filepath.Join(dir, "sim"), "--parent-pipe", "--concurrency", "256"}, flags...)...)
	cmd.Env = append(os.Environ(), "OPSPLANE_TOKEN="+c.Token)
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.tb.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = stdin.Close() // asks it to stop
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		_ = cmd.Wait()
		_ = log.Close()
		if p.tb.Failed() {
			b, _ := os.ReadFile(log.Name())
			p.tb.Logf("agent of %s:\n%s", c.Name, b[max(0, len(b)-4000):])
		}
	}
	p.tb.Cleanup(stop)
	return stop
}

// sdk is the SDK's configuration for the local AWS.
func sdk(tb testing.TB) aws.Config {
	tb.Helper()
	env(tb, awsclient.EndpointEnv)
	c, err := awsclient.Load(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// prefix begins the names of the deployment's queues.
func (p *plane) prefix() string { return "opsplane-" + p.stage + "-" }
