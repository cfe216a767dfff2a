package alert

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// kept plays a stream in a new process after each step: from its position and its
// groups as they were written.
type kept struct {
	t      *testing.T
	s      *Stream
	groups map[groupKey][]byte
	told   []Transition
}

func (k *kept) again(set *Set) {
	k.t.Helper()
	x := k.s.Take()
	for _, g := range x.Keep {
		k.groups[g.key] = encode(k.t, g)
	}
	for _, g := range x.Forget {
		delete(k.groups, g.key)
	}
	k.told = append(k.told, x.Told...)
	var at Position
	if err := json.Unmarshal(encode(k.t, k.s.Position), &at); err != nil {
		k.t.Fatal(err)
	}
	var groups []*Group
	for _, data := range k.groups {
		var g Group
		if err := json.Unmarshal(data, &g); err != nil {
			k.t.Fatal(err)
		}
		groups = append(groups, &g)
	}
	k.s = NewStream(testStream, set, at, groups)
}

// What inhibits an alert that was told already is told of, and shown, once it fires:
// whoever judges, however little one commit takes, however often an event comes.
func TestInhibitorsThatComeLater(t *testing.T) {
	t.Parallel()
	const m = time.Minute
	high := "name: high\n" + high
	higher := "name: higher\non: [x.worst]\nresolve_when: {on: [x.over]}\n"
	for _, tt := range []struct {
		name  string
		rules []string
		evs   []event.Event
		want  []string
	}{
		{"it fires later", []string{low + by, high}, []event.Event{fact(0, "x.bad", "a"), fact(0, "x.bad", "b"), fact(m, "x.worse", "a"), fact(2*m, "x.better", "a")}, []string{
			"0s firing low{a} condition_holds", "0s firing low{b} condition_holds", "1m0s firing high{a} condition_holds", "1m0s inhibited low{a} inhibited*",
			"2m0s resolved high{a} condition_ended", "2m0s firing low{a} inhibition_over"}},
		{"what it inhibits ends first", []string{low + by, high}, []event.Event{fact(0, "x.bad", "a"), fact(m, "x.worse", "a"), fact(2*m, "x.good", "a"), fact(3*m, "x.better", "a")}, []string{
			"0s firing low{a} condition_holds", "1m0s firing high{a} condition_holds", "1m0s inhibited low{a} inhibited*", "2m0s resolved low{a} condition_ended*",
			"3m0s resolved high{a} condition_ended"}},
		{"a pending one is told nothing of it", []string{low + by + "for: 5m\n", high}, []event.Event{fact(0, "x.bad", "a"), fact(m, "x.worse", "a"), fact(6*m, "x.better", "a")}, []string{
			"0s pending low{a} condition_holds", "1m0s firing high{a} condition_holds", "5m0s firing low{a} condition_holds*", "6m0s resolved high{a} condition_ended",
			"6m0s firing low{a} inhibition_over"}},
		{"it is pending", []string{low + by, high + "for: 5m\n"}, []event.Event{fact(0, "x.bad", "a"), fact(m, "x.worse", "a"), fact(10*m, "x.better", "a")}, []string{
			"0s firing low{a} condition_holds", "1m0s pending high{a} condition_holds", "6m0s firing high{a} condition_holds", "6m0s inhibited low{a} inhibited*",
			"10m0s resolved high{a} condition_ended", "10m0s firing low{a} inhibition_over"}},
		{"another takes its place", []string{low + "inhibited_by: [{rule: high, equal: [g]}, {rule: higher}]\n", high, higher},
			[]event.Event{fact(0, "x.bad", "a"), fact(m, "x.worse", "a"), fact(2*m, "x.worst", "z"), fact(3*m, "x.better", "a"), fact(4*m, "x.over", "z")}, []string{
				"0s firing low{a} condition_holds", "1m0s firing high{a} condition_holds", "1m0s inhibited low{a} inhibited*", "2m0s firing higher{} condition_holds",
				"3m0s resolved high{a} condition_ended", "3m0s inhibited low{a} inhibited*", "4m0s resolved higher{} condition_ended", "4m0s firing low{a} inhibition_over"}},
		{"of all groups", []string{low + "inhibited_by: [{rule: higher}]\n", higher}, []event.Event{fact(0, "x.bad", "a"), fact(0, "x.bad", "b"), fact(m, "x.worst", "z")}, []string{
			"0s firing low{a} condition_holds", "0s firing low{b} condition_holds", "1m0s firing higher{} condition_holds",
			"1m0s inhibited low{a} inhibited*", "1m0s inhibited low{b} inhibited*"}},
		{"in a circle one is told", []string{low + by, high + "inhibited_by: [{rule: low, equal: [g]}]\n"},
			[]event.Event{fact(0, "x.bad", "a"), fact(m, "x.worse", "a"), fact(0, "x.worse", "b"), fact(m, "x.bad", "b")}, nil},
		{"keys that nobody knows are not the same", []string{low + by, high}, []event.Event{fact(0, "x.bad", ""), fact(m, "x.worse", "")}, []string{
			"0s firing low{} condition_holds", "1m0s firing high{} condition_holds"}},
	} {
		for _, most := range []int{1, 100} { // transitions that one commit takes
			t.Run(fmt.Sprint(tt.name, " ", most), func(t *testing.T) {
				t.Parallel()
				var rules []*Compiled
				for _, text := range tt.rules {
					rules = append(rules, rule(t, text))
				}
				set := NewSet(rules, nil)
				k := &kept{t: t, s: NewStream(testStream, set, Position{}, nil), groups: map[groupKey][]byte{}}
				full := func() bool { return len(k.s.out) >= most }
				evs := number(tt.evs)
				for i := range evs {
					for done := false; !done; k.again(set) {
						done = k.s.Judge(NewVars(&evs[i], nil), full)
					}
					k.s.Judge(NewVars(&evs[i], nil), never) // a second time means nothing
				}
				for done := false; !done; k.again(set) {
					done = k.s.Tick(t0.Add(30*m), full)
				}
				got := lines(k.told)
				if tt.want == nil {
					told := map[string]bool{}
					for _, x := range k.told {
						told[x.Alert.Group["g"]] = told[x.Alert.Group["g"]] || x.Alert.InhibitedBy == "" && x.Kind == TypeFiring
					}
					if d := cmp.Diff(map[string]bool{"a": true, "b": true}, told); d != "" {
						t.Errorf("told %v: %s", got, d)
					}
					return
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("told (-want +got):\n%s", d)
				}
				for _, x := range k.told { // the history has it
					h := x.Alert.History
					if last := h[len(h)-1]; last.Reason != x.Alert.Reason || !last.At.Equal(x.At) {
						t.Errorf("%s: its history ends with %+v", line(&x), last)
					}
				}
			})
		}
	}
}

