package alert

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// window is a silence of the rule "flaps" in a set of silences.
type window struct {
	id       string
	from, to time.Duration
	group    string // "": all
}

func windows(t *testing.T, c *Compiled, ws ...window) *Set {
	t.Helper()
	var out []*Matcher
	for _, w := range ws {
		ms := []Match{{Field: "rule", Op: OpEqual, Value: "flaps"}}
		if w.group != "" {
			ms = append(ms, Match{Field: "group.g", Op: OpEqual, Value: w.group})
		}
		m, err := CompileSilence(Silence{ID: w.id, Matchers: ms, StartsAt: t0.Add(w.from), EndsAt: t0.Add(w.to), Reason: "work"})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return NewSet([]*Compiled{c}, out)
}

// What a silence means for an alert that fires already is told, once: that it
// begins, also when that was planned, that another takes its place, that it ends
// or is ended. Of one that is pending, or that the silence is not for, nothing is.
func TestSilencesOfWhatFires(t *testing.T) {
	t.Parallel()
	type change struct {
		at time.Duration
		ws []window
	}
	const m = time.Minute
	for _, tt := range []struct {
		name    string
		more    string // of the rule
		changes []change
		want    []string
	}{
		{"it begins at once and ends", "", []change{{10 * m, []window{{"s1", 10 * m, 20 * m, ""}}}},
			[]string{"10m0s silenced s1 s1", "20m0s unsilenced s1 ", "20m0s firing  "}},
		{"it was planned before", "", []change{{0, []window{{"s1", 10 * m, 20 * m, ""}}}},
			[]string{"10m0s silenced s1 s1", "20m0s unsilenced s1 ", "20m0s firing  "}},
		{"within a millisecond", "", []change{{0, []window{{"s1", 10*m + 1500*time.Microsecond, 20*m + 100, ""}}}},
			[]string{"10m0.002s silenced s1 s1", "20m0.001s unsilenced s1 ", "20m0.001s firing  "}},
		{"one that lasts longer takes its place", "", []change{{0, []window{{"s1", 10 * m, 20 * m, ""}, {"s2", 15 * m, 30 * m, ""}, {"s3", 16 * m, 18 * m, ""}}}},
			[]string{"10m0s silenced s1 s1", "15m0s silenced s2 s2", "30m0s unsilenced s2 ", "30m0s firing  "}},
		{"it is ended early, and another is in force", "", []change{
			{0, []window{{"s1", 10 * m, 40 * m, ""}, {"s2", 12 * m, 20 * m, ""}}},
			{15 * m, []window{{"s1", 10 * m, 15 * m, ""}, {"s2", 12 * m, 20 * m, ""}}}},
			[]string{"10m0s silenced s1 s1", "15m0s silenced s2 s2", "20m0s unsilenced s2 ", "20m0s firing  "}},
		{"it is ended early", "", []change{{5 * m, []window{{"s1", 5 * m, 40 * m, ""}}}, {6 * m, []window{{"s1", 5 * m, 6 * m, ""}}}},
			[]string{"5m0s silenced s1 s1", "6m0s unsilenced s1 ", "6m0s firing  "}},
		{"it is gone", "", []change{{5 * m, []window{{"s1", 5 * m, 40 * m, ""}}}, {6 * m, nil}},
			[]string{"5m0s silenced s1 s1", "6m0s unsilenced s1 ", "6m0s firing  "}},
		{"one after another", "", []change{{0, []window{{"s1", 5 * m, 10 * m, ""}, {"s2", 10 * m, 15 * m, ""}}}},
			[]string{"5m0s silenced s1 s1", "10m0s silenced s2 s2", "15m0s unsilenced s2 ", "15m0s firing  "}},
		{"for another group", "", []change{{5 * m, []window{{"s1", 5 * m, 40 * m, "b"}}}}, nil},
		{"it is never in force", "", []change{{5 * m, []window{{"s1", 5*m + 1, 5*m + 2, ""}}}, {6 * m, nil}}, nil},
		{"of a pending one", "for: 30m\n", []change{{5 * m, []window{{"s1", 5 * m, 40 * m, ""}}}},
			[]string{"30m0s firing  s1", "40m0s unsilenced s1 ", "40m0s firing  "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := rule(t, flapping+tt.more)
			s := NewStream(testStream, windows(t, c), Position{}, nil)
			kept := map[groupKey][]byte{}
			var got []string
			take := func() { // it goes on from what is kept, as another process would
				t.Helper()
				x := s.Take()
				for _, g := range x.Keep {
					kept[g.key] = encode(t, g)
				}
				for _, g := range x.Forget {
					delete(kept, g.key)
				}
				for _, told := range x.Told {
					if told.Kind != TypePending && told.Alert.Reason != ReasonHolds || told.Alert.SilencedBy != "" {
						got = append(got, told.At.Sub(t0).String()+" "+told.Kind[len("alert."):]+" "+told.Silence+" "+told.Alert.SilencedBy)
					}
				}
				var groups []*Group
				for _, data := range kept {
					var g Group
					if err := json.Unmarshal(data, &g); err != nil {
						t.Fatal(err)
					}
					groups = append(groups, &g)
				}
				s = NewStream(testStream, s.set, s.Position, groups)
			}
			e := fact(0, "x.bad", "a")
			e.Sequence = 1
			s.Judge(NewVars(&e, nil), never)
			take()
			for _, x := range tt.changes {
				s.Tick(t0.Add(x.at), never)
				take()
				for range 2 { // a second time means nothing
					s.SetRules(windows(t, c, x.ws...), "x", t0.Add(x.at), never)
					take()
				}
			}
			for at := time.Duration(0); at <= time.Hour; at += 7 * m {
				s.Tick(t0.Add(at), never)
				take()
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
		})
	}
}
