package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/httpapi/prom"
	"github.com/opsplane/opsplane/shared/ledger"
	lsqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/protocol"
	qsqlite "github.com/opsplane/opsplane/shared/queue/sqlite"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/registry"
)

// plane is an API over the one-machine engines, with a cluster and tokens.
type plane struct {
	t       testing.TB
	api     *API
	store   *record.Store
	db      *lsqlite.DB
	queue   *qsqlite.DB
	tokens  *auth.Store
	reg     *registry.Service
	agent   *fakeAgent
	cluster fleet.Cluster
	other   fleet.Cluster
	// bearer tokens by role; scoped is an operator of the first cluster.
	bearer map[string]string
}

// root is who makes what a test begins with.
var root = admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "root", Kind: "plane"}, Force: true, Rule: "test"},
	Method: "TEST", Path: "/", RequestID: "req_test", CorrelationID: "setup"}

func setup(t testing.TB, change ...func(*Config)) *plane {
	t.Helper()
	dir := t.TempDir()
	ctx := context.Background()
	db, err := lsqlite.Open(ctx, lsqlite.Options{Path: filepath.Join(dir, "ledger.db"), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	q, err := qsqlite.Open(ctx, qsqlite.Options{Path: filepath.Join(dir, "queue.db")})
	must(t, err)
	st := &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine}
	tokens := auth.NewStore(db, nil)
	p := &plane{t: t, store: st, db: db, queue: q, tokens: tokens, agent: &fakeAgent{}, bearer: map[string]string{},
		reg: &registry.Service{Store: st, Tokens: tokens, Queues: q}}
	cfg := Config{Store: st, Admission: &admission.Service{Store: st}, Control: &control.Service{Store: st}, Registry: p.reg,
		Auth: &auth.Authenticator{Tokens: tokens}, Agent: p.agent, Queue: q, Bury: q.Bury, Version: "test", Logger: slog.New(slog.DiscardHandler), Metrics: measured(t),
		HistoryBegins: func(context.Context) time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }}
	for _, f := range change {
		f(&cfg)
	}
	p.api, err = New(cfg)
	must(t, err)
	t.Cleanup(func() {
		must(t, p.api.Close(ctx))
		must(t, q.Close())
		must(t, db.Close())
	})
	made, err := p.reg.Create(ctx, root, "east")
	must(t, err)
	p.cluster, p.bearer["agent"] = made.Cluster, made.Secret
	made, err = p.reg.Create(ctx, root, "west")
	must(t, err)
	p.other = made.Cluster
	for _, role := range []auth.Role{auth.Viewer, auth.Operator, auth.Admin} {
		p.bearer[string(role)] = p.token(auth.TokenSpec{Name: string(role), Role: role, Force: role == auth.Admin})
	}
	p.bearer["scoped"] = p.token(auth.TokenSpec{Name: "scoped", Role: auth.Operator, Clusters: []string{p.cluster.ID}})
	return p
}

// measured are metrics of their own.
func measured(t testing.TB) Metrics {
	t.Helper()
	m, err := prom.New(prometheus.NewRegistry())
	must(t, err)
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *plane) token(spec auth.TokenSpec) string {
	p.t.Helper()
	_, secret, err := p.tokens.Create(context.Background(), spec)
	must(p.t, err)
	return secret
}

// node puts a node into a cluster's inventory and returns its id.
func (p *plane) node(c fleet.Cluster, name string) string {
	p.t.Helper()
	objects, refused := fleet.Objects(c.ID, &protocol.Inventory{
		Nodes: []protocol.Node{{UID: "uid-" + c.Name + name, Name: name, Revision: 3, Schedulable: true, Ready: true, GPUs: 8, Pods: 4, Labels: map[string]string{"zone": "a"},
			Blockers: []protocol.Blocker{{Code: "pdb", Resource: "default/web", Rule: "minAvailable 1", Detail: "no disruption allowed"}}}},
	}, time.Now())
	if len(refused) > 0 {
		p.t.Fatal(refused)
	}
	p.merge(objects)
	return objects[0].ID
}

func (p *plane) merge(objects []fleet.Object) {
	p.t.Helper()
	ws, err := p.store.MergeObjects(context.Background(), objects)
	must(p.t, err)
	must(p.t, p.db.Commit(context.Background(), ws...))
}

