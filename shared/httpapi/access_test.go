package httpapi

import (
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/problem"
)

// want is who may reach which route, written a second time on purpose.
var want = map[string]string{
	"GET /healthz": "public", "GET /readyz": "public", "GET /openapi.json": "public", "GET /docs": "public", "GET /docs/runbooks": "public", "GET /docs/runbooks/{page}": "public", "GET /metrics": "viewer",
	"POST /v1/operations": "operator", "GET /v1/operations": "viewer", "GET /v1/operations/{id}": "viewer", "DELETE /v1/operations/{id}": "operator",
	"POST /v1/operations/{id}/retry": "operator", "POST /v1/operations/{id}/resolve": "admin", "GET /v1/operations/{id}/journal": "viewer",
	"GET /v1/operations/{id}/steps": "viewer", "GET /v1/operations/{id}/commands": "viewer", "GET /v1/operations/{id}/children": "viewer",
	"POST /v1/manual-changes": "operator", "GET /v1/manual-changes": "viewer",
	"POST /v1/clusters": "admin", "GET /v1/clusters": "viewer", "GET /v1/clusters/{id}": "viewer", "DELETE /v1/clusters/{id}": "admin", "POST /v1/clusters/{id}/token": "admin",
	"GET /v1/agents": "viewer", "GET /v1/agents/{id}": "viewer", "GET /v1/nodes": "viewer", "GET /v1/nodes/{id}": "viewer", "GET /v1/devices": "viewer", "GET /v1/devices/{id}": "viewer",
	"GET /v1/deployments": "viewer", "GET /v1/deployments/{id}": "viewer", "GET /v1/components": "viewer", "GET /v1/components/{id}": "viewer",
	"POST /v1/tokens": "admin", "GET /v1/tokens": "admin", "GET /v1/tokens/{id}": "admin", "DELETE /v1/tokens/{id}": "admin", "GET /v1/audit": "admin",
	"GET /v1/dead-letters": "viewer", "GET /v1/dead-letters/{id}": "viewer", "POST /v1/dead-letters/{id}/redrive": "admin", "GET /v1/events": "viewer",
	"GET /v1/rules": "viewer", "GET /v1/rules/{id}": "viewer", "POST /v1/rules": "admin", "PUT /v1/rules/{id}": "admin", "DELETE /v1/rules/{id}": "admin",
	"PUT /v1/rules/{id}/override": "admin", "POST /v1/rules/test": "viewer",
	"GET /v1/alerts": "viewer", "GET /v1/alerts/{id}": "viewer", "POST /v1/alerts/{id}/acknowledge": "operator",
	"GET /v1/silences": "viewer", "GET /v1/silences/{id}": "viewer", "POST /v1/silences": "operator", "DELETE /v1/silences/{id}": "operator",
	"POST /v1/receivers": "admin", "GET /v1/receivers": "admin", "GET /v1/receivers/{id}": "admin", "PUT /v1/receivers/{id}": "admin",
	"DELETE /v1/receivers/{id}": "admin", "POST /v1/receivers/{id}/rotate": "admin", "POST /v1/receivers/{id}/test": "admin",
	"GET /v1/receivers/{id}/deliveries": "admin", "POST /v1/receivers/{id}/deliveries/{delivery}/redeliver": "admin",
	"GET /v1/event-types": "viewer", "GET /v1/event-types/{type}": "viewer",
	"POST /v1/agent/heartbeat": "agent", "POST /v1/agent/claims": "agent", "POST /v1/agent/renewals": "agent", "POST /v1/agent/reports": "agent",
	"POST /v1/agent/inventory": "agent", "POST /v1/agent/events": "agent", "GET /v1/agent/previews/{id}": "agent", "POST /v1/agent/previews/{id}": "agent",
	"POST /v1/agent/queue/receive": "agent", "POST /v1/agent/queue/delete": "agent", "POST /v1/agent/queue/extend": "agent", "POST /v1/agent/queue/bury": "agent",
}

