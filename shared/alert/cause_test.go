package alert

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// An alert is about what the event that set it off is about, to its end; what the
// last match was about is beside it.
func TestAlertsAreAboutTheirCause(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		evs        []event.Event
		want       []string // cause and last, with operations
	}{
		{"count", "count: 2\nwindow: 10m\n", []event.Event{fact(0, "x.a", "n1"), fact(time.Minute, "x.a", "n2"), fact(2*time.Minute, "x.a", "n3")},
			[]string{"firing n2 n2", "resolved n2 n3"}},
		{"absence", "absence: {expect: {on: [x.z]}, within: 5m}\nresolve_after: 30m\n", []event.Event{fact(0, "x.a", "n1"), fact(time.Minute, "x.a", "n2"), fact(10*time.Minute, "x.a", "n3")},
			[]string{"firing n1 n2", "resolved n1 n3"}},
		{"while", "while: {begin: {on: [x.begin]}, end: {on: [x.end]}, each: event.subject.name}\nresolve_after: 20m\n",
			[]event.Event{fact(0, "x.a", "n1"), fact(time.Minute, "x.begin", "n2"), fact(2*time.Minute, "x.a", "n3"), fact(3*time.Minute, "x.end", "n2")},
			[]string{"firing n2 n2", "resolved n2 n3"}},
		{"again", "resolve_when: {on: [x.z]}\n", []event.Event{fact(0, "x.a", "n1"), fact(0, "x.a", "n2"), fact(0, "x.z", "n3"), fact(0, "x.a", "n4"), fact(0, "x.z", "n5")},
			[]string{"firing n1 n1", "resolved n1 n2", "firing n4 n4", "resolved n4 n4"}},
		{"flaps", "resolve_when: {on: [x.z]}\nflap: {changes: 2, window: 10m}\n", []event.Event{fact(0, "x.a", "n1"), fact(0, "x.z", "n1"), fact(0, "x.a", "n3"), fact(0, "x.z", "n1")},
			[]string{"firing n1 n1", "flapping n1 n1", "resolved n1 n3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := NewStream(testStream, NewSet([]*Compiled{rule(t, "name: x\non: [x.a]\n"+tt.text)}, nil), Position{}, nil)
			for i := range tt.evs {
				tt.evs[i].OperationID = "op-" + tt.evs[i].Subject.Name
			}
			kept := map[groupKey][]byte{}
			var got []string
			take := func() {
				x := s.Take()
				for _, g := range x.Keep {
					kept[g.key] = encode(t, g)
				}
				for _, g := range x.Forget {
					delete(kept, g.key)
				}
				for _, told := range x.Told {
					a := told.Alert
					got = append(got, told.Kind[len("alert."):]+" "+a.Subject.Name+" "+a.LastSubject.Name)
					if a.Operation != "op-"+a.Subject.Name || a.LastOperation != "op-"+a.LastSubject.Name {
						t.Errorf("operations %s and %s", a.Operation, a.LastOperation)
					}
				}
				var groups []*Group
				for _, data := range kept { // as another process would
					var g Group
					if err := json.Unmarshal(data, &g); err != nil {
						t.Fatal(err)
					}
					groups = append(groups, &g)
				}
				s = NewStream(testStream, s.set, s.Position, groups)
			}
			for _, e := range number(tt.evs) {
				s.Judge(NewVars(&e, nil), never)
				take()
			}
			s.Tick(t0.Add(2*time.Hour), never)
			take()
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
		})
	}
}
