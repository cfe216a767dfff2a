package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/problem"
)

func matcher(field, op, value string) []m { return []m{{"field": field, "op": op, "value": value}} }

// Matchers of silences and receivers take clusters by id or name, and keep both;
// what no alert can have is refused with its place.
func TestMatchers(t *testing.T) {
	t.Parallel()
	p := setup(t, func(c *Config) { c.Receivers = &notify.Service{Store: c.Store} })
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	silence := func(ms []m) answer {
		return p.do("operator", "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": ms})
	}
	n := 0
	receiver := func(ms []m) answer {
		n++
		return p.do("admin", "POST", "/v1/receivers", m{"name": fmt.Sprint("r", n), "kind": "webhook", "url": "https://hooks.example.com/x", "matchers": ms})
	}
	for what, create := range map[string]func([]m) answer{"silence": silence, "receiver": receiver} {
		for name, ms := range map[string][]m{"by name": matcher("cluster", "=", p.cluster.Name), "by id": matcher("cluster", "=", p.cluster.ID), "not": matcher("cluster", "!=", p.cluster.Name)} {
			got := create(ms).want(201).j["matchers"].([]any)[0]
			want := map[string]any{"field": "cluster", "op": ms[0]["op"], "value": p.cluster.ID, "name": p.cluster.Name}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s %s: %s", what, name, d)
			}
		}
		for _, ms := range [][]m{matcher("cluster", "=", "plane"), matcher("cluster", "=~", "clu_.*"), matcher("severity", "=~", "error|critical"), matcher("severity", "!=", "info")} {
			create(ms).want(201)
		}
		for _, ms := range [][]m{matcher("cluster", "=", "nope"), matcher("cluster", "!=", "nope"), matcher("cluster", "=", "clu_00000000000000000000000000"), matcher("cluster", "=~", p.cluster.Name)} {
			create(ms).problem(422, problem.Invalid).points("/matchers/0/value")
		}
		for _, op := range []string{"=", "!=", "=~"} {
			if a := create(matcher("severity", op, "bogus")).problem(422, problem.Invalid).points("/matchers/0/value"); !strings.Contains(a.raw, "info, warning, error, critical") {
				t.Errorf("%s does not say what may be: %s", what, a.raw)
			}
		}
	}
	// By a name it silences, of a cluster and of the plane.
	p.do("admin", "POST", "/v1/rules", "name: hot\non: [node.not_ready]\n", "Content-Type: application/yaml").want(201)
	p.judge()
	p.happen(p.cluster.ID, "node.not_ready", 1)
	p.judge()
	for _, x := range p.do("viewer", "GET", "/v1/alerts?rule=hot", nil).want(200).items() {
		if x["silenced_by"] == nil {
			t.Errorf("not silenced: %v", x)
		}
	}
}

// An operator who is confined to clusters silences these, and ends no other silence.
func TestSilencesOfOnesOwnCluster(t *testing.T) {
	t.Parallel()
	p := setup(t)
	mine := p.token(auth.TokenSpec{Name: "mine", Role: auth.Operator, Clusters: []string{p.cluster.ID}})
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	create := func(role string, ms ...m) answer {
		return p.do(role, "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": ms})
	}
	own, theirs := matcher("cluster", "=", p.cluster.Name)[0], matcher("cluster", "=", p.other.Name)[0]
	all := matcher("rule", "=~", ".*")[0]
	id := create(mine, all, own).want(201).str("id")
	p.do(mine, "DELETE", "/v1/silences/"+id, nil).want(200)
	create(mine, all).problem(403, problem.Forbidden)
	create(mine, all, matcher("cluster", "=", "plane")[0]).problem(403, problem.Forbidden)
	create(mine, all, matcher("cluster", "!=", p.cluster.Name)[0]).problem(403, problem.Forbidden)
	create(mine, all, theirs).problem(422, problem.Invalid).points("/matchers/1/value")
	of := create("operator", all).want(201).str("id")
	p.do(mine, "DELETE", "/v1/silences/"+of, nil).problem(403, problem.Forbidden)
	of = create("operator", all, theirs).want(201).str("id")
	p.do(mine, "DELETE", "/v1/silences/"+of, nil).problem(404, problem.NotFound)
}

// Alerts are filtered by several states at once, and a rule says that it is on.
func TestStatesByCommas(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.do("admin", "POST", "/v1/rules", "name: hot\non: [node.not_ready]\n", "Content-Type: application/yaml").want(201)
	if r := p.do("viewer", "GET", "/v1/rules/hot", nil).want(200).j["rule"].(map[string]any); r["enabled"] != true {
		t.Errorf("%v", r)
	}
	p.judge()
	p.happen(p.cluster.ID, "node.not_ready", 1)
	p.judge()
	for query, want := range map[string]int{"state=firing,pending": 1, "state=pending,resolved": 0, "state=resolved&state=firing": 1} {
		if got := p.do("viewer", "GET", "/v1/alerts?rule=hot&"+query, nil).want(200).items(); len(got) != want {
			t.Errorf("%s: %d alerts", query, len(got))
		}
	}
	for _, query := range []string{"state=gone", "state=firing,gone", "state=,"} {
		p.do("viewer", "GET", "/v1/alerts?"+query, nil).problem(422, problem.Invalid).points("/query/state")
	}
	p.do("", "GET", "/docs/runbooks/fatal-xid", nil).want(200)
	p.do("", "GET", "/docs/runbooks/none", nil).problem(404, problem.NotFound)
}

// A type that is in no catalogue is taken, and warned of; no shipped rule has one.
func TestRulesWarnOfUnknownTypes(t *testing.T) {
	t.Parallel()
	p := setup(t)
	made := p.do("admin", "POST", "/v1/rules", "name: hot\non: [node.not_redy, node.*, x.*]\nresolve_when: {on: [node.ready, node.good]}\n", "Content-Type: application/yaml").want(201)
	want := []any{"event type node.good is in no catalogue: nothing known tells it", "event type node.not_redy is in no catalogue: nothing known tells it"}
	if d := cmp.Diff(want, made.j["warnings"]); d != "" {
		t.Error(d)
	}
	for _, r := range p.do("viewer", "GET", "/v1/rules?shipped=true", nil).want(200).items() {
		if w := r["warnings"].([]any); len(w) != 0 {
			t.Errorf("%v: %v", r["id"], w)
		}
	}
}
