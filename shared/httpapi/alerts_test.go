package httpapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/react"
)

const hot = `
name: hot-node
description: A node that is not ready twice in ten minutes.
severity: error
on: [node.not_ready]
group_by: {node: event.subject.id}
count: 2
window: 10m
`

// judge lets the reactor catch up.
func (p *plane) judge() {
	p.t.Helper()
	r := &react.Reactor{Store: p.store}
	streams, err := event.Streams(context.Background(), p.store)
	must(p.t, err)
	for _, s := range streams {
		must(p.t, r.Follow(context.Background(), s))
	}
}

// TestARulesLife: written in YAML, tested against what happened, in force, firing
// with its evidence, acknowledged, silenced, changed, gone.
func TestARulesLife(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.happen(p.cluster.ID, "node.not_ready", 1, 2)

	test := p.do("viewer", "POST", "/v1/rules/test", `{"rule": {"name": "hot-node", "on": ["node.not_ready"], "count": 2, "window": "10m"}}`).want(200)
	if alerts := test.j["alerts"].([]any); len(alerts) != 1 || test.j["judged"].(float64) < 2 || test.j["complete"] != true {
		t.Errorf("tested: %s", test.raw)
	}

	made := p.do("admin", "POST", "/v1/rules", strings.Replace(hot, "group_by: {node: event.subject.id}\n", "", 1), "Content-Type: application/yaml").want(201)
	id := made.str("id")
	if loc := made.header.Get("Location"); loc != "/v1/rules/"+id {
		t.Errorf("location %q", loc)
	}
	p.judge() // begins here
	p.happen(p.cluster.ID, "node.not_ready", 3, 4)
	p.judge()
	list := p.do("viewer", "GET", "/v1/alerts?state=firing&state=pending&rule=hot-node", nil).want(200).items()
	if len(list) != 1 {
		t.Fatalf("%d alerts", len(list))
	}
	a := list[0]
	if a["state"] != "firing" || a["severity"] != "error" || a["cluster"] != p.cluster.ID || len(a["evidence"].([]any)) < 2 {
		t.Errorf("alert %v", a)
	}
	alertID := fmt.Sprint(a["id"])

	p.do("viewer", "POST", "/v1/alerts/"+alertID+"/acknowledge", `{"note":"x"}`).problem(403, problem.Forbidden)
	acked := p.do("operator", "POST", "/v1/alerts/"+alertID+"/acknowledge", `{"note":"fans ordered"}`).want(200)
	if ack := acked.j["acknowledged"].(map[string]any); ack["note"] != "fans ordered" {
		t.Errorf("acknowledged %v", ack)
	}
	p.do("operator", "POST", "/v1/alerts/alr_00000000000000000000000000/acknowledge", `{}`).problem(404, problem.NotFound)

	silence := p.do("operator", "POST", "/v1/silences", map[string]any{"matchers": []map[string]string{{"field": "rule", "op": "=", "value": "hot-node"}},
		"ends_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "reason": "fans are changed"}).want(201)
	if silence.str("state") != "active" {
		t.Errorf("silence %s", silence.raw)
	}
	p.judge()
	if got := p.do("viewer", "GET", "/v1/alerts/"+alertID, nil).want(200); got.str("silenced_by") != silence.str("id") {
		t.Errorf("silenced by %q", got.str("silenced_by"))
	}
	if got := p.do("operator", "DELETE", "/v1/silences/"+silence.str("id"), nil).want(200); got.str("state") != "expired" {
		t.Errorf("ended: %s", got.raw)
	}
	if n := len(p.do("viewer", "GET", "/v1/silences", nil).want(200).items()); n != 0 {
		t.Errorf("%d silences that are not over", n)
	}
	if n := len(p.do("viewer", "GET", "/v1/silences?past=true", nil).want(200).items()); n != 1 {
		t.Errorf("%d silences with those that are over", n)
	}

	got := p.do("viewer", "GET", "/v1/rules/hot-node", nil).want(200)
	changed := strings.Replace(hot, "count: 2", "count: 3", 1)
	p.do("admin", "PUT", "/v1/rules/"+id, changed, "Content-Type: text/yaml", `If-Match: "99"`).problem(412, problem.PreconditionFailed)
	put := p.do("admin", "PUT", "/v1/rules/"+id, changed, "Content-Type: text/yaml", "If-Match: "+got.header.Get("ETag")).want(200)
	if put.j["version"].(float64) != got.j["version"].(float64)+1 {
		t.Errorf("version %v after %v", put.j["version"], got.j["version"])
	}
	p.judge()
	if got := p.do("viewer", "GET", "/v1/alerts/"+alertID, nil).want(200); got.str("state") != "resolved" {
		t.Errorf("after its rule changed it is %s", got.str("state"))
	}
	p.do("admin", "DELETE", "/v1/rules/"+id, nil).want(204)
	p.do("viewer", "GET", "/v1/rules/"+id, nil).problem(404, problem.NotFound)
}

// TestRulesThatAreRefused says which field, and where in it.
func TestRulesThatAreRefused(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for name, c := range map[string]struct{ body, pointer, says string }{
		"no YAML":         {"name: [", "", "line"},
		"an unknown one":  {"name: a\non: [node.left]\nwen: x\n", "/wen", ""},
		"a type":          {"name: a\non: [node.left]\nwhen: event.severity > 3\n", "/when", "line 1"},
		"a cluster":       {"name: a\non: [node.left]\nclusters: [north]\n", "/clusters/0", ""},
		"window 0":        {"name: a\non: [node.left]\ncount: 2\nwindow: 0s\n", "/window", ""},
		"window a year":   {"name: a\non: [node.left]\ncount: 2\nwindow: 365d\n", "/window", ""},
		"a bomb":          {"name: a\non: [node.left]\nwhen: event.subject.name.matches('(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}')\n", "/when", ""},
		"too much":        {"name: a\ndescription: " + strings.Repeat("x", alert.MaxRuleBytes) + "\non: [node.left]\n", "", "limit"},
		"what is shipped": {"name: fatal-xid\non: [node.left]\n", "/name", ""},
	} {
		a := p.do("admin", "POST", "/v1/rules", c.body, "Content-Type: application/yaml")
		if a.status != 422 && a.status != 409 || !strings.Contains(a.raw, c.says) {
			t.Errorf("%s: %d %s", name, a.status, a.raw)
			continue
		}
		if a.status == 422 && c.pointer != "" {
			a.points(c.pointer)
		}
	}
	p.do("admin", "POST", "/v1/rules", hot, "Content-Type: text/plain").problem(415, problem.UnsupportedMediaType)
	p.do("admin", "POST", "/v1/rules/test", `{"rule":{"name":"a","on":["node.left"],"when":"event.nothing"}}`).problem(422, problem.Invalid).points("/rule/when")
	p.do("admin", "POST", "/v1/rules/test", `{"rule":{"name":"a","on":["node.left"]},"since":"yesterday"}`).problem(422, problem.Invalid).points("/since")
	p.do("operator", "POST", "/v1/silences", `{"matchers":[],"ends_at":"2999-01-01T00:00:00Z","reason":"x"}`).problem(422, problem.Invalid)
	p.do("operator", "POST", "/v1/silences", `{"matchers":[{"field":"rule","op":"=~","value":"("}],"ends_at":"2999-01-01T00:00:00Z","reason":"x"}`).problem(422, problem.Invalid)
}

// TestShippedRules are there on the first day; they can be turned off and tuned,
// not replaced, and be put back as they were.
func TestShippedRules(t *testing.T) {
	t.Parallel()
	p := setup(t)
	all := p.walk("viewer", "/v1/rules?limit=5", nil)
	if len(all) != len(alert.ShippedRules()) {
		t.Fatalf("%d rules, %d are shipped", len(all), len(alert.ShippedRules()))
	}
	if a := p.do("viewer", "GET", "/v1/rules/agent-silent", nil).want(200); a.j["shipped"] != true || a.header.Get("ETag") != "" {
		t.Errorf("%s %s", a.header, a.raw)
	}
	p.do("admin", "PUT", "/v1/rules/agent-silent", "name: agent-silent\non: [node.left]\n", "Content-Type: application/yaml").problem(403, problem.Forbidden)
	off := p.do("admin", "PUT", "/v1/rules/agent-silent/override", `{"enabled": false}`).want(200)
	if off.j["override"] == nil || off.header.Get("ETag") == "" {
		t.Errorf("%s", off.raw)
	}
	if n := len(p.do("viewer", "GET", "/v1/rules?enabled=false", nil).want(200).items()); n != 1 {
		t.Errorf("%d rules are off", n)
	}
	p.do("admin", "PUT", "/v1/rules/agent-silent/override", `{"windw": "1m"}`).problem(422, problem.Invalid).points("/windw")
	p.do("admin", "DELETE", "/v1/rules/agent-silent", nil).want(204)
	if a := p.do("viewer", "GET", "/v1/rules/agent-silent", nil).want(200); a.j["override"] != nil {
		t.Errorf("%s", a.raw)
	}
}

// TestAlertsAreOnesOwn: who is confined to a cluster sees and acknowledges its
// alerts and no others, and manages neither rules nor silences.
func TestAlertsAreOnesOwn(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.do("admin", "POST", "/v1/rules", `{"name":"left","on":["node.not_ready"],"group_by":{"node":"event.subject.id"}}`).want(201)
	p.judge()
	p.happen(p.cluster.ID, "node.not_ready", 1)
	p.happen(p.other.ID, "node.not_ready", 1)
	p.judge()
	if n := len(p.do("viewer", "GET", "/v1/alerts?rule=left", nil).want(200).items()); n != 2 {
		t.Fatalf("%d alerts", n)
	}
	mine := p.do("scoped", "GET", "/v1/alerts?rule=left", nil).want(200).items()
	if len(mine) != 1 || mine[0]["cluster"] != p.cluster.ID {
		t.Errorf("seen: %v", mine)
	}
	theirs := p.do("viewer", "GET", "/v1/alerts?rule=left&cluster=west", nil).want(200).items()[0]
	p.do("scoped", "GET", "/v1/alerts?cluster=west", nil).problem(422, problem.Invalid)
	p.do("scoped", "GET", fmt.Sprint("/v1/alerts/", theirs["id"]), nil).problem(404, problem.NotFound)
	p.do("scoped", "POST", fmt.Sprint("/v1/alerts/", theirs["id"], "/acknowledge"), `{}`).problem(404, problem.NotFound)
	p.do("scoped", "POST", fmt.Sprint("/v1/alerts/", mine[0]["id"], "/acknowledge"), `{}`).want(200)
	p.do("scoped", "POST", "/v1/silences", `{"matchers":[{"field":"rule","op":"=","value":"left"}],"ends_at":"2999-01-01T00:00:00Z","reason":"x"}`).problem(403, problem.Forbidden)
	confined := p.token(auth.TokenSpec{Name: "confined admin", Role: auth.Admin, Clusters: []string{p.cluster.ID}})
	p.do(confined, "POST", "/v1/rules", hot, "Content-Type: application/yaml").problem(403, problem.Forbidden)
	p.seesNoOthers()
	cursor := p.do("viewer", "GET", "/v1/alerts?limit=1", nil).want(200).str("next_cursor")
	p.do("viewer", "GET", "/v1/alerts?limit=1&cursor="+cursor, nil).want(200)
	p.do("viewer", "GET", "/v1/alerts?limit=1&rule=left&cluster=west&cursor="+cursor, nil).problem(422, problem.InvalidCursor)
}

// seesNoOthers: who is confined to a cluster reads nothing of silences and rules that
// are for other clusters alone, and no id of those in what is for several.
func (p *plane) seesNoOthers() {
	p.t.Helper()
	east, west := p.cluster.ID, p.other.ID
	silences := map[string]bool{}
	for _, c := range []struct {
		field, op, value string
		seen             bool
	}{
		{"cluster", "=", west, false}, {"cluster", "=", east, true}, {"cluster", "=~", west + "|clu_x", false}, {"cluster", "=~", ".*", true},
		{"cluster", "!=", east, false}, {"rule", "=", "left", true},
	} {
		made := p.do("operator", "POST", "/v1/silences", map[string]any{"matchers": []map[string]string{{"field": c.field, "op": c.op, "value": c.value}},
			"ends_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "reason": "r"}).want(201).str("id")
		silences[made] = c.seen
		if status := p.do("scoped", "GET", "/v1/silences/"+made, nil).status; (status == 200) != c.seen {
			p.t.Errorf("%+v: %d", c, status)
		}
	}
	for _, limit := range []string{"1", "50"} {
		got := p.walk("scoped", "/v1/silences?limit="+limit, nil)
		for _, id := range got {
			if !silences[id] {
				p.t.Errorf("listed silence %s", id)
			}
		}
		if len(got) != 3 {
			p.t.Errorf("%d silences", len(got))
		}
	}
	for name, clusters := range map[string]string{"theirs": `"west"`, "ours": `"west","east","plane"`, "the-planes": `"plane"`} {
		p.do("admin", "POST", "/v1/rules", `{"name":"`+name+`","on":["x.y"],"clusters":[`+clusters+`]}`).want(201)
	}
	p.do("admin", "PUT", "/v1/rules/agent-silent/override", `{"clusters":["west"]}`).want(200)
	p.do("admin", "PUT", "/v1/rules/fatal-xid/override", `{"clusters":["west","east"]}`).want(200)
	for name, seen := range map[string]bool{"theirs": false, "ours": true, "the-planes": false, "agent-silent": false, "fatal-xid": true, "stream-gap": true} {
		a := p.do("scoped", "GET", "/v1/rules/"+name, nil)
		if (a.status == 200) != seen || strings.Contains(a.raw, west) || a.status == 200 && name != "stream-gap" && !strings.Contains(a.raw, east) {
			p.t.Errorf("rule %s: %s", name, a.raw)
		}
		p.do("viewer", "GET", "/v1/rules/"+name, nil).want(200)
	}
	if all := p.do("scoped", "GET", "/v1/rules?limit=100", nil).want(200); strings.Contains(all.raw, west) || strings.Contains(all.raw, "theirs") || !strings.Contains(all.raw, "ours") {
		p.t.Error(all.raw)
	}
}

// Of tests of rules a process judges so many at once and no more; the others are
// told when to come again.
func TestTestsOfRulesAtOnce(t *testing.T) {
	t.Parallel()
	p := setup(t)
	const body = `{"rule":{"name":"a","on":["node.left"]}}`
	var ends []func()
	for range maxTests {
		end, err := p.api.beginTest()
		must(t, err)
		ends = append(ends, end)
	}
	if a := p.do("viewer", "POST", "/v1/rules/test", body).problem(429, problem.TooManyWaits); a.header.Get("Retry-After") != "5" {
		t.Errorf("come again after %q", a.header.Get("Retry-After"))
	}
	ends[0]()
	for range maxTests + 1 {
		p.do("viewer", "POST", "/v1/rules/test", body).want(200)
	}
	p.do("viewer", "POST", "/v1/rules/test", `{"rule":{"name":"a","on":["node.left"],"when":"x"}}`).problem(422, problem.Invalid)
	p.do("viewer", "POST", "/v1/rules/test", body).want(200)
}

// The plane's own events, alerts and rules are asked for by one name, which no
// cluster has.
func TestThePlaneByName(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.happen(event.PlaneStream, "queue.dead_letter", 1)
	p.happen(p.cluster.ID, "node.left", 1)
	for _, x := range p.do("viewer", "GET", "/v1/events?cluster=plane&limit=200", nil).want(200).items() {
		if x["stream"] != event.PlaneStream {
			t.Errorf("of another stream: %v", x)
		}
	}
	if n := len(p.do("viewer", "GET", "/v1/events?cluster=plane&type=queue.dead_letter", nil).want(200).items()); n != 1 {
		t.Errorf("%d events", n)
	}
	p.do("viewer", "GET", "/v1/alerts?cluster=plane", nil).want(200)
	p.do("admin", "POST", "/v1/rules", `{"name":"a","on":["x.y"],"clusters":["plane"]}`).want(201)
	p.do("scoped", "GET", "/v1/events?cluster=plane", nil).problem(422, problem.Invalid).points("/query/cluster")
	p.do("admin", "POST", "/v1/clusters", `{"name":"plane"}`).problem(422, problem.Invalid)
}