// A rule that names an inhibitor only now, or another one, holds for what fires.
func TestInhibitorsThatAreNamedLater(t *testing.T) {
	t.Parallel()
	high, other := rule(t, "name: high\n"+high), rule(t, "name: other\non: [x.worse]\n")
	set := func(text string) *Set { return NewSet([]*Compiled{rule(t, text), high, other}, nil) }
	s := NewStream(testStream, set(low), Position{}, nil)
	for _, e := range number([]event.Event{fact(0, "x.bad", "a"), fact(0, "x.worse", "a")}) {
		s.Judge(NewVars(&e, nil), never)
	}
	s.Take()
	for i, text := range []string{low + by, low + "inhibited_by: [{rule: other}]\n", low + by + "description: the same\n", low} {
		for range 2 {
			s.SetRules(set(text), fmt.Sprint(i), t0.Add(time.Duration(i+1)*time.Minute), never)
			s.Release(never)
		}
	}
	want := []string{"1m0s inhibited low{a} inhibited*", "2m0s inhibited low{a} inhibited*", "3m0s inhibited low{a} inhibited*", "4m0s firing low{a} inhibition_over"}
	if d := cmp.Diff(want, lines(s.Take().Told)); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// Groups that earlier versions kept, whose digest took the inhibitors in, go on.
func TestDigestOfEarlierVersions(t *testing.T) {
	t.Parallel()
	c := rule(t, low+by)
	if c.Digest != rule(t, low).Digest || c.former == c.Digest {
		t.Fatalf("digests %s and %s", c.Digest, c.former)
	}
	s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
	e := number([]event.Event{fact(0, "x.bad", "a"), fact(time.Minute, "x.good", "a")})
	s.Judge(NewVars(&e[0], nil), never)
	g := s.Take().Keep[0]
	g.Digest = c.former
	s = NewStream(testStream, s.set, s.Position, []*Group{g})
	s.SetRules(s.set, "2", t0, never)
	s.Judge(NewVars(&e[1], nil), never)
	if d := cmp.Diff([]string{"1m0s resolved low{a} condition_ended"}, lines(s.Take().Told)); d != "" {
		t.Error(d)
	}
}

// A key that cannot be evaluated is empty, what is no text is written out, and the
// event counts: an alert is better than none. That it failed is counted, and kept.
func TestKeysThatFail(t *testing.T) {
	t.Parallel()
	byKey := "name: x\non: [x.a]\ngroup_by: {node: event.detail.node}\nsummary: 'bad {node}'\nresolve_when: {on: [x.b]}\n"
	for _, tt := range []struct {
		name, text string
		evs        []event.Event
		want       []string // "node" values that fire
		failed     int64
		field      string
	}{
		{"absent", byKey, []event.Event{fact(0, "x.a", "n")}, []string{"bad (unknown)"}, 1, "/group_by/node"},
		{"null", byKey, []event.Event{fact(0, "x.a", "n", "node", nil)}, []string{"bad (unknown)"}, 1, "/group_by/node"},
		{"a list", byKey, []event.Event{fact(0, "x.a", "n", "node", []any{1})}, []string{"bad (unknown)"}, 1, "/group_by/node"},
		{"a number", byKey, []event.Event{fact(0, "x.a", "n", "node", 12345678)}, []string{"bad 12345678"}, 0, ""},
		{"a truth", byKey, []event.Event{fact(0, "x.a", "n", "node", true)}, []string{"bad true"}, 0, ""},
		{"one beside others", byKey, []event.Event{fact(0, "x.a", "n", "node", "n1"), fact(0, "x.a", "n"), fact(0, "x.a", "n")}, []string{"bad n1", "bad (unknown)"}, 2, "/group_by/node"},
		{"of distinct", "name: x\non: [x.a]\nsummary: all\ncount: 2\nwindow: 1h\ndistinct: event.detail.v\n", []event.Event{fact(0, "x.a", "n"), fact(0, "x.a", "n"), fact(0, "x.a", "n", "v", "1")},
			[]string{"all"}, 2, "/distinct"},
		{"of distinct, all the same", "name: x\non: [x.a]\nsummary: all\ncount: 2\nwindow: 1h\ndistinct: event.detail.v\n", []event.Event{fact(0, "x.a", "n"), fact(0, "x.a", "n")}, []string{}, 2, "/distinct"},
		{"of what is under way", "name: x\non: [x.a]\nsummary: while\nwhile: {begin: {on: [x.begin]}, end: {on: [x.end]}, each: event.detail.v}\n", []event.Event{fact(0, "x.begin", "n"), fact(0, "x.a", "n")},
			[]string{"while"}, 1, "/while/each"},
		{"a condition does not hold", "name: x\non: [x.a]\nwhen: event.detail.n > 3\n", []event.Event{fact(0, "x.a", "n"), fact(0, "x.a", "n", "n", "text")}, []string{}, 2, "/when"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := rule(t, tt.text)
			s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
			evs := number(tt.evs)
			for i := range evs {
				s.Judge(NewVars(&evs[i], nil), never)
			}
			x := s.Take()
			got := []string{}
			for _, told := range x.Told {
				got = append(got, told.Alert.Summary)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("fired (-want +got):\n%s", d)
			}
			f := s.Position.Failing[c.ID]
			if tt.failed == 0 {
				if f != nil || x.Failing {
					t.Errorf("failing %+v", f)
				}
				return
			}
			if f == nil || f.Count != tt.failed || f.Last.Field != tt.field || f.Last.Error == "" || f.Last.Event == "" || !x.Failing || s.Meter.Failed["x"] != tt.failed {
				t.Errorf("failing %+v, told %v, counted %v", f, x.Failing, s.Meter.Failed)
			}
		})
	}
}

