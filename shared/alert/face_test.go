package alert

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// An alert ends as what it was told: under the name, labels, severity, version and
// keys that it fired with, whatever its rule has become, also in a process that
// never knew the rule as it was. One that is kept is told under the new ones, and
// ends so.
func TestAlertsEndAsTheyWereTold(t *testing.T) {
	t.Parallel()
	const before = "name: hot\non: [x.bad]\ngroup_by: {g: event.subject.name}\nlabels: {team: a}\nsummary: '{g} is hot'\nrunbook: https://books.example/1\nresolve_when: {on: [x.good]}\n"
	const told1 = "hot v1 warning map[team:a] map[g:n] n is hot https://books.example/1"
	for _, tt := range []struct {
		name, more string
		change     func(*Rule)
		want       []string
	}{
		{"ended by a severity", "", func(r *Rule) { r.Severity, r.Labels = "critical", map[string]string{"team": "b"} }, []string{"resolved " + told1}},
		{"ended by other groups", "", func(r *Rule) { r.GroupBy = map[string]string{"node": "event.subject.name"} }, []string{"resolved " + told1}},
		{"ended by another name", "", func(r *Rule) { r.Name = "warm" }, []string{"resolved " + told1}},
		{"ended for its cluster", "", func(r *Rule) { r.Severity, r.Clusters = "critical", []string{PlaneCluster} }, []string{"resolved " + told1}},
		{"disabled", "", func(r *Rule) { off := false; r.Severity, r.Enabled = "critical", &off }, []string{"resolved " + told1}},
		{"deleted", "", nil, []string{"resolved " + told1}},
		{"described", "", func(r *Rule) { r.Description = "more" }, []string{"resolved " + told1}},
		{"kept under a severity", "", func(r *Rule) { r.Severity, r.OnChange = "critical", OnChangeKeep },
			[]string{"firing hot v2 critical map[team:a] map[g:n] n is hot https://books.example/1", "resolved hot v2 critical map[team:a] map[g:n] n is hot https://books.example/1"}},
		{"kept under another name", "", func(r *Rule) { r.Name, r.OnChange = "warm", OnChangeKeep },
			[]string{"firing warm v2 warning map[team:a] map[g:n] n is hot https://books.example/1", "resolved warm v2 warning map[team:a] map[g:n] n is hot https://books.example/1"}},
		{"pending, kept under a severity", "for: 10m\n", func(r *Rule) { r.Severity, r.OnChange = "critical", OnChangeKeep },
			[]string{"pending hot v2 critical map[team:a] map[g:n] n is hot https://books.example/1", "resolved hot v2 critical map[team:a] map[g:n] n is hot https://books.example/1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := rule(t, before+tt.more)
			s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
			e := fact(0, "x.bad", "n")
			e.Sequence = 1
			s.Judge(NewVars(&e, nil), never)
			var after []*Compiled
			if tt.change != nil {
				r := c.Rule
				tt.change(&r)
				x, err := Compile(r, c.ID, 2)
				if err != nil {
					t.Fatal(err)
				}
				after = append(after, x)
			}
			x := s.Take()
			var g Group
			if err := json.Unmarshal(encode(t, x.Keep[0]), &g); err != nil {
				t.Fatal(err)
			}
			s = NewStream(testStream, NewSet(after, nil), s.Position, []*Group{&g})
			for range 2 { // a second time means nothing
				s.SetRules(s.set, "2", t0.Add(time.Minute), never)
			}
			e = fact(2*time.Minute, "x.good", "n")
			e.Sequence = 2
			s.Judge(NewVars(&e, nil), never)
			var got []string
			for _, x := range s.Take().Told {
				a := x.Alert
				got = append(got, fmt.Sprintf("%s %s v%d %s %v %v %s %s", x.Kind[len("alert."):], a.Rule, a.RuleVersion, a.Severity, a.Labels, a.Group, a.Summary, a.Runbook))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
		})
	}
}