// answer is what came back.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	raw    string
	j      map[string]any
}

// do makes a call as a role ("" for nobody). Headers are "Name: value".
func (p *plane) do(role, method, path string, body any, headers ...string) answer {
	p.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		must(p.t, err)
		r = strings.NewReader(string(raw))
	}
	req := httptest.NewRequest(method, path, r)
	if role != "" {
		bearer := p.bearer[role]
		if bearer == "" {
			bearer = role
		}
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	if r != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return p.serve(req)
}

func (p *plane) serve(req *http.Request) answer {
	p.t.Helper()
	w := httptest.NewRecorder()
	p.api.ServeHTTP(w, req)
	a := answer{t: p.t, status: w.Code, header: w.Header(), raw: w.Body.String()}
	_ = json.Unmarshal(w.Body.Bytes(), &a.j)
	return a
}

// want fails the test unless the answer has the status.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %.600s", a.status, status, a.raw)
	}
	return a
}

// problem fails the test unless the answer is the problem.
func (a answer) problem(status int, code problem.Code) answer {
	a.t.Helper()
	a.want(status)
	if ct := a.header.Get("Content-Type"); ct != problem.ContentType {
		a.t.Fatalf("content type %q: %.300s", ct, a.raw)
	}
	for _, k := range []string{"type", "title", "status", "error_code", "next_action", "retryable", "correlation_id", "instance"} {
		if _, ok := a.j[k]; !ok {
			a.t.Fatalf("problem without %s: %s", k, a.raw)
		}
	}
	if a.j["error_code"] != string(code) {
		a.t.Fatalf("error_code %v, want %s: %s", a.j["error_code"], code, a.raw)
	}
	return a
}

// points fails the test unless one of the errors has the pointer.
func (a answer) points(pointer string) answer {
	a.t.Helper()
	errs, _ := a.j["errors"].([]any)
	for _, e := range errs {
		if e.(map[string]any)["pointer"] == pointer {
			return a
		}
	}
	a.t.Fatalf("no error at %s: %s", pointer, a.raw)
	return a
}

func (a answer) str(name string) string {
	s, _ := a.j[name].(string)
	return s
}

func (a answer) items() []map[string]any {
	a.t.Helper()
	list, ok := a.j["items"].([]any)
	if !ok {
		a.t.Fatalf("no items: %.300s", a.raw)
	}
	out := make([]map[string]any, len(list))
	for i, x := range list {
		out[i] = x.(map[string]any)
	}
	return out
}

func (a answer) ids() []string {
	a.t.Helper()
	var out []string
	for _, x := range a.items() {
		out = append(out, fmt.Sprint(x["id"]))
	}
	return out
}

// create admits a cordon of a node and returns the operation's id.
func (p *plane) create(node string) string {
	p.t.Helper()
	return p.do("operator", "POST", "/v1/operations", map[string]any{"type": "node.cordon", "target": node, "reason": "test"}).want(202).str("id")
}

// apply moves an operation on as the other parts of the plane would.
func (p *plane) apply(opID string, changes ...operation.Change) operation.Operation {
	p.t.Helper()
	var op operation.Operation
	for _, c := range changes {
		var err error
		op, err = p.store.Update(context.Background(), opID, func(*operation.Operation) (operation.Change, []ledger.Write, error) { return c, nil, nil })
		must(p.t, err)
	}
	return op
}

// claim dispatches and claims an operation.
func (p *plane) claim(opID string) operation.Operation {
	p.t.Helper()
	return p.apply(opID, operation.Dispatch{}, operation.Claim{Agent: "agt_x", Boot: "b", Until: time.Now().Add(time.Minute)})
}

// failed ends an operation as failed and retryable.
func (p *plane) failed(opID string) {
	p.t.Helper()
	op := p.claim(opID)
	p.apply(opID, operation.Report{Agent: "agt_x", Generation: op.State.Generation, N: 1,
		Steps: []operation.StepReport{{StepID: op.Spec.Steps[0].ID, Phase: operation.StepFailed, Outcome: operation.OutcomePermanent, ErrorCode: "boom"}},
		Final: &operation.Final{Outcome: operation.FinalFailed, Message: "boom", Retryable: true, Cause: &operation.Cause{ErrorCode: "boom", StepID: op.Spec.Steps[0].ID, Detail: "it broke"}}})
}
