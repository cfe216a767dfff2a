package httpapi

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

// known tells whether an answer is one that an input may have: never a fault of
// the plane's own, always JSON.
func known(t *testing.T, a answer) {
	t.Helper()
	if a.status >= 500 || a.status == 0 {
		t.Fatalf("status %d: %.300s", a.status, a.raw)
	}
	if a.status != 204 && !json.Valid([]byte(a.raw)) {
		t.Fatalf("no JSON: %.300s", a.raw)
	}
}

func FuzzBodies(f *testing.F) {
	p := setup(f)
	node := p.node(p.cluster, "a")
	for _, s := range []string{`{}`, `[]`, `null`, `{"type":"node.cordon","target":"` + node + `","reason":"x"}`, `{"type":"plan","target":"fleet","reason":"x","payload":{"children":[{}]}}`,
		`{"reason":"\ud800"}`, `{"name":"x"}`, `{"name":"x","role":"viewer"}`, strings.Repeat("[", 200), `{"step":"cordon","outcome":"failed","evidence":"e","reason":"r"}`,
		`{"max":1,"wait_ms":0,"visibility_ms":1}`, `{"target":"node:a","reason":"x"}`, "\xff\xfe", `{"deadline":"2026-12-31T23:59:60Z"}`, `{"payload":{"grace_period_seconds":1e400}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		p := *p
		p.t = t
		for _, c := range [][2]string{{"admin", "POST /v1/operations"}, {"admin", "POST /v1/operations/" + noOperation + "/retry"}, {"admin", "POST /v1/operations/" + noOperation + "/resolve"},
			{"admin", "DELETE /v1/operations/" + noOperation}, {"admin", "POST /v1/manual-changes"}, {"admin", "POST /v1/tokens"},
			{"agent", "POST /v1/agent/reports"}, {"agent", "POST /v1/agent/queue/receive"}, {"agent", "POST /v1/agent/queue/bury"}} {
			method, path, _ := strings.Cut(c[1], " ")
			known(t, p.do(c[0], method, path, body))
		}
	})
}

func FuzzQueries(f *testing.F) {
	p := setup(f)
	p.create(p.node(p.cluster, "a"))
	p.create(p.node(p.cluster, "b"))
	cursor := p.do("viewer", "GET", "/v1/operations?limit=1", nil).str("next_cursor")
	for _, s := range []string{cursor, "", "x", "node:a", "2026-01-01T00:00:00Z", "30s", "-1", "\x00", "\xff", "a\nb", strings.Repeat("A", 3000)} {
		f.Add("cursor", s)
		f.Add("target", s)
		f.Add("since", s)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		p := *p
		p.t = t
		if name == "wait" {
			return // only slow
		}
		query := "?" + url.QueryEscape(name) + "=" + url.QueryEscape(value)
		for _, path := range []string{"/v1/operations", "/v1/nodes", "/v1/devices", "/v1/events", "/v1/audit", "/v1/tokens", "/v1/manual-changes", "/v1/dead-letters", "/v1/clusters", "/v1/agents"} {
			known(t, p.do("admin", "GET", path+query, nil))
		}
	})
}