func TestWhoMayReachWhat(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for pattern := range p.api.routes {
		if want[pattern] == "" {
			t.Errorf("route %s is not in the table", pattern)
		}
	}
	for pattern, need := range want {
		if p.api.routes[pattern] == nil {
			t.Errorf("there is no route %s", pattern)
			continue
		}
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{id}", "nothing", "{page}", "fatal-xid.md").Replace(path)
		if need == "public" {
			p.do("", method, path, nil).want(200)
			continue
		}
		a := p.do("", method, path, nil).problem(401, problem.Unauthenticated)
		if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: WWW-Authenticate %q", pattern, a.header.Get("WWW-Authenticate"))
		}
		for _, role := range []auth.Role{auth.Viewer, auth.Operator, auth.Admin, auth.Agent} {
			a := p.do(string(role), method, path, nil)
			if may := role.Includes(auth.Role(need)); may && (a.status == 401 || a.status == 403) {
				t.Errorf("%s as %s: %d, may reach it: %s", pattern, role, a.status, a.raw)
			} else if !may {
				a.problem(403, problem.Forbidden)
			}
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	p := setup(t)
	good := p.bearer["viewer"]
	for name, h := range map[string]string{"basic": "Basic " + good, "bare": good, "empty": "Bearer ", "unknown": "Bearer opt_nope", "more": "Bearer " + good + "x"} {
		if a := p.do("", "GET", "/v1/nodes", nil, "Authorization: "+h); a.status != 401 {
			t.Errorf("%s: %d", name, a.status)
		}
	}
	p.do("", "GET", "/v1/nodes", nil, "Authorization: bearer "+good).want(200)
	p.do("", "GET", "/v1/nodes?token="+good, nil).problem(401, problem.Unauthenticated)
	p.do("viewer", "GET", "/v1/nodes?access_token=x", nil).problem(422, problem.Invalid).points("/query/access_token")
	gone := p.do("admin", "POST", "/v1/tokens", map[string]any{"name": "x", "role": "viewer"}).want(201)
	p.do(gone.str("token"), "GET", "/v1/nodes", nil).want(200)
	p.do("admin", "DELETE", "/v1/tokens/"+gone.str("id"), nil).want(204)
	p.do(gone.str("token"), "GET", "/v1/nodes", nil).problem(401, problem.Unauthenticated)
}

func TestScopedPrincipals(t *testing.T) {
	t.Parallel()
	p := setup(t)
	mine, theirs := p.node(p.cluster, "a"), p.node(p.other, "b")
	op := p.create(theirs)
	for _, path := range []string{"/v1/nodes/" + theirs, "/v1/operations/" + op, "/v1/operations/" + op + "/journal", "/v1/clusters/" + p.other.ID, "/v1/clusters/west"} {
		p.do("scoped", "GET", path, nil).problem(404, problem.NotFound)
	}
	p.do("scoped", "DELETE", "/v1/operations/"+op, nil).problem(404, problem.NotFound)
	p.do("scoped", "POST", "/v1/operations/"+op+"/retry", map[string]any{"reason": "x"}).problem(404, problem.NotFound)
	p.do("scoped", "POST", "/v1/operations", map[string]any{"type": "node.cordon", "target": theirs, "reason": "x"}).problem(403, problem.Forbidden)
	p.do("scoped", "POST", "/v1/manual-changes", map[string]any{"target": theirs, "reason": "x"}).problem(403, problem.Forbidden)
	p.do("scoped", "GET", "/v1/nodes?cluster=west", nil).problem(422, problem.Invalid).points("/query/cluster")
	own := p.do("scoped", "POST", "/v1/operations", map[string]any{"type": "node.cordon", "target": mine, "reason": "x"}).want(202).str("id")
	for path, ids := range map[string][]string{"/v1/nodes": {mine}, "/v1/operations": {own}, "/v1/clusters": {p.cluster.ID}, "/v1/operations?active=true": {own}} {
		if got := p.do("scoped", "GET", path, nil).want(200).ids(); strings.Join(got, " ") != strings.Join(ids, " ") {
			t.Errorf("%s: %v, want %v", path, got, ids)
		}
	}
	admin := p.token(auth.TokenSpec{Name: "a", Role: auth.Admin, Clusters: []string{p.cluster.ID}})
	p.do(admin, "GET", "/v1/tokens", nil).problem(403, problem.Forbidden)
	p.do(admin, "GET", "/v1/audit", nil).problem(403, problem.Forbidden)
	p.do(admin, "POST", "/v1/clusters", map[string]any{"name": "x"}).problem(403, problem.Forbidden)
	p.do(admin, "POST", "/v1/clusters/west/token", nil).problem(404, problem.NotFound)
	p.do(admin, "DELETE", "/v1/clusters/west", nil).problem(404, problem.NotFound)
}
