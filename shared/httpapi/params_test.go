package httpapi

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/problem"
)

// detailAt is what the answer says of the pointer.
func (a answer) detailAt(pointer string) string {
	a.t.Helper()
	errs, _ := a.points(pointer).j["errors"].([]any)
	for _, e := range errs {
		if e := e.(m); e["pointer"] == pointer {
			return fmt.Sprint(e["detail"])
		}
	}
	return ""
}

// TestParametersAreRefusedByName: a parameter that cannot be taken as it is, is
// neither cut nor passed over: the answer points to it and has its limit.
func TestParametersAreRefusedByName(t *testing.T) {
	t.Parallel()
	p := setup(t)
	operation := "/v1/operations/" + p.create(p.node(p.cluster, "a"))
	long := strings.Repeat("x", 5000)
	types := strings.TrimSuffix(strings.Repeat("node.x,", 60), ",")
	for i := range 60 {
		types = strings.Replace(types, "node.x,", fmt.Sprintf("node.x%d,", i), 1)
	}
	ahead := "since=2026-07-02T00:00:00Z&until=2026-07-01T00:00:00Z"
	for _, tt := range []struct{ path, query, pointer, says string }{
		{"/v1/events", "type=*", "type", "128 bytes"},
		{"/v1/events", "type=node", "type", "such as node.left"},
		{"/v1/events", "type=" + long, "type", "128 bytes"},
		{"/v1/events", "type=" + types, "type", "the limit is 50"},
		{"/v1/events", "type=node.*,", "type", "empty"},
		{"/v1/events", "type=,", "type", "empty"},
		{"/v1/events", "type=", "type", "empty"},
		{"/v1/events", "type=node.left&type=", "type", "empty"},
		{"/v1/events", "severity=error,,info", "severity", "empty"},
		{"/v1/events", "severity=loud", "severity", "info, warning, error, critical"},
		{"/v1/events", "subject=" + long, "subject", "the limit is 600"},
		{"/v1/events", "cluster=nope", "cluster", "names no cluster"},
		{"/v1/events", "cluster=" + long, "cluster", "cluster"},
		{"/v1/events", "since=x", "since", "RFC 3339"},
		{"/v1/events", "until=2026-07-01", "until", "RFC 3339"},
		{"/v1/events", ahead, "until", "must not be before since, which is 2026-07-02T00:00:00Z"},
		{"/v1/events", "wait=24h", "wait", "from 0s to 1m"},
		{"/v1/events", "wait=60001ms", "wait", "from 0s to 1m"},
		{"/v1/events", "wait=-1s", "wait", "from 0s to 1m"},
		{"/v1/events", "wait=30", "wait", "at most 1m"},
		{"/v1/events", "limit=201", "limit", "200"},
		{"/v1/events", "limit=0", "limit", "1"},
		{"/v1/events", "cursor=" + long, "cursor", "no cursor of this list"},
		{"/v1/alerts", "state=firing,", "state", "empty"},
		{"/v1/alerts", "state=lit", "state", "pending, firing, resolved"},
		{"/v1/alerts", "severity=,error", "severity", "empty"},
		{"/v1/alerts", "rule=" + long, "rule", "63"},
		{"/v1/alerts", "cluster=nope", "cluster", "names no cluster"},
		{"/v1/alerts", ahead, "until", "must not be before since"},
		{"/v1/alerts", "since=x", "since", "RFC 3339"},
		{"/v1/alerts", "limit=201", "limit", "200"},
		{"/v1/alerts", "cursor=x", "cursor", "no cursor of this list"},
		{"/v1/rules", "shipped=maybe", "shipped", "true"},
		{"/v1/rules", "enabled=1", "enabled", "true"},
		{"/v1/rules", "limit=0", "limit", "1"},
		{"/v1/rules", "cursor=x", "cursor", "no cursor of this list"},
		{"/v1/silences", "past=x", "past", "true"},
		{"/v1/silences", "cursor=x", "cursor", "no cursor of this list"},
		{"/v1/receivers", "limit=-1", "limit", "1"},
		{"/v1/receivers", "cursor=x", "cursor", "no cursor of this list"},
		{"/v1/event-types", "limit=1000", "limit", "200"},
		{"/v1/operations", "phase=running,", "phase", "empty"},
		{"/v1/operations", "type=,node.drain", "type", "empty"},
		{"/v1/operations", ahead, "until", "must not be before since"},
		{"/v1/operations", "created_since=2026-07-02T00:00:00Z&until=2026-07-01T00:00:00Z", "until", "must not be before created_since"},
		{"/v1/audit", ahead, "until", "must not be before since"},
		{operation, "wait=24h", "wait", "from 0s to 1m"},
	} {
		a := p.do("admin", "GET", tt.path+"?"+tt.query, nil).want(422)
		if said := a.detailAt("/query/" + tt.pointer); !strings.Contains(said, tt.says) {
			t.Errorf("%s?%.60s: %s, want %s", tt.path, tt.query, said, tt.says)
		}
	}
	for _, path := range []string{"/v1/alerts/", "/v1/silences/", "/v1/rules/", "/v1/receivers/"} {
		if said := p.do("admin", "GET", path+strings.Repeat("x", 65), nil).problem(422, problem.Invalid).detailAt("/path/id"); !strings.Contains(said, "64") {
			t.Errorf("%s: %s", path, said)
		}
	}
	stream := "Accept: " + mediaStream
	for query, says := range map[string]string{"wait=61m": "from 0s to 1h", "wait=x": "at most 1h"} {
		if said := p.do("viewer", "GET", "/v1/events?"+query, nil, stream).problem(422, problem.Invalid).detailAt("/query/wait"); !strings.Contains(said, says) {
			t.Errorf("%s: %s", query, said)
		}
	}
	// What looks like it and is fine.
	same := url.QueryEscape("2026-07-01T00:00:00+02:00")
	for _, query := range []string{"cursor=", "type=node.*,node.left", "wait=0s", "since=" + same + "&until=" + same, "severity=error&severity=error"} {
		p.do("viewer", "GET", "/v1/events?"+query, nil).want(200)
	}
}

// TestWaitsAreBoundedAlike: a plane whose answers must come sooner takes the same
// waits, and answers by then.
func TestWaitsAreBoundedAlike(t *testing.T) {
	t.Parallel()
	p := setup(t, asFunction)
	p.api.cfg.MaxWait = 1
	p.do("viewer", "GET", "/v1/events?wait=60s", nil).want(200)
	p.do("viewer", "GET", "/v1/events?wait=61s", nil).problem(422, problem.Invalid).points("/query/wait")
}

// TestTooManyNamesTheLimit: of waits and of requests.
func TestTooManyNamesTheLimit(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Limiter = &auth.Limiter{Waits: 3, Rate: 0.001, Burst: 2} })
	who := p.bearer["viewer"]
	principal, err := p.api.cfg.Auth.Authenticate(t.Context(), who)
	must(t, err)
	for range 3 {
		_, ok := p.api.cfg.Limiter.AcquireWait(principal.ID)
		if !ok {
			t.Fatal("no wait left")
		}
	}
	if a := p.do("viewer", "GET", "/v1/events?wait=1s", nil).problem(429, problem.TooManyWaits); a.j["limit"] != 3. || !strings.Contains(a.str("detail"), "3") {
		t.Error(a.raw)
	}
	p.do("viewer", "GET", "/v1/events", nil).want(200)
	if a := p.do("viewer", "GET", "/v1/events", nil).problem(429, problem.RateLimited); a.j["limit"] != 0.001 || !strings.Contains(a.str("detail"), "0.001 a second") {
		t.Error(a.raw)
	}
}
