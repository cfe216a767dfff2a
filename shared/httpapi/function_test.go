package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/record"
)

// asFunction is how a function on AWS is set up.
func asFunction(c *Config) {
	c.Queue, c.Bury, c.Metrics, c.AuditFirst = nil, nil, nil, true
	c.Store = &record.Store{Ledger: unwatched{c.Store.Ledger}, Now: c.Store.Now, Timing: c.Store.Timing}
}

// unlisted is a ledger that takes commits and lists nothing.
type unlisted struct{ ledger.Ledger }

func (unlisted) Query(context.Context, ledger.Query) (ledger.Page, error) {
	return ledger.Page{}, ledger.ErrUnavailable
}

type callerKey struct{}

// fromContext says who calls by the request's context.
type fromContext struct{}

func (fromContext) Authenticate(ctx context.Context, _ string) (auth.Principal, error) {
	p, ok := ctx.Value(callerKey{}).(auth.Principal)
	if !ok {
		return p, &auth.DeniedError{Reason: auth.ReasonMissing}
	}
	return p, nil
}

func TestPrincipalFromTheContext(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction, func(c *Config) { c.Auth = fromContext{} })
	p.do("admin", "GET", "/v1/nodes", nil).problem(401, problem.Unauthenticated) // a header says nothing here
	r := httptest.NewRequest("GET", "/v1/nodes", nil)
	viewer := auth.Principal{ID: "tok_x", Kind: auth.KindToken, Roles: []auth.Role{auth.Viewer}}
	p.serve(r.WithContext(context.WithValue(r.Context(), callerKey{}, viewer))).want(200)
	r = httptest.NewRequest("POST", "/v1/clusters", strings.NewReader(`{"name":"north"}`))
	p.serve(r.WithContext(context.WithValue(r.Context(), callerKey{}, viewer))).problem(403, problem.Forbidden)
	p.do("", "GET", "/healthz", nil).want(200)
}

func TestNoQueueInThePlane(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction)
	for _, call := range []string{"receive", "delete", "extend", "bury"} {
		a := p.do("agent", "POST", "/v1/agent/queue/"+call, m{"max": 1}).problem(404, problem.NotFound)
		if !strings.Contains(a.raw, "SQS") || !strings.Contains(a.raw, "queue_url") {
			t.Errorf("%s: it does not say where to poll: %s", call, a.raw)
		}
		p.do("admin", "POST", "/v1/agent/queue/"+call, m{"max": 1}).problem(403, problem.Forbidden)
	}
	p.do("viewer", "GET", "/metrics", nil).problem(404, problem.NotFound)
}

func TestAgentsOnly(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction, func(c *Config) {
		c.AgentsOnly, c.Admission, c.Control, c.Registry = true, nil, nil, nil
	})
	p.do("agent", "POST", "/v1/agent/heartbeat", m{"name": "a"}).want(200)
	p.do("admin", "POST", "/v1/agent/heartbeat", m{"name": "a"}).problem(403, problem.Forbidden)
	p.do("", "GET", "/readyz", nil).want(200)
	for _, path := range []string{"/v1/operations", "/v1/events", "/openapi.json", "/docs", "/metrics"} {
		p.do("admin", "GET", path, nil).problem(404, problem.NotFound)
	}
	for _, cfg := range []Config{{}, {AgentsOnly: true}, {AgentsOnly: true, Store: p.store, Auth: fromContext{}}, {Store: p.store, Auth: fromContext{}, Agent: p.agent}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("an API was made of %+v", cfg)
		}
	}
}

func TestQueueAccess(t *testing.T) {
	t.Parallel()
	var refuse error
	p := setup(t, func(c *Config) {
		c.QueueAccess = func(_ context.Context, queue string) (QueueAccess, error) {
			return QueueAccess{URL: "https://sqs.example/1/" + queue, ARN: "arn:aws:sqs:us-east-1:1:" + queue, Policy: json.RawMessage(`{"Version":"2012-10-17"}`)}, refuse
		}
	})
	made := p.do("admin", "POST", "/v1/clusters", m{"name": "north"}).want(201)
	rotated := p.do("admin", "POST", "/v1/clusters/north/token", nil).want(200)
	for _, a := range []answer{made, rotated} {
		queue := a.str("queue")
		policy, _ := a.j["agent_policy"].(map[string]any)
		if a.str("queue_url") != "https://sqs.example/1/"+queue || a.str("queue_arn") != "arn:aws:sqs:us-east-1:1:"+queue || policy["Version"] != "2012-10-17" || a.str("token") == "" {
			t.Error(a.raw)
		}
	}
	if a := p.do("viewer", "GET", "/v1/clusters/north", nil).want(200); strings.Contains(a.raw, "queue_url") || strings.Contains(a.raw, "policy") {
		t.Error(a.raw)
	}
	// The token is shown this once: SQS being away must not lose it.
	refuse = errors.New("away")
	if a := p.do("admin", "POST", "/v1/clusters", m{"name": "south"}).want(201); a.str("token") == "" || strings.Contains(a.raw, "queue_url") || strings.Contains(a.raw, "away") {
		t.Error(a.raw)
	}
	// Nor may the store, once it has committed.
	blind := setup(t, func(c *Config) {
		c.Store = &record.Store{Ledger: unlisted{c.Store.Ledger}, Now: c.Store.Now, Timing: c.Store.Timing}
	})
	if a := blind.do("admin", "POST", "/v1/clusters", m{"name": "north"}).want(201); a.str("token") == "" || a.str("id") == "" {
		t.Error(a.raw)
	}
	alone := setup(t)
	if a := alone.do("admin", "POST", "/v1/clusters", m{"name": "north"}).want(201); strings.Contains(a.raw, "queue_url") || strings.Contains(a.raw, "agent_policy") {
		t.Error(a.raw)
	}
}

