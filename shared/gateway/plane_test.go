package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/httpapi"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	queuesqlite "github.com/opsplane/opsplane/shared/queue/sqlite"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/registry"
)

// deployment is the functions api, agentapi and authorizer behind one HTTP API,
// as template.yaml has them, over the one-machine engines.
type deployment struct {
	t           *testing.T
	api, agents *httpAPI
	authorizer  *Authorizer
	tokens      *auth.Store
	log         *strings.Builder
	bearer      map[string]string // by role

	mu    sync.Mutex
	now   time.Time
	asked int
	kept  map[string]kept // by the header's value
}

// kept is an authorizer's answer in the gateway's cache.
type kept struct {
	answer events.APIGatewayV2CustomAuthorizerSimpleResponse
	until  time.Time
}

// clock is the deployment's own time.
func (d *deployment) clock() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

func (d *deployment) pass(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = d.now.Add(t)
}

func deploy(t *testing.T) *deployment {
	t.Helper()
	d := &deployment{t: t, now: time.Now(), log: &strings.Builder{}, kept: map[string]kept{}, bearer: map[string]string{}}
	ctx := context.Background()
	dir := t.TempDir()
	db, err := sqlite.Open(ctx, sqlite.Options{Path: filepath.Join(dir, "ledger.db"), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	q, err := queuesqlite.Open(ctx, queuesqlite.Options{Path: filepath.Join(dir, "queue.db")})
	must(t, err)
	t.Cleanup(func() { must(t, q.Close()); must(t, db.Close()) })
	log := slog.New(slog.NewTextHandler(d.log, nil))
	st := &record.Store{Ledger: db, Now: d.clock, Timing: operation.AWS}
	d.tokens = auth.NewStore(db, d.clock)
	reg := &registry.Service{Store: st, Tokens: auth.NewStore(db, d.clock), Queues: q} // another process's: its revocations are not known here at once
	d.authorizer = &Authorizer{Auth: &auth.Authenticator{Tokens: d.tokens}, Logger: log}
	api, err := httpapi.New(httpapi.Config{Store: st, Admission: &admission.Service{Store: st}, Control: &control.Service{Store: st}, Registry: reg,
		Auth: Principals{}, MaxWait: 300 * time.Millisecond, AuditFirst: true, Version: "test", Logger: log})
	must(t, err)
	agents, err := httpapi.New(httpapi.Config{AgentsOnly: true, Store: st, Auth: Principals{}, AuditFirst: true, Logger: log,
		Agent: &agentapi.Service{Store: st, Queue: q, Logger: log, QueueURL: func(c string) string { return "https://sqs.example/" + c }}})
	must(t, err)
	d.api = &httpAPI{t: t, server: &Server{Handler: api, Logger: log}}
	d.agents = &httpAPI{t: t, server: &Server{Handler: agents, Logger: log}}
	root := admission.Call{Caller: admission.Caller{Actor: operation.Plane, Force: true, Rule: "test"}}
	made, err := reg.Create(ctx, root, "east")
	must(t, err)
	d.bearer["agent"] = made.Secret
	for _, role := range []auth.Role{auth.Viewer, auth.Operator, auth.Admin} {
		_, d.bearer[string(role)], err = d.tokens.Create(ctx, auth.TokenSpec{Name: string(role), Role: role})
		must(t, err)
	}
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plain is how the gateway answers by itself.
func plain(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message}) // a recorder
}

// ServeHTTP is the gateway: routes, the authorizer with its cache, the functions.
func (d *deployment) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := *d.api
	switch path := r.URL.Path; {
	case r.Method == http.MethodGet && (path == "/healthz" || path == "/readyz" || path == "/openapi.json" || path == "/docs" || strings.HasPrefix(path, "/docs/")):
		to.ServeHTTP(w, r)
		return
	case strings.HasPrefix(path, "/v1/agent/"):
		to = *d.agents
	}
	credential := r.Header.Get("Authorization")
	if credential == "" { // the identity source is missing
		plain(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	d.mu.Lock()
	k := d.kept[credential]
	fresh := d.now.Before(k.until)
	d.mu.Unlock()
	if !fresh {
		e := d.api.event(httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), nil))
		var err error
		k.answer, err = d.authorizer.Authorize(r.Context(), events.APIGatewayV2CustomAuthorizerV2Request{Version: "2.0", Type: "REQUEST", IdentitySource: []string{credential},
			Headers: map[string]string{"authorization": credential}, RequestContext: e.RequestContext})
		if err != nil {
			plain(w, http.StatusInternalServerError, "Internal Server Error")
			return
		}
		d.mu.Lock()
		d.asked++
		k.until = d.now.Add(AuthorizerTTL)
		d.kept[credential] = k
		d.mu.Unlock()
	}
	if !k.answer.IsAuthorized {
		plain(w, http.StatusForbidden, "Forbidden")
		return
	}
	to.authorizer = k.answer.Context
	to.ServeHTTP(w, r)
}

