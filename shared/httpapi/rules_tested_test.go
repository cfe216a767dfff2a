package httpapi

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTestsRefuseWhatSavingRefuses: with the same codes and texts, at the same places
// below /rule. A name that is taken is no fault of a test.
func TestTestsRefuseWhatSavingRefuses(t *testing.T) {
	t.Parallel()
	p := setup(t)
	faults := func(a answer, below string) []problemFieldView {
		t.Helper()
		var v problemView
		must(t, json.Unmarshal([]byte(a.want(422).raw), &v))
		for i := range v.Errors {
			v.Errors[i].Pointer = below + v.Errors[i].Pointer
		}
		return append(v.Errors, problemFieldView{Code: v.ErrorCode}) // and the answer's own
	}
	nested := "event.detail.a.all(x, string(x).matches('^(node|gpu|disk|fan|link|port)-[0-9]+-(north|south|east|west|upper|lower)-[0-9]+$'))"
	for name, more := range map[string]m{
		"a window of nothing":      {"window": "5m"},
		"a summary without a key":  {"summary": "{nokey}"},
		"a runbook nobody follows": {"runbook": "ftp://x"},
		"an unknown inhibitor":     {"inhibited_by": []m{{"rule": "nobody"}}},
		"itself":                   {"inhibited_by": []m{{"rule": "hot"}}},
		"a secret":                 {"labels": m{"team": leaked}},
		"a dear expression":        {"when": nested},
		"several":                  {"window": "5m", "summary": "{nokey}", "runbook": "ftp://x", "description": leaked, "inhibited_by": []m{{"rule": "nobody"}}},
		"a type":                   {"when": "event.severity > 3"},
		"a cluster":                {"clusters": []string{"nope"}},
		"a count":                  {"count": 2},
	} {
		rule := m{"name": "hot", "on": []string{"node.not_ready"}}
		for k, v := range more {
			rule[k] = v
		}
		saved := faults(p.do("admin", "POST", "/v1/rules", rule), "/rule")
		if d := cmp.Diff(saved, faults(p.do("viewer", "POST", "/v1/rules/test", m{"rule": rule}), "")); d != "" {
			t.Errorf("%s (-saved +tested):\n%s", name, d)
		}
	}
	rule := m{"name": "hot", "on": []string{"node.not_ready"}, "summary": "{g}", "group_by": m{"g": "event.subject.name"}}
	p.do("admin", "POST", "/v1/rules", rule).want(201)
	p.do("viewer", "POST", "/v1/rules/test", m{"rule": rule}).want(200)
	p.do("viewer", "POST", "/v1/rules/test", m{"rule": m{"name": "fatal-xid", "on": []string{"node.left"}}}).want(200)
	for _, r := range p.do("viewer", "GET", "/v1/rules?limit=200", nil).want(200).items() {
		p.do("viewer", "POST", "/v1/rules/test", m{"rule": r["rule"]}).want(200)
	}
}
