package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/problem"
)

const leaked = "AKIAIOSFODNN7EXAMPLE password=hunter2"

// TestSecretsOfAlerts: texts of rules, silences and acknowledgements that look like
// credentials are refused as operations refuse them, each with its place; an
// expression may speak of them.
func TestSecretsOfAlerts(t *testing.T) {
	t.Parallel()
	p := setup(t)
	rule := func(more m) m {
		r := m{"name": "hot", "on": []string{"node.not_ready"}}
		for k, v := range more {
			r[k] = v
		}
		return r
	}
	for pointer, more := range map[string]m{
		"/description":         {"description": "call\nwith " + leaked},
		"/summary":             {"summary": leaked},
		"/runbook":             {"runbook": "https://ada:correcthorse@books.example/hot"},
		"/labels/team":         {"labels": m{"team": leaked}},
		"/when":                {"when": `event.detail.message == "AKIAIOSFODNN7EXAMPLE"`},
		"/group_by/g":          {"group_by": m{"g": `"ghp_` + strings.Repeat("a", 36) + `"`}},
		"/distinct":            {"distinct": `"AKIAIOSFODNN7EXAMPLE"`, "count": 2, "window": "5m"},
		"/absence/expect/when": {"absence": m{"within": "5m", "expect": m{"on": []string{"node.ready"}, "when": `event.subject.name == "AKIAIOSFODNN7EXAMPLE"`}}},
		"/resolve_when/when":   {"resolve_when": m{"on": []string{"node.ready"}, "when": `event.subject.name == "AKIAIOSFODNN7EXAMPLE"`}},
		"/while/each":          {"while": m{"begin": m{"on": []string{"node.drain_started"}}, "end": m{"on": []string{"node.drained"}}, "each": `"AKIAIOSFODNN7EXAMPLE"`}},
	} {
		if a := p.do("admin", "POST", "/v1/rules", rule(more)).problem(422, problem.SecretInRequest).points(pointer); strings.Contains(a.raw, "AKIA") || strings.Contains(a.raw, "ghp_") {
			t.Errorf("%s: the answer has it: %s", pointer, a.raw)
		}
	}
	p.do("admin", "POST", "/v1/rules", rule(m{"description": "the password of the BMC is rotated by vault", "labels": m{"team": "secret: see vault"},
		"when": `has(event.detail.token) && event.detail.token==event.detail.password || event.detail.message.matches("(?i)password=[^ ]{8}")`})).want(201)
	p.do("admin", "PUT", "/v1/rules/hot", rule(m{"labels": m{"team": leaked}})).problem(422, problem.SecretInRequest).points("/labels/team")

	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	silence := func(reason, value string) answer {
		return p.do("operator", "POST", "/v1/silences", m{"reason": reason, "ends_at": ends, "matchers": []m{{"field": "rule", "op": "=", "value": "hot"}, {"field": "labels.team", "op": "=~", "value": value}}})
	}
	silence(leaked, "infra").problem(422, problem.SecretInRequest).points("/reason")
	silence("fans are changed", leaked).problem(422, problem.SecretInRequest).points("/matchers/1/value")
	silence("fans are changed", "infra").want(201)

	p.judge()
	p.do("admin", "PUT", "/v1/rules/hot", rule(nil)).want(200)
	p.judge()
	p.happen(p.cluster.ID, "node.not_ready", 1)
	p.judge()
	list := p.do("viewer", "GET", "/v1/alerts?rule=hot", nil).want(200).items()
	if len(list) != 1 {
		t.Fatalf("%d alerts", len(list))
	}
	acknowledge := alertsPath + "/" + list[0]["id"].(string) + "/acknowledge"
	p.do("operator", "POST", acknowledge, m{"note": leaked}).problem(422, problem.SecretInRequest).points("/note")
	p.do("operator", "POST", acknowledge, m{"note": "fans ordered"}).want(200)
}
