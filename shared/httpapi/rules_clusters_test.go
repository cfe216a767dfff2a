package httpapi

import (
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/problem"
)

// What names a cluster that was deleted says so, and may be put as it is shown; a new
// mention of it is refused as ever.
func TestWhatNamesADeletedCluster(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	id := p.other.ID
	rule := func(name string, clusters ...string) m {
		return m{"name": name, "on": []string{"node.left"}, "clusters": clusters}
	}
	p.do("admin", "POST", "/v1/rules", rule("one", "west")).want(201).warns()
	p.do("admin", "POST", "/v1/rules", rule("two", "west", "east", "plane")).want(201).warns()
	p.do("admin", "PUT", "/v1/rules/device-degraded/override", m{"clusters": []string{"west"}}).want(200).warns()
	var silences []string
	for _, op := range []string{"=", "!=", "=~"} {
		value := id
		silences = append(silences, p.do("operator", "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": matcher("cluster", op, value)}).want(201).warns().str("id"))
	}
	plane := p.do("operator", "POST", "/v1/silences", m{"reason": "x", "ends_at": ends, "matchers": matcher("cluster", "=", "plane")}).want(201).warns().str("id")
	must(t, p.reg.Delete(t.Context(), root, "west"))

	gone := "clusters names " + id + ", which there is not"
	p.do("viewer", "GET", "/v1/rules/one", nil).want(200).warns(gone)
	p.do("viewer", "GET", "/v1/rules/two", nil).want(200).warns(gone)
	p.do("viewer", "GET", "/v1/rules/device-degraded", nil).want(200).warns(gone)
	for _, x := range p.do("viewer", "GET", "/v1/rules?shipped=false", nil).want(200).items() {
		if len(x["warnings"].([]any)) != 1 {
			t.Errorf("listed %v", x)
		}
	}
	for i, want := range []string{"there is no cluster " + id, "there is no cluster " + id + ": != holds for all that there are", fmt.Sprintf("no cluster's id matches %q", id)} {
		p.do("viewer", "GET", "/v1/silences/"+silences[i], nil).want(200).warns(want)
	}
	p.do("viewer", "GET", "/v1/silences/"+plane, nil).want(200).warns()

	shown := p.do("viewer", "GET", "/v1/rules/one", nil).want(200).j["rule"]
	p.do("admin", "PUT", "/v1/rules/one", shown).want(200).warns(gone)
	p.do("viewer", "POST", "/v1/rules/test", m{"rule": shown}).want(200).warns(gone)
	p.do("admin", "PUT", "/v1/rules/device-degraded/override", m{"clusters": []string{id, "east"}}).want(200).warns(gone)
	p.do("admin", "POST", "/v1/rules", rule("three", id)).problem(422, problem.Invalid).points("/clusters/0")
	p.do("admin", "PUT", "/v1/rules/one", rule("one", "west")).problem(422, problem.Invalid).points("/clusters/0")
	p.do("admin", "PUT", "/v1/rules/one", rule("one", "east")).want(200).warns()
	p.do("admin", "PUT", "/v1/rules/one", rule("one", id)).problem(422, problem.Invalid).points("/clusters/0")
}
