package alert

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// Numbers that are the same to a condition are one group: also nought with a sign, and
// whole numbers past 2^53, which are doubles here.
func TestNumbersOfGroups(t *testing.T) {
	t.Parallel()
	c := rule(t, "name: x\non: [x.a]\ngroup_by: {g: event.detail.n}\n")
	got := map[string]int64{}
	s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
	var evs []event.Event
	for _, n := range []string{"0", "-0", "-0.0", "7", "7.0", "-7", "9007199254740993", "9007199254740992"} {
		e := fact(0, "x.a", "n1")
		e.Detail = json.RawMessage(`{"n":` + n + `}`)
		evs = append(evs, e)
	}
	for _, e := range number(evs) {
		s.Judge(NewVars(&e, nil), never)
	}
	for _, g := range s.Open() {
		got[g.Values[0]] = g.Count
	}
	if d := cmp.Diff(map[string]int64{"0": 3, "7": 2, "-7": 1, "9007199254740992": 2}, got); d != "" {
		t.Errorf("matches by group (-want +got):\n%s", d)
	}
}
