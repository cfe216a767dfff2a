package httpapi

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/remote"
)

// fakeAgent answers agents' calls and keeps which cluster they were for.
type fakeAgent struct {
	mu      sync.Mutex
	cluster string
	err     error
	panics  bool
}

func (f *fakeAgent) saw(cluster string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.panics {
		panic("made to")
	}
	f.cluster = cluster
	return f.err
}

func (f *fakeAgent) Heartbeat(_ context.Context, c string, in protocol.Heartbeat) (protocol.HeartbeatAnswer, error) {
	return protocol.HeartbeatAnswer{AgentID: in.Name, Cluster: c}, f.saw(c)
}

func (f *fakeAgent) Claim(_ context.Context, c string, _ protocol.ClaimRequest) (protocol.ClaimAnswer, error) {
	return protocol.ClaimAnswer{}, f.saw(c)
}

func (f *fakeAgent) Renew(_ context.Context, c string, _ protocol.RenewRequest) (protocol.RenewAnswer, error) {
	return protocol.RenewAnswer{}, f.saw(c)
}

func (f *fakeAgent) Report(_ context.Context, c string, _ protocol.ReportRequest) (protocol.ReportAnswer, error) {
	return protocol.ReportAnswer{}, f.saw(c)
}

func (f *fakeAgent) Inventory(_ context.Context, c string, _ protocol.InventoryRequest) (protocol.InventoryAnswer, error) {
	return protocol.InventoryAnswer{}, f.saw(c)
}

func (f *fakeAgent) Events(_ context.Context, c string, _ protocol.EventsRequest) (protocol.EventsAnswer, error) {
	return protocol.EventsAnswer{}, f.saw(c)
}

func (f *fakeAgent) PreviewRequest(_ context.Context, c, previewID string) (protocol.PreviewRequest, error) {
	return protocol.PreviewRequest{ID: previewID}, f.saw(c)
}

func (f *fakeAgent) PreviewAnswer(_ context.Context, c, _ string, _ protocol.PreviewAnswer) error {
	return f.saw(c)
}

func TestAgentCalls(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for _, name := range []string{"heartbeat", "claims", "renewals", "reports", "inventory", "events"} {
		path := "/v1/agent/" + name
		p.do("agent", "POST", path, `{"boot":"b"}`).want(200)
		if p.agent.cluster != p.cluster.ID {
			t.Errorf("%s: cluster %q, want the token's", name, p.agent.cluster)
		}
		p.do("agent", "POST", path, `{"boot":"b","x":1}`).problem(422, problem.Invalid).points("/x")
		p.do("agent", "POST", path, `{"boot":7}`).problem(422, problem.Invalid).points("/boot")
		p.do("agent", "POST", path, `{"boot":"b"} {}`).problem(400, problem.Malformed)
		p.do("agent", "POST", path, `{`).problem(400, problem.Malformed)
		p.do("agent", "POST", path, nil).problem(400, problem.Malformed)
		p.do("agent", "POST", path+"?a=1", `{}`).problem(422, problem.Invalid).points("/query/a")
		p.do("agent", "POST", path, `{}`, "Content-Type: text/plain").problem(415, problem.UnsupportedMediaType)
	}
	big := `{"boot":"` + strings.Repeat("x", protocol.MaxBodyBytes) + `"}`
	if a := p.do("agent", "POST", "/v1/agent/reports", big).problem(413, problem.PayloadTooLarge); a.j["limit"] != float64(protocol.MaxBodyBytes) {
		t.Errorf("limit %v", a.j["limit"])
	}
	preview := "/v1/agent/previews/" + id.New(id.Preview, time.Now())
	p.do("agent", "GET", preview, nil).want(200)
	p.do("agent", "POST", preview, `{"blockers":[],"observed_at":"2026-01-01T00:00:00Z"}`).want(204)
	p.do("agent", "POST", preview, `{"nope":1}`).problem(422, problem.Invalid)
	p.do("agent", "GET", "/v1/agent/previews/zzz", nil).problem(404, problem.NotFound)
	p.do("agent", "POST", "/v1/agent/previews/zzz", `{}`).problem(404, problem.NotFound)
	p.agent.err = operation.Refuse("lease_lost", "not yours")
	p.do("agent", "POST", "/v1/agent/claims", `{}`).problem(409, problem.LeaseLost)
	p.do("agent", "GET", preview, nil).problem(409, problem.LeaseLost)
	p.do("agent", "POST", preview, `{}`).problem(409, problem.LeaseLost)
	p.agent.err, p.agent.panics = nil, true
	p.do("agent", "POST", "/v1/agent/claims", `{}`).problem(500, problem.Internal)
}