// What failed is kept when it has doubled, of the rule as it is now, and of so many
// rules at most.
func TestFailuresThatAreKept(t *testing.T) {
	t.Parallel()
	text := "on: [x.a]\nwhen: event.detail.n > 3\n"
	var rules []*Compiled
	for i := range maxFailing + 3 {
		rules = append(rules, rule(t, fmt.Sprint("name: r", i, "\n", text)))
	}
	s := NewStream(testStream, NewSet(rules, nil), Position{}, nil)
	var told []int64
	for i := range int64(9) {
		e := fact(time.Duration(i)*time.Second, "x.a", "n")
		e.Sequence = i + 1
		s.Judge(NewVars(&e, nil), never)
		s.Position.Next = e.Sequence // it comes once more, and counts once
		s.Judge(NewVars(&e, nil), never)
		if s.Take().Failing {
			told = append(told, i+1)
		}
	}
	if d := cmp.Diff([]int64{1, 2, 4, 8}, told); d != "" {
		t.Errorf("kept at the events (-want +got):\n%s", d)
	}
	if n := len(s.Position.Failing); n != maxFailing {
		t.Errorf("%d rules are kept", n)
	}
	e := fact(2*time.Hour, "x.a", "n")
	e.Sequence = 10
	s.fail(&Compiled{ID: "rul_late", Digest: "d"}, 10, e.ReceivedAt.UnixMilli(), Failure{Event: e.ID})
	if s.Position.Failing["rul_late"] == nil || len(s.Position.Failing) != maxFailing {
		t.Error("one that fails after the others have long not is not kept")
	}
	delete(s.Position.Failing, "rul_late")
	one := slices.Sorted(maps.Keys(s.Position.Failing))[0]
	set := NewSet(slices.DeleteFunc(slices.Clone(rules), func(c *Compiled) bool { return c.ID == one }), nil)
	s.SetRules(set, "2", t0, never)
	if s.Position.Failing[one] != nil || len(s.Position.Failing) != maxFailing-2 {
		t.Errorf("those of a deleted rule are left: %v", s.Position.Failing)
	}
}
