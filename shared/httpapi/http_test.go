package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

func TestPathsAndMethods(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/nothing", "/v1//nodes", "/v1/nodes/", "/v1/../v1/nodes", "/v1/operations/a/b/c", "/v1/nodes/a%2fb", "/openapi.yaml", "/schemas/x"} {
		p.do("viewer", "GET", path, nil).problem(404, problem.NotFound)
	}
	for pattern, allow := range map[string]string{"PUT /v1/operations": "GET, POST", "POST /v1/nodes": "GET", "PATCH /v1/operations/x": "DELETE, GET", "POST /healthz": "GET", "GET /v1/agent/claims": "POST"} {
		method, path, _ := strings.Cut(pattern, " ")
		if a := p.do("viewer", method, path, nil).problem(405, problem.MethodNotAllowed); a.header.Get("Allow") != allow {
			t.Errorf("%s: Allow %q", pattern, a.header.Get("Allow"))
		}
	}
	if a := p.do("viewer", "HEAD", "/v1/nodes", nil); a.status != 200 {
		t.Errorf("HEAD: %d", a.status)
	}
	p.do("viewer", "GET", "/v1/nodes", "{}").problem(400, problem.Malformed)
	p.do("viewer", "GET", "/v1/nodes", nil, "Accept: text/html").want(200)
	p.do("operator", "POST", "/v1/manual-changes", `{"reason":"`+strings.Repeat("x", smallBody)+`"}`).problem(413, problem.PayloadTooLarge)
	p.do("operator", "POST", "/v1/manual-changes", `{"target":`).problem(400, problem.Malformed)
	chunked := httptest.NewRequest("POST", "/v1/manual-changes", io.MultiReader(strings.NewReader(strings.Repeat(" ", smallBody+1))))
	chunked.Header.Set("Authorization", "Bearer "+p.bearer["operator"])
	chunked.ContentLength = -1
	p.serve(chunked).problem(413, problem.PayloadTooLarge)
}

func TestCorrelation(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for sent, taken := range map[string]bool{"a.b_C-1": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "a\u00e9": false, "": false} {
		a := p.do("viewer", "GET", "/v1/nodes/x", nil, "X-Correlation-ID: "+sent).problem(404, problem.NotFound)
		got := a.header.Get("X-Correlation-ID")
		if (got == sent) != taken || got == "" || a.str("correlation_id") != got || a.str("instance") != "/v1/nodes/x" {
			t.Errorf("%q: %q", sent, got)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Limiter = &auth.Limiter{Rate: 0.001, Burst: 3} })
	for range 3 {
		p.do("viewer", "GET", "/v1/nodes", nil).want(200)
	}
	a := p.do("viewer", "GET", "/v1/nodes", nil).problem(429, problem.RateLimited)
	if a.header.Get("Retry-After") == "" {
		t.Error(a.header)
	}
	p.do("operator", "GET", "/v1/nodes", nil).want(200) // another principal
	for range 3 {
		p.do("", "GET", "/v1/nodes", nil).problem(401, problem.Unauthenticated)
	}
	p.do("", "GET", "/v1/nodes", nil).problem(429, problem.RateLimited) // an address that guesses
	p.do("", "GET", "/healthz", nil).want(200)
}

func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	var notReady error
	p := setup(t, func(c *Config) { c.Ready = func(context.Context) error { return notReady } })
	p.do("", "GET", "/healthz", nil).want(200)
	p.do("", "GET", "/readyz", nil).want(200)
	notReady = errors.New("secret of the inside")
	if a := p.do("", "GET", "/readyz", nil).problem(503, problem.Unavailable); strings.Contains(a.raw, "inside") || a.header.Get("Retry-After") == "" {
		t.Error(a.raw)
	}
	notReady = &NotReadyError{Reason: "the ledger refuses writes: no space", Err: notReady}
	if a := p.do("", "GET", "/readyz", nil).problem(503, problem.Unavailable); strings.Contains(a.raw, "inside") || !strings.Contains(a.str("detail"), "refuses writes: no space") {
		t.Error(a.raw)
	}
	a := p.do("viewer", "GET", "/metrics", nil).want(200)
	for _, name := range []string{`opsplane_http_requests_total{method="GET",route="/healthz",status="2xx"} 1`, "opsplane_http_request_seconds_bucket", "opsplane_http_open_waits 0", "opsplane_audit_dropped_total 0"} {
		if !strings.Contains(a.raw, name) {
			t.Errorf("no %s", name)
		}
	}
}

// TestMetricsAreOfTheFleet: they tell of every cluster, and so nothing to a principal that
// is confined to some, whatever its role.
func TestMetricsAreOfTheFleet(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for _, role := range []auth.Role{auth.Viewer, auth.Operator, auth.Admin} {
		p.do(string(role), "GET", "/metrics", nil).want(200)
		p.bearer["confined"] = p.token(auth.TokenSpec{Name: "confined " + string(role), Role: role, Clusters: []string{p.cluster.ID}})
		if a := p.do("confined", "GET", "/metrics", nil).problem(403, problem.Forbidden); !strings.Contains(a.str("detail"), "confined") {
			t.Errorf("%s: %s", role, a.raw)
		}
	}
	p.do("agent", "GET", "/metrics", nil).problem(403, problem.Forbidden)
	p.do("", "GET", "/metrics", nil).problem(401, problem.Unauthenticated)
}