func TestQueueOverTheRemoteClient(t *testing.T) {
	t.Parallel()
	p := setup(t)
	srv := httptest.NewServer(p.api)
	defer srv.Close()
	c, err := remote.New(remote.Options{Base: srv.URL, Token: p.bearer["agent"]})
	must(t, err)
	ctx := t.Context()
	must(t, p.queue.Send(ctx, p.cluster.Queue, queue.Outgoing{Body: []byte(`{"a":1}`)}, queue.Outgoing{Body: []byte(`bad`)}))
	var got []queue.Message
	for len(got) < 2 {
		ms, err := c.Receive(ctx, "", 10, 5*time.Second, time.Minute)
		must(t, err)
		got = append(got, ms...)
	}
	must(t, c.Extend(ctx, "", got[0].Receipt, time.Minute))
	if err := c.Extend(ctx, "", "999.9", time.Minute); !errors.Is(err, queue.ErrStaleReceipt) {
		t.Errorf("extend of a stale receipt: %v", err)
	}
	must(t, c.Delete(ctx, "", got[0].Receipt))
	m := got[1]
	p.do("agent", "POST", "/v1/agent/queue/bury", map[string]any{"id": m.ID, "receipt": m.Receipt, "body": string(m.Body), "receives": m.Receives, "reason": "unreadable"}).want(204)
	dead, err := p.queue.TakeDead(ctx, 10)
	must(t, err)
	if len(dead) != 1 || dead[0].Reason != "unreadable" {
		t.Errorf("dead letters %+v", dead)
	}
	for path, body := range map[string]string{
		"receive": `{"max":11,"wait_ms":0,"visibility_ms":1000}`, "receive?": `{"max":1,"wait_ms":20001,"visibility_ms":1000}`,
		"receive??": `{"max":1,"wait_ms":0,"visibility_ms":0}`, "delete": `{"receipts":[]}`, "extend": `{"receipt":"x","visibility_ms":-1}`, "bury": `{"id":"x","receipt":"1.1"}`,
	} {
		p.do("agent", "POST", "/v1/agent/queue/"+strings.TrimRight(path, "?"), body).problem(422, problem.Invalid)
	}
	must(t, p.queue.Remove(ctx, p.cluster.Queue))
	p.do("agent", "POST", "/v1/agent/queue/receive", `{"max":1,"wait_ms":0,"visibility_ms":1000}`).problem(404, problem.NotFound)
}

func TestQueueWaitEndsWithItsClient(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Limiter = &auth.Limiter{Waits: 1} })
	srv := httptest.NewServer(p.api)
	defer srv.Close()
	c, err := remote.New(remote.Options{Base: srv.URL, Token: p.bearer["agent"]})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for { // the probes below may take the only wait first
			if _, err := c.Receive(ctx, "", 1, queue.MaxWait, time.Minute); !errors.Is(err, queue.ErrUnavailable) {
				done <- err
				return
			}
		}
	}()
	busy := func() bool {
		return p.do("agent", "POST", "/v1/agent/queue/receive", `{"max":1,"wait_ms":1,"visibility_ms":1000}`).status == 429
	}
	until(t, "the wait is counted", busy)
	p.do("agent", "POST", "/v1/agent/queue/receive", `{"max":1,"wait_ms":0,"visibility_ms":1000}`).want(200)
	cancel()
	<-done
	until(t, "the wait is given back", func() bool { return !busy() })
}

// until waits for something that another goroutine brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}
