package httpapi

import (
	"fmt"
	"net/url"
	"slices"
	"testing"

	"github.com/opsplane/opsplane/shared/problem"
)

// TestSeverities: lists and streams of events, and lists of alerts, by severity,
// written either way; a cursor of one filter is none of another.
func TestSeverities(t *testing.T) {
	t.Parallel()
	p := setup(t)
	base, _ := p.listen()
	for _, name := range []string{"error", "warning", "critical"} { // fire by events of their own
		p.do("admin", "POST", "/v1/rules", fmt.Sprintf(`{"name":"r-%s","severity":"%s","on":["test.%s"]}`, name, name, name)).want(201)
	}
	p.judge()
	for n, typ := range []string{"node.ready", "node.left", "node.not_ready", "device.degraded", "test.error", "test.warning", "test.critical"} {
		p.happen(p.cluster.ID, typ, n)
	}
	p.judge()
	types := func(query string) (out []string) {
		for _, e := range p.do("viewer", "GET", "/v1/events?cluster=east&type=node.*,device.*&"+query, nil).want(200).items() {
			out = append(out, fmt.Sprint(e["type"]))
		}
		return out
	}
	for query, want := range map[string][]string{
		"severity=error":                                     {"node.not_ready", "device.degraded"},
		"severity=warning,error":                             {"node.left", "node.not_ready", "device.degraded"},
		"severity=error&severity=info":                       {"node.ready", "node.not_ready", "device.degraded"},
		"severity=critical":                                  nil,
		"severity=" + url.QueryEscape("critical,error,info"): {"node.ready", "node.not_ready", "device.degraded"},
	} {
		if got := types(query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	s := p.opened(base, "viewer", "cluster=east&severity=warning,error&type=node.*,device.*&limit=1", "")
	for _, want := range []string{"node.left", "node.not_ready", "device.degraded"} {
		if e := s.event(t); e.Type != want {
			t.Fatalf("the stream has %s, want %s", e.Type, want)
		}
	}
	path := "/v1/events?cluster=east&severity="
	cursor := p.do("viewer", "GET", path+"error,warning&limit=1", nil).want(200).str("next_cursor")
	if n := len(p.do("viewer", "GET", path+"warning&severity=error&limit=2&cursor="+cursor, nil).want(200).items()); n != 2 {
		t.Errorf("the same filter in another spelling: %d events", n)
	}
	for _, other := range []string{path + "error", "/v1/events?cluster=east"} {
		p.do("viewer", "GET", other+"&cursor="+cursor, nil).problem(422, problem.InvalidCursor).points("/query/cursor")
		p.do("viewer", "GET", other, nil, "Accept: "+mediaStream, "Last-Event-ID: "+cursor).problem(422, problem.InvalidCursor).points("/header/Last-Event-ID")
	}

	rules := func(query string) (out []string) {
		for _, a := range p.do("viewer", "GET", "/v1/alerts?cluster=east&since=2020-01-01T00:00:00Z&"+query, nil).want(200).items() {
			if r := fmt.Sprint(a["rule"]); r[:2] == "r-" {
				out = append(out, r)
			}
		}
		slices.Sort(out)
		return out
	}
	for query, want := range map[string][]string{
		"severity=error":                       {"r-error"},
		"severity=critical,warning":            {"r-critical", "r-warning"},
		"severity=critical&severity=warning":   {"r-critical", "r-warning"},
		"severity=critical&state=resolved":     nil,
		"state=firing&severity=error,critical": {"r-critical", "r-error"},
	} {
		if got := rules(query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	cursor = p.do("viewer", "GET", "/v1/alerts?severity=error,warning&limit=1", nil).want(200).str("next_cursor")
	p.do("viewer", "GET", "/v1/alerts?severity=warning,error&limit=1&cursor="+cursor, nil).want(200)
	p.do("viewer", "GET", "/v1/alerts?severity=error&limit=1&cursor="+cursor, nil).problem(422, problem.InvalidCursor)

	for _, list := range []string{"/v1/events", "/v1/alerts"} {
		for _, bad := range []string{"Error", "fatal", "error,fatal", ",", url.QueryEscape(">=error")} {
			p.do("viewer", "GET", list+"?severity="+bad, nil).problem(422, problem.Invalid).points("/query/severity")
		}
	}
}