// do makes a call as a role, "" for nobody, or with a credential of its own.
func (d *deployment) do(role, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	d.t.Helper()
	r := httptest.NewRequestWithContext(d.t.Context(), method, target, strings.NewReader(body))
	if role != "" {
		credential, ok := d.bearer[role]
		if !ok {
			credential = role
		}
		r.Header.Set("Authorization", "Bearer "+credential)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

// want fails the test unless the answer has the status, and the code when it is
// a problem of ours.
func (d *deployment) want(w *httptest.ResponseRecorder, status int, code problem.Code) *httptest.ResponseRecorder {
	d.t.Helper()
	var p problem.Problem
	if w.Header().Get("Content-Type") == problem.ContentType {
		must(d.t, json.Unmarshal(w.Body.Bytes(), &p))
	}
	if w.Code != status || p.ErrorCode != code {
		d.t.Fatalf("status %d %q, want %d %q: %.400s", w.Code, p.ErrorCode, status, code, w.Body)
	}
	return w
}

const heartbeat = `{"name":"a","boot":"b","version":"1","capabilities":[],"sent_at":"2026-07-01T00:00:00Z"}`

// TestWhoReachesWhat: the gateway tells who nobody is, the functions what
// somebody may.
func TestWhoReachesWhat(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.want(d.do("", "GET", "/healthz", ""), 200, "")
	d.want(d.do("", "GET", "/docs", ""), 200, "")
	d.want(d.do("", "GET", "/docs/runbooks/fatal-xid.md", ""), 200, "")
	d.want(d.do("", "GET", "/openapi.json", ""), 200, "")
	d.want(d.do("", "GET", "/v1/nodes", ""), 401, "") // plain JSON of the gateway's
	d.want(d.do("opt_nonsense", "GET", "/v1/nodes", ""), 403, "")
	d.want(d.do("viewer", "GET", "/v1/nodes", ""), 200, "")
	d.want(d.do("viewer", "POST", "/v1/clusters", `{"name":"west"}`), 403, problem.Forbidden)
	d.want(d.do("admin", "POST", "/v1/clusters", `{"name":"west"}`), 201, "")
	// Each other's routes.
	d.want(d.do("agent", "GET", "/v1/nodes", ""), 403, problem.Forbidden)
	d.want(d.do("agent", "POST", "/v1/operations", "{}"), 403, problem.Forbidden)
	d.want(d.do("admin", "POST", "/v1/agent/heartbeat", heartbeat), 403, problem.Forbidden)
	w := d.want(d.do("agent", "POST", "/v1/agent/heartbeat", heartbeat), 200, "")
	if !strings.Contains(w.Body.String(), `"queue_url":"https://sqs.example/clu_`) {
		t.Error(w.Body)
	}
	d.want(d.do("agent", "POST", "/v1/agent/queue/receive", "{}"), 404, problem.NotFound)
	// The $default route: what is nowhere is told by us.
	d.want(d.do("viewer", "GET", "/nowhere", ""), 404, problem.NotFound)
	d.want(d.do("viewer", "GET", "/metrics", ""), 404, problem.NotFound)
	w = d.want(d.do("viewer", "OPTIONS", "/v1/nodes", ""), 405, problem.MethodNotAllowed)
	if w.Header().Get("Allow") != "GET" {
		t.Errorf("Allow %q", w.Header().Get("Allow"))
	}
	w = d.want(d.do("viewer", "HEAD", "/v1/nodes", ""), 200, "")
	if w.Body.Len() != 0 || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("HEAD: %q %v", w.Body, w.Header())
	}
}

// TestNobodyTellsTheFunctionWhoTheyAre: only the authorizer's word counts.
func TestNobodyTellsTheFunctionWhoTheyAre(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	forged := `{"id":"tok_x","kind":"token","roles":["admin"]}`
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/tokens", nil)
	for _, name := range []string{"Principal", "X-Principal", "X-Amzn-Authorizer", "X-Amzn-Request-Context", "Authorization"} {
		r.Header.Set(name, forged)
	}
	r.Header.Set("Authorization", "Bearer "+d.bearer["admin"]) // even a good one: it is not the function's to judge
	w := httptest.NewRecorder()
	d.api.ServeHTTP(w, r)
	d.want(w, 401, problem.Unauthenticated)
	for name, authorizer := range map[string]map[string]any{
		"another key": {"Principal": forged}, "no string": {"principal": map[string]any{"id": "x"}}, "no JSON": {"principal": "admin"},
		"no id": {"principal": `{"kind":"token","roles":["admin"]}`}, "no kind": {"principal": `{"id":"x","roles":["admin"]}`},
		"a fleet-wide agent":       {"principal": `{"id":"x","kind":"agent","roles":["agent"]}`},
		"an agent that is none":    {"principal": `{"id":"x","kind":"token","roles":["agent"],"clusters":["clu_x"]}`},
		"an agent that is another": {"principal": `{"id":"x","kind":"agent","roles":["admin"],"clusters":["clu_x"]}`},
	} {
		to := *d.api
		to.authorizer = authorizer
		w := httptest.NewRecorder()
		to.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/tokens", nil))
		if name == "another key" {
			d.want(w, 401, problem.Unauthenticated)
		} else {
			d.want(w, 500, problem.Internal)
		}
	}
}

// TestRevokedTokenStops within the bound, and the gateway asks once in a TTL.
func TestRevokedTokenStops(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	for range 5 {
		d.want(d.do("viewer", "GET", "/v1/nodes", ""), 200, "")
	}
	if d.asked != 1 {
		t.Errorf("the authorizer was asked %d times", d.asked)
	}
	viewer, err := d.tokens.Authenticate(t.Context(), d.bearer["viewer"])
	must(t, err)
	d.pass(AuthorizerTTL)
	d.want(d.do("viewer", "GET", "/v1/nodes", ""), 200, "") // read now and kept again
	d.want(d.do("admin", "DELETE", "/v1/tokens/"+viewer.ID, ""), 204, "")
	revoked := d.clock()
	for {
		w := d.do("viewer", "GET", "/v1/nodes", "")
		if w.Code == 403 {
			break
		}
		if since := d.clock().Sub(revoked); since > RevokedWithin {
			t.Fatalf("the token was accepted %s after it was revoked", since)
		}
		d.pass(time.Second)
	}
	if RevokedWithin != 32*time.Second {
		t.Errorf("the bound is %s: the docs say 32 s", RevokedWithin)
	}
}

// TestBodies as the gateway hands them on.
func TestBodies(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	for name, tt := range map[string]struct {
		body, contentType string
		status            int
		code              problem.Code
	}{
		"text":             {`{"name":"a1"}`, "application/json", 201, ""},
		"base64":           {`{"name":"a2"}`, "", 201, ""}, // no media type: not text to the gateway
		"another type":     {`{"name":"a3"}`, "application/x-www-form-urlencoded", 415, problem.UnsupportedMediaType},
		"binary":           {"\xff\xfe\x00", "application/octet-stream", 415, problem.UnsupportedMediaType},
		"binary, no type":  {"\xff\xfe\x00", "", 400, problem.Malformed},
		"over the limit":   {`{"name":"` + strings.Repeat("x", 64<<10) + `"}`, "application/json", 413, problem.PayloadTooLarge},
		"over, in base64":  {`{"name":"` + strings.Repeat("x", 64<<10) + `"}`, "application/octet-stream", 413, problem.PayloadTooLarge},
		"4-byte character": {`{"name":"` + strings.Repeat("\U0001F600", 16<<10) + `"}`, "application/json; charset=utf-8", 413, problem.PayloadTooLarge},
		"empty":            {"", "application/json", 400, problem.Malformed},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/clusters", strings.NewReader(tt.body))
		r.Header.Set("Authorization", "Bearer "+d.bearer["admin"])
		if tt.contentType != "" {
			r.Header.Set("Content-Type", tt.contentType)
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		var p problem.Problem
		_ = json.Unmarshal(w.Body.Bytes(), &p)
		if w.Code != tt.status || p.ErrorCode != tt.code {
			t.Errorf("%s: status %d: %.300s", name, w.Code, w.Body)
		}
	}
}

// TestPathsAndQueries in the forms that the gateway gives them.
func TestPathsAndQueries(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.want(d.do("viewer", "GET", "/v1/clusters/east", ""), 200, "")
	d.want(d.do("viewer", "GET", "/v1/clusters/%65ast", ""), 200, "")
	for _, target := range []string{"/v1/clusters/a%2Fb", "/v1/clusters/%2e%2e/nodes", "/v1//clusters", "/v1/clusters/", "/v1/clusters/%25", "/v1/clusters/100%2525"} {
		d.want(d.do("viewer", "GET", target, ""), 404, problem.NotFound)
	}
	d.want(d.do("viewer", "GET", "/v1/operations?phase=pending&phase=running&type=node.drain", ""), 200, "")
	d.want(d.do("viewer", "GET", "/v1/operations?limit=1&limit=2", ""), 422, problem.Invalid)
	d.want(d.do("viewer", "GET", "/v1/operations?unknown=1", ""), 422, problem.Invalid)
	d.want(d.do("viewer", "GET", "/v1/operations?limit=%zz", ""), 422, problem.Invalid)
	d.want(d.do("viewer", "GET", "/v1/clusters?name=%65ast", ""), 200, "")
	began := time.Now()
	w := d.want(d.do("viewer", "GET", "/v1/events?wait=20s&type=node.joined", ""), 200, "")
	if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second || !strings.Contains(w.Body.String(), "next_cursor") {
		t.Errorf("a wait ended after %s: %s", took, w.Body)
	}
}

// TestWhereFromIsTheGatewaysWord: an X-Forwarded-For of the client's changes
// nothing in the audit record.
func TestWhereFromIsTheGatewaysWord(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.want(d.do("viewer", "POST", "/v1/clusters", `{"name":"west"}`, "X-Forwarded-For: 10.9.9.9"), 403, problem.Forbidden)
	w := d.want(d.do("admin", "GET", "/v1/audit?refused=true", ""), 200, "")
	if !strings.Contains(w.Body.String(), `"remote_addr":"192.0.2.1:0"`) || strings.Contains(w.Body.String(), "10.9.9.9") {
		t.Error(w.Body)
	}
	if s := base64.StdEncoding.EncodeToString([]byte(d.bearer["viewer"])); strings.Contains(d.log.String(), d.bearer["viewer"]) || strings.Contains(d.log.String(), s) {
		t.Error("a token is in the log")
	}
}