func TestWaitOfAFunction(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction, func(c *Config) { c.MaxWait = 700 * time.Millisecond })
	op := p.create(p.node(p.cluster, "a"))
	began := time.Now()
	a := p.do("viewer", "GET", "/v1/operations/"+op+"?wait=20s", nil).want(200)
	if took := time.Since(began); took < 700*time.Millisecond || took > 10*time.Second || a.str("phase") != "pending" {
		t.Errorf("after %s: %s", took, a.raw)
	}
	began = time.Now()
	a = p.do("viewer", "GET", "/v1/events?wait=20s&type=node.joined", nil).want(200)
	if took := time.Since(began); took < 700*time.Millisecond || took > 10*time.Second || len(a.items()) != 0 || a.str("next_cursor") == "" {
		t.Errorf("after %s: %s", took, a.raw)
	}
}

// lasting is a context in which so much time is left whenever it is asked, however
// long the machine takes, and which does not end.
type lasting struct {
	context.Context
	left time.Duration
}

func (l lasting) Deadline() (time.Time, bool) { return time.Now().Add(l.left), true }

// TestWaitEndsBeforeItsRequest: with what is current, while there is time to
// answer.
func TestWaitEndsBeforeItsRequest(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction)
	op := p.create(p.node(p.cluster, "a"))
	for _, left := range []time.Duration{waitSlack / 2, waitSlack + 300*time.Millisecond} {
		r := httptest.NewRequestWithContext(lasting{t.Context(), left}, "GET", "/v1/operations/"+op+"?wait=20s", nil)
		r.Header.Set("Authorization", "Bearer "+p.bearer["viewer"])
		began := time.Now()
		p.serve(r).want(200)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("with %s left it answered after %s", left, took)
		}
	}
}

// TestPollsBackOff: a wait without signals costs few looks.
func TestPollsBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bell, stop := watch(unwatched{}, "op#x")
		began, looks, last := time.Now(), 0, time.Duration(0)
		for time.Since(began) < 25*time.Second {
			at := time.Now()
			<-bell
			last = time.Since(at)
			looks++
			if looks == 1 && last != pollFirst {
				t.Errorf("the first look came after %s", last)
			}
		}
		if looks > 18 || last != pollMost {
			t.Errorf("%d looks in 25 s, the last after %s", looks, last)
		}
		stop()
		synctest.Wait()
	})
}

// TestAuditFirst: the record of a refused call is there when its answer is.
func TestAuditFirst(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction)
	p.do("viewer", "POST", "/v1/clusters", m{"name": "north"}).problem(403, problem.Forbidden)
	found := p.do("admin", "GET", "/v1/audit?refused=true", nil).want(200).items()
	if len(found) != 1 || found[0]["action"] != "POST /v1/clusters" || found[0]["error_code"] != "forbidden" {
		t.Error(found)
	}
	// The store is away: the answer comes all the same, soon, and the loss is counted.
	q := setup(t, asFunction, func(c *Config) {
		c.Store = &record.Store{Ledger: stuck{c.Store.Ledger}, Now: c.Store.Now, Timing: c.Store.Timing}
		c.Metrics = measured(t)
	})
	began := time.Now()
	q.do("viewer", "POST", "/v1/clusters", m{"name": "north"}).problem(403, problem.Forbidden)
	if took := time.Since(began); took > auditFirstTries*(auditFirstTimeout+auditEvery<<auditFirstTries) {
		t.Errorf("the refusal took %s", took)
	}
	if a := q.do("viewer", "GET", "/metrics", nil); !strings.Contains(a.raw, "opsplane_audit_dropped_total 1\n") {
		t.Error("the loss was not counted")
	}
}
