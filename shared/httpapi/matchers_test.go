package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
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
	for _, field := range []string{"rule", "group.node", "labels.team"} {
		body := fmt.Sprintf(`{"reason":"x","ends_at":%q,"matchers":[{"field":%q,"op":"=","value":"k-\ud800"}]}`, ends, field)
		p.do("operator", "POST", "/v1/silences", body).problem(422, problem.Invalid).points("/matchers/0/value")
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

// A silence that was ended before it began stays one of its cluster's operator.
func TestSilenceEndedBeforeItBegan(t *testing.T) {
	t.Parallel()
	p := setup(t)
	mine := p.token(auth.TokenSpec{Name: "mine", Role: auth.Operator, Clusters: []string{p.cluster.ID}})
	begins := time.Now().Add(time.Hour).UTC()
	id := p.do(mine, "POST", "/v1/silences", m{"reason": "x", "starts_at": begins, "ends_at": begins.Add(time.Hour),
		"matchers": matcher("cluster", "=", p.cluster.ID)}).want(201).str("id")
	for range 2 {
		if a := p.do(mine, "DELETE", "/v1/silences/"+id, nil).want(200); a.str("state") != "expired" {
			t.Errorf("%s", a.raw)
		}
	}
	p.do(mine, "GET", "/v1/silences/"+id, nil).want(200)
	if got := p.do(mine, "GET", "/v1/silences?past=true", nil).want(200).items(); len(got) != 1 {
		t.Errorf("%d silences with those that are over", len(got))
	}
}

// Who is confined to clusters learns nothing of others' ids by patterns: one that
// another cluster's id matches is answered as one that none does.
func TestPatternsTellNothingOfOtherClusters(t *testing.T) {
	t.Parallel()
	p := setup(t)
	mine := p.token(auth.TokenSpec{Name: "mine", Role: auth.Operator, Clusters: []string{p.cluster.ID}})
	ends := time.Now().Add(time.Hour).UTC()
	create := func(pattern string) answer {
		return p.do(mine, "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": matcher("cluster", "=~", pattern)})
	}
	for _, pattern := range []string{p.other.ID, p.other.ID[:len(p.other.ID)-2] + "..", "clu_00000000000000000000000000"} {
		create(pattern).problem(422, problem.Invalid).points("/matchers/0/value")
	}
	create(p.cluster.ID).problem(403, problem.Forbidden) // a pattern is no cluster of its own
}

// Who repeats a silence's creation by its key, and may not silence that cluster any
// more, does not get it.
func TestRepeatedSilenceOfAnothersCluster(t *testing.T) {
	t.Parallel()
	p := setup(t)
	secret := p.token(auth.TokenSpec{Name: "mine", Role: auth.Operator, Clusters: []string{p.cluster.ID}})
	ends := time.Now().Add(time.Hour).UTC()
	create := func() answer {
		return p.do(secret, "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": matcher("cluster", "=", p.cluster.ID)}, "Idempotency-Key: k")
	}
	made := create().want(201).str("id")
	if again := create().want(200).str("id"); again != made {
		t.Errorf("repeated: %s, not %s", again, made)
	}
	p.confine(secret, p.other.ID)
	if a := create().problem(403, problem.Forbidden); strings.Contains(a.raw, made) {
		t.Errorf("%s", a.raw)
	}
}

// confine changes the clusters of a token, as whoever says what it may would.
func (p *plane) confine(secret, cluster string) {
	p.t.Helper()
	ctx := context.Background()
	id := "tok_" + strings.TrimPrefix(secret, "opt_")[:26] // the rest is secret
	it, err := p.db.Get(ctx, ledger.Key{PK: "token#" + id, SK: "token"})
	must(p.t, err)
	var token map[string]any
	must(p.t, json.Unmarshal(it.Data, &token))
	token["clusters"] = []string{cluster}
	it.Data, err = json.Marshal(token)
	must(p.t, err)
	must(p.t, p.db.Commit(ctx, ledger.Write{Item: it, Expect: it.Version}))
	p.tokens.Forget(id)
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