func TestErrorsOfTheDomain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		status int
		code   problem.Code
	}{
		{operation.ErrNotCancelable, 409, problem.NotCancelable},
		{operation.ErrTerminal, 409, problem.AlreadyTerminal},
		{operation.ErrNotReplaySafe, 409, problem.NotRetryable},
		{operation.ErrNotRetryable, 409, problem.NotRetryable},
		{operation.ErrLeaseLost, 409, problem.LeaseLost},
		{operation.ErrIllegal, 409, problem.AlreadyTerminal},
		{&operation.LockedError{Resource: "nod_x", Holder: operation.Holder{Operation: noOperation}}, 409, problem.OperationConflict},
		{ledger.ErrNotFound, 404, problem.NotFound},
		{ledger.ErrUnavailable, 503, problem.Unavailable},
		{fmt.Errorf("commit: %w: %w", ledger.ErrUnknown, context.DeadlineExceeded), 504, problem.Timeout},
		{&ledger.ConflictError{}, 503, problem.Unavailable},
		{queue.ErrUnavailable, 503, problem.Unavailable},
		{record.ErrNewer, 503, problem.Unavailable},
		{queue.ErrNoQueue, 404, problem.NotFound},
		{auth.ErrUnavailable, 500, problem.Internal}, // only its own type has the code
		{context.DeadlineExceeded, 504, problem.Timeout},
		{operation.Refuse("not_a_code", "secret"), 500, problem.Internal},
		{errors.New("secret"), 500, problem.Internal},
	} {
		p := problemOf(fmt.Errorf("do: %w", tt.err))
		if p.Status != tt.status || p.ErrorCode != tt.code {
			t.Errorf("%v: %d %s", tt.err, p.Status, p.ErrorCode)
		}
		if b, _ := json.Marshal(p); strings.Contains(string(b), "secret") || strings.Contains(p.Detail, "do: ") {
			t.Errorf("%v: the inside is shown: %s", tt.err, b)
		}
		if tt.status == 503 && p.RetryAfter <= 0 {
			t.Errorf("%v: no Retry-After", tt.err)
		}
	}
}

func TestAStoreThatIsGone(t *testing.T) {
	t.Parallel()
	log := &strings.Builder{}
	p := setup(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	node := p.node(p.cluster, "a")
	p.do("viewer", "GET", "/v1/nodes", nil).want(200)
	p.do("operator", "GET", "/v1/nodes", nil).want(200)
	must(t, p.db.Close())
	for _, a := range []answer{p.do("viewer", "GET", "/v1/operations", nil), p.do("operator", "POST", "/v1/operations", m{"type": "node.cordon", "target": node, "reason": "x"})} {
		a.problem(503, problem.Unavailable)
		if a.header.Get("Retry-After") == "" || strings.Contains(a.raw, "sqlite") {
			t.Error(a.header, a.raw)
		}
	}
}

func TestDocs(t *testing.T) {
	t.Parallel()
	p := setup(t)
	a := p.do("", "GET", "/docs", nil).want(200)
	if m := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9.-]+\.[a-z]{2,}`).FindString(a.raw); m != "" {
		t.Errorf("the page names another host: %s", m)
	}
	if csp := a.header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Error(csp)
	}
	served := p.do("", "GET", "/openapi.json", nil).want(200)
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]json.RawMessage
	}
	must(t, json.Unmarshal([]byte(served.raw), &doc))
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Error(doc.OpenAPI)
	}
	for pattern, r := range p.api.routes {
		method, path, _ := strings.Cut(pattern, " ")
		if _, ok := doc.Paths[path][strings.ToLower(method)]; ok == r.bare {
			t.Errorf("%s: documented %v, plain %v", pattern, ok, r.bare)
		}
	}
	alone, err := OpenAPI()
	must(t, err)
	again, err := OpenAPI()
	must(t, err)
	if string(alone) != string(again) || strings.ReplaceAll(string(alone), `"version": "dev"`, `"version": "test"`) != served.raw {
		t.Error("the document hangs on the process")
	}
}

func TestServerIsBounded(t *testing.T) {
	t.Parallel()
	s := Server(http.NotFoundHandler(), "127.0.0.1:0")
	if s.ReadHeaderTimeout <= 0 || s.MaxHeaderBytes <= 0 || s.IdleTimeout <= 0 {
		t.Errorf("%+v", s)
	}
}

func TestAuditNeverBlocks(t *testing.T) {
	t.Parallel()
	p := setup(t)
	slow := newAuditor(stuck{p.db}, slog.New(slog.DiscardHandler), p.api.metrics.AuditDropped, false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2*auditBacklog + auditBatch {
			slow.add((&request{api: p.api, http: httptest.NewRequest("POST", "/v1/operations", nil)}).refusal(time.Now(), 401))
		}
	}()
	<-done
	if a := p.do("viewer", "GET", "/metrics", nil); strings.Contains(a.raw, "opsplane_audit_dropped_total 0\n") {
		t.Error("no drop was counted")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, slow.close(ctx))
}

// stuck is a ledger that takes nothing.
type stuck struct{ ledger.Ledger }

func (stuck) Commit(context.Context, ...ledger.Write) error { return ledger.ErrUnavailable }
