package alert

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// back is the event that the stream's clock was set back.
func back(from, to time.Duration) event.Event {
	e := fact(to, event.TypeClockSetBack, "s")
	b, err := json.Marshal(event.SetBackDetail{From: t0.Add(from), To: t0.Add(to), Ahead: (from - to).Milliseconds(), Judged: t0.Add(from)})
	if err != nil {
		panic(err)
	}
	e.Detail = b
	return e
}

// TestAClockThatWasAhead: what began or was seen while the stream's clock was ahead goes
// on from the set-back, what began before it keeps its time, and nothing comes early.
func TestAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	const (
		s, h  = time.Second, time.Hour
		on    = "name: r\non: [x.bad]\ngroup_by: {g: event.subject.name}\n"
		ended = "resolve_when: {on: [x.good]}\n"
	)
	silenced, err := CompileSilence(Silence{ID: "sil_1", Matchers: []Match{{Field: "rule", Op: OpEqual, Value: "r"}}, Reason: "x", StartsAt: t0, EndsAt: t0.Add(h)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rule     string
		evs      []event.Event
		silences []*Matcher
		want     []string
	}{
		"for, that began meanwhile": {on + "for: 5s\nresolve_after: 9h\n", []event.Event{fact(2*h, "x.bad", "a"), back(2*h, 20*s)}, nil,
			[]string{"2h0m0s pending r{a} condition_holds", "25s firing r{a} condition_holds"}},
		"for, that began before": {on + "for: 3h\nresolve_after: 9h\n", []event.Event{fact(0, "x.bad", "a"), fact(2*h, "x.other", "a"), back(2*h, 20*s)}, nil,
			[]string{"0s pending r{a} condition_holds", "3h0m0s firing r{a} condition_holds"}},
		"for, that was due by then": {on + "for: 1h\nresolve_after: 9h\n", []event.Event{fact(0, "x.bad", "a"), back(2*h, 20*s)}, nil,
			[]string{"0s pending r{a} condition_holds", "1h0m0s firing r{a} condition_holds"}},
		"quiet": {on + "resolve_after: 4s\n", []event.Event{fact(2*h, "x.bad", "a"), back(2*h, 20*s)}, nil,
			[]string{"2h0m0s firing r{a} condition_holds", "24s resolved r{a} quiet"}},
		"absence": {on + "absence: {expect: {on: [x.good]}, within: 5s}\n", []event.Event{fact(2*h, "x.bad", "a"), back(2*h, 20*s)}, nil,
			[]string{"25s firing r{a} condition_holds"}},
		"keep_firing_for": {on + ended + "keep_firing_for: 5s\n", []event.Event{fact(0, "x.bad", "a"), fact(2*h, "x.good", "a"), back(2*h, 20*s)}, nil,
			[]string{"0s firing r{a} condition_holds", "25s resolved r{a} condition_ended"}},
		"a window": {on + ended + "count: 3\nwindow: 1m\n", []event.Event{fact(2*h, "x.bad", "a"), back(2*h, 20*s), fact(30*s, "x.bad", "a"), fact(40*s, "x.bad", "a")}, nil,
			[]string{"40s firing r{a} condition_holds"}},
		"a window that is over": {on + ended + "count: 3\nwindow: 1m\n", []event.Event{fact(2*h, "x.bad", "a"), back(2*h, 20*s), fact(80*s, "x.bad", "a"), fact(90*s, "x.bad", "a")}, nil, []string{}},
		"flapping": {on + ended + "flap: {changes: 2, window: 10m}\n", []event.Event{fact(2*h, "x.bad", "a"), fact(2*h+s, "x.good", "a"), back(2*h+s, 20*s)}, nil,
			[]string{"2h0m0s firing r{a} condition_holds", "2h0m1s flapping r{a} flapping", "10m20s resolved r{a} steady"}},
		"a silence that was not over": {on + ended, []event.Event{fact(2*h, "x.bad", "a"), back(2*h, 20*s)}, []*Matcher{silenced},
			[]string{"2h0m0s firing r{a} condition_holds", "20s silenced r{a} silenced", "1h0m0s unsilenced r{a} silence_over", "1h0m0s firing r{a} silence_over"}},
		"twice": {on + "for: 5s\nresolve_after: 9h\n", []event.Event{fact(2*h, "x.bad", "a"), back(2*h, 20*s), fact(21*s, "x.bad", "b"), fact(4*h, "x.bad", "c"), back(4*h, 30*s)}, nil,
			[]string{"2h0m0s pending r{a} condition_holds", "21s pending r{b} condition_holds", "25s firing r{a} condition_holds", "26s firing r{b} condition_holds",
				"4h0m0s pending r{c} condition_holds", "35s firing r{c} condition_holds"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := NewSet([]*Compiled{rule(t, c.rule)}, c.silences)
			got := playOn(t, NewStream(testStream, set, Position{}, nil), 8*h, c.evs...)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.want, inParts(t, set, 8*h, c.evs)); d != "" {
				t.Errorf("told, each group in a commit of its own (-want +got):\n%s", d)
			}
		})
	}
}

// inParts plays as playOn does, but is full after each group, and goes on from what is
// kept.
func inParts(t *testing.T, set *Set, until time.Duration, evs []event.Event) []string {
	t.Helper()
	s := NewStream(testStream, set, Position{}, nil)
	kept := map[string]*Group{}
	var out []string
	full := func() bool { groups, told, _ := s.Load(); return groups+told > 0 }
	step := func(do func() bool) {
		for i := 0; ; i++ {
			whole := do()
			c := s.Take()
			out = append(out, lines(c.Told)...)
			for _, g := range c.Keep {
				kept[g.Hash()] = g
			}
			for _, g := range c.Forget {
				delete(kept, g.Hash())
			}
			var at Position
			if err := json.Unmarshal(encode(t, s.Position), &at); err != nil {
				t.Fatal(err)
			}
			var groups []*Group
			for _, g := range kept {
				var again Group
				if err := json.Unmarshal(encode(t, g), &again); err != nil {
					t.Fatal(err)
				}
				groups = append(groups, &again)
			}
			s = NewStream(testStream, set, at, groups)
			if whole {
				return
			}
			if i > 100 {
				t.Fatal("it does not come to an end")
			}
		}
	}
	for _, e := range number(evs) {
		step(func() bool { return s.Judge(NewVars(&e, nil), full) })
	}
	step(func() bool { return s.Tick(t0.Add(until), full) })
	if out == nil {
		out = []string{}
	}
	return out
}
