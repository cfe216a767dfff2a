package alert

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

const flapping = `
name: flaps
on: [x.bad]
group_by: {g: event.subject.name}
resolve_when: {on: [x.good]}
`

// Ten minutes on and ten off: told each time without flap, and once with it, until
// it has been steady.
func TestTenMinutesOnAndOff(t *testing.T) {
	t.Parallel()
	var evs []event.Event
	for i := range 12 {
		evs = append(evs, fact(time.Duration(i)*10*time.Minute, "x."+[]string{"bad", "good"}[i%2], "a"))
	}
	if got := play(t, []*Compiled{rule(t, flapping)}, 10*time.Hour, evs...); len(got) != 12 {
		t.Errorf("told %d times without flap: %v", len(got), got)
	}
	got := play(t, []*Compiled{rule(t, flapping+"flap: {changes: 4, window: 1h}\n")}, 10*time.Hour, evs...)
	want := []string{
		"0s firing flaps{a} condition_holds", "10m0s resolved flaps{a} condition_ended", "20m0s firing flaps{a} condition_holds",
		"30m0s flapping flaps{a} flapping", "2h50m0s resolved flaps{a} steady",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// An alert that fires again soon after it resolved is another alert.
func TestRefire(t *testing.T) {
	t.Parallel()
	s := NewStream(testStream, NewSet([]*Compiled{rule(t, flapping)}, nil), Position{}, nil)
	for _, e := range number([]event.Event{fact(0, "x.bad", "a"), fact(time.Second, "x.good", "a"), fact(2*time.Second, "x.bad", "a")}) {
		s.Judge(NewVars(&e, nil), never)
	}
	told := s.Take().Told
	if len(told) != 3 || told[0].Alert.ID != told[1].Alert.ID || told[0].Alert.ID == told[2].Alert.ID || told[2].Alert.Count != 1 {
		t.Errorf("told %v", lines(told))
	}
}

// A resolve that never comes: the alert goes on, and not for good.
func TestResolveThatNeverComes(t *testing.T) {
	t.Parallel()
	got := play(t, []*Compiled{rule(t, flapping)}, 100*24*time.Hour, fact(0, "x.bad", "a"), fact(24*time.Hour, "x.other", "a"))
	if d := cmp.Diff([]string{"0s firing flaps{a} condition_holds", "744h0m0s resolved flaps{a} quiet"}, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// An agent's clock that is an hour off neither sets a rule off nor blinds it.
func TestClockAnHourOff(t *testing.T) {
	t.Parallel()
	c := rule(t, "name: three\non: [x.a]\ncount: 3\nwindow: 10m\n")
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		at := func(after time.Duration) event.Event {
			e := fact(after, "x.a", "a")
			e.Timestamp = e.Timestamp.Add(off)
			return e
		}
		got := play(t, []*Compiled{c}, 30*time.Minute, at(0), at(4*time.Minute), at(8*time.Minute))
		if len(got) == 0 || got[0] != "8m0s firing three{} condition_holds" {
			t.Errorf("off by %s: told %v", off, got)
		}
		if got := play(t, []*Compiled{c}, 60*time.Minute, at(0), at(8*time.Minute), at(16*time.Minute), at(24*time.Minute)); len(got) != 0 {
			t.Errorf("off by %s: it was set off: %v", off, got)
		}
	}
}

// Evidence has the first events and the last ones, and what was no longer in the
// window is not among them.
func TestEvidence(t *testing.T) {
	t.Parallel()
	c := rule(t, "name: many\non: [x.a]\ncount: 3\nwindow: 10m\n")
	s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
	evs := []event.Event{fact(0, "x.a", "old")}
	for i := range 20 {
		evs = append(evs, fact(time.Hour+time.Duration(i)*time.Second, "x.a", "n"))
	}
	for _, e := range number(evs) {
		s.Judge(NewVars(&e, nil), never)
	}
	s.Tick(t0.Add(3*time.Hour), never)
	told := s.Take().Told
	if len(told) != 2 || told[0].Alert.Count != 3 || len(told[0].Alert.Evidence) != 3 || told[1].Alert.Count != 20 {
		t.Fatalf("told %+v", told)
	}
	var seqs []int64
	for _, e := range told[1].Alert.Evidence {
		seqs = append(seqs, e.Sequence)
	}
	if d := cmp.Diff([]int64{2, 3, 4, 5, 6, 17, 18, 19, 20, 21}, seqs); d != "" {
		t.Errorf("evidence (-want +got):\n%s", d)
	}
}

// A group key of a million values: so many groups are kept and no more, and those
// over the limit are one, which is told once.
func TestAMillionGroups(t *testing.T) {
	t.Parallel()
	c := rule(t, "name: each\non: [x.a]\ngroup_by: {g: event.subject.name}\ncount: 2\nwindow: 1h\n")
	s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
	e := fact(0, "x.a", "")
	e.Stream, e.Cluster = testStream, testStream
	var told []Transition
	const n = 1_000_000
	for i := range n {
		e.Subject.Name = fmt.Sprint(i)
		e.Sequence = int64(i + 1)
		s.Judge(NewVars(&e, nil), never)
		if i%1000 == 0 {
			told = append(told, s.Take().Told...)
		}
	}
	told = append(told, s.Take().Told...)
	if s.Groups() != DefaultGroups+1 || s.Meter.Folded != 1 {
		t.Errorf("%d groups, folded %d times", s.Groups(), s.Meter.Folded)
	}
	var kinds []string
	for _, x := range told {
		kinds = append(kinds, fmt.Sprintln(x.Kind, x.Alert.Group, x.Alert.Folded))
	}
	if d := cmp.Diff([]string{"alert.groups_folded map[g:(other)] true\n", "alert.firing map[g:(other)] true\n"}, kinds); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	// Once nothing counts any more all groups go.
	s.Tick(t0.Add(10*time.Hour), never)
	if s.Groups() != 0 {
		t.Errorf("%d groups are left", s.Groups())
	}
}

// A group's key, and what is counted, are bounded; two long ones stay apart.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	c := rule(t, "name: each\non: [x.a]\ngroup_by: {g: event.subject.name}\n")
	long := strings.Repeat("é", 5000)
	s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
	playOn(t, s, 0, fact(0, "x.a", long+"1"), fact(0, "x.a", long+"2"), fact(0, "x.a", long+"1"))
	if s.Groups() != 2 {
		t.Errorf("%d groups", s.Groups())
	}
	for _, g := range s.sorted() {
		if n := len(g.Values[0]); n > maxValue || !strings.HasPrefix(g.Values[0], "éé") {
			t.Errorf("a value of %d bytes", n)
		}
	}
}

// silenced is a set with one silence.
func silenced(t *testing.T, rules []*Compiled, from, to time.Duration, ms ...Match) *Set {
	t.Helper()
	m, err := CompileSilence(Silence{ID: "sil_1", Matchers: ms, StartsAt: t0.Add(from), EndsAt: t0.Add(to), Reason: "work"})
	if err != nil {
		t.Fatal(err)
	}
	return NewSet(rules, []*Matcher{m})
}

// A silence keeps an alert from being told while it lasts; what fires still is
// told at its end. One that was told before is not told again.
func TestSilence(t *testing.T) {
	t.Parallel()
	c := rule(t, flapping)
	set := silenced(t, []*Compiled{c}, 0, time.Hour, Match{Field: "rule", Op: OpEqual, Value: "flaps"}, Match{Field: "group.g", Op: OpMatch, Value: "a|b"}, Match{Field: "severity", Op: OpNotEqual, Value: "critical"})
	s := NewStream(testStream, set, Position{}, nil)
	for _, e := range number([]event.Event{
		fact(time.Minute, "x.bad", "a"), fact(time.Minute, "x.bad", "b"), fact(time.Minute, "x.bad", "ab"), fact(2*time.Minute, "x.good", "b"),
	}) {
		s.Judge(NewVars(&e, nil), never)
	}
	s.Tick(t0.Add(2*time.Hour), never)
	var got []string
	for _, x := range s.Take().Told {
		got = append(got, line(&x)+" "+x.Alert.SilencedBy)
	}
	want := []string{
		"1m0s firing flaps{a} condition_holds sil_1", "1m0s firing flaps{b} condition_holds sil_1", "1m0s firing flaps{ab} condition_holds ",
		"2m0s resolved flaps{b} condition_ended sil_1", "1h0m0s unsilenced flaps{a} silence_over ", "1h0m0s firing flaps{a} silence_over ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// A silence that is no good is refused; a pattern cannot be a bomb.
func TestBadSilences(t *testing.T) {
	t.Parallel()
	good := Silence{Matchers: []Match{{Field: "rule", Op: "=", Value: "x"}}, StartsAt: t0, EndsAt: t0.Add(time.Hour), Reason: "work"}
	if _, err := CompileSilence(good); err != nil {
		t.Fatal(err)
	}
	for pointer, change := range map[string]func(*Silence){
		"/matchers":         func(s *Silence) { s.Matchers = nil },
		"/matchers/0/field": func(s *Silence) { s.Matchers = []Match{{Field: "owner", Op: "=", Value: "x"}} },
		"/matchers/0/op":    func(s *Silence) { s.Matchers = []Match{{Field: "rule", Op: "!~", Value: "x"}} },
		"/matchers/0/value": func(s *Silence) { s.Matchers = []Match{{Field: "rule", Op: "=~", Value: "((a{1,30}){1,30}){1,30}"}} },
		"/ends_at":          func(s *Silence) { s.EndsAt = s.StartsAt },
		"/reason":           func(s *Silence) { s.Reason = "" },
	} {
		s := good
		change(&s)
		_, err := CompileSilence(s)
		f, ok := err.(Faults) //nolint:errorlint // CompileSilence returns nothing else
		if !ok || f[0].Pointer != pointer {
			t.Errorf("%s: %v", pointer, err)
		}
	}
}

// An alert that another inhibits is listed and not told; it is told when the other
// is over. It works for equal keys alone, and for one event that sets off both.
func TestInhibition(t *testing.T) {
	t.Parallel()
	low := rule(t, "name: a-low\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\ninhibited_by: [{rule: z-high, equal: [g]}]\n")
	high := rule(t, "name: z-high\non: [x.bad, x.worse]\nwhen: event.type == 'x.worse' || event.subject.name == 'both'\ngroup_by: {g: event.subject.name}\nresolve_after: 10m\n")
	s := NewStream(testStream, NewSet([]*Compiled{low, high}, nil), Position{}, nil)
	evs := number([]event.Event{
		fact(0, "x.worse", "a"), fact(time.Minute, "x.bad", "a"), fact(time.Minute, "x.bad", "b"), fact(2*time.Minute, "x.bad", "both"),
		fact(3*time.Minute, "x.good", "both"),
	})
	for _, e := range evs {
		s.Judge(NewVars(&e, nil), never)
	}
	s.Tick(t0.Add(time.Hour), never)
	s.Release(never)
	want := []string{
		"0s firing z-high{a} condition_holds", "1m0s firing a-low{a} condition_holds*", "1m0s firing a-low{b} condition_holds",
		"2m0s firing z-high{both} condition_holds", "2m0s firing a-low{both} condition_holds*", "3m0s resolved a-low{both} condition_ended*",
		"10m0s resolved z-high{a} quiet", "10m0s firing a-low{a} inhibition_over", "12m0s resolved z-high{both} quiet",
	}
	if d := cmp.Diff(want, lines(s.Take().Told)); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// TestRuleChangesWhileItFires: what becomes of the alert is the changed rule's to
// say, also where only how it is shown changed.
func TestRuleChangesWhileItFires(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		enabled    bool
		gone       bool
		want       []string
	}{
		{"only described otherwise", flapping + "description: more\non_change: resolve\n", true, false, []string{"20m0s resolved flaps{a} condition_ended"}},
		{"more severe", flapping + "severity: critical\n", true, false, []string{"10m0s resolved flaps{a} rule_changed"}},
		{"other labels", flapping + "labels: {team: x}\n", true, false, []string{"10m0s resolved flaps{a} rule_changed"}},
		{"another summary", flapping + "summary: bad\n", true, false, []string{"10m0s resolved flaps{a} rule_changed"}},
		{"more severe, and kept", flapping + "severity: critical\non_change: keep\n", true, false,
			[]string{"10m0s firing flaps{a} rule_changed", "20m0s resolved flaps{a} condition_ended"}},
		{"another meaning and severity, and kept", flapping + "when: event.subject.name != 'zz'\nseverity: critical\non_change: keep\n", true, false,
			[]string{"10m0s firing flaps{a} rule_changed", "20m0s resolved flaps{a} condition_ended"}},
		{"kept, by other groups", strings.Replace(flapping, "g: event.subject.name", "g: event.subject.id", 1) + "on_change: keep\n", true, false,
			[]string{"10m0s resolved flaps{a} group_changed"}},
		{"kept, by a key of another name", strings.Replace(flapping, "{g:", "{node:", 1) + "on_change: keep\n", true, false,
			[]string{"10m0s resolved flaps{a} group_changed"}},
		{"resolves", flapping + "when: event.subject.name != 'zz'\n", true, false, []string{"10m0s resolved flaps{a} rule_changed"}},
		{"is kept", flapping + "when: event.subject.name != 'zz'\non_change: keep\n", true, false, []string{"20m0s resolved flaps{a} condition_ended"}},
		{"is kept, and quiet ends it", flapping + "resolve_after: 5m\non_change: keep\n", true, false, []string{"15m0s resolved flaps{a} quiet"}},
		{"is disabled", flapping + "enabled: false\n", false, false, []string{"10m0s resolved flaps{a} rule_disabled"}},
		{"is for another cluster", flapping + "clusters: [plane]\n", true, false, []string{"10m0s resolved flaps{a} out_of_scope"}},
		{"is kept, and for another cluster", flapping + "clusters: [plane]\non_change: keep\n", true, false, []string{"10m0s resolved flaps{a} out_of_scope"}},
		{"is deleted", flapping, true, true, []string{"10m0s resolved flaps{a} rule_deleted"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			before := rule(t, flapping)
			s := NewStream(testStream, NewSet([]*Compiled{before}, nil), Position{}, nil)
			evs := number([]event.Event{fact(0, "x.bad", "a"), fact(20*time.Minute, "x.good", "a")})
			s.Judge(NewVars(&evs[0], nil), never)
			id := s.Take().Told[0].Alert.ID
			var rules []*Compiled
			if !c.gone {
				rules = append(rules, rule(t, c.text))
			}
			if !s.SetRules(NewSet(rules, nil), "2", t0.Add(10*time.Minute), never) || s.Position.Rules != "2" {
				t.Fatal("ended early")
			}
			s.Judge(NewVars(&evs[1], nil), never)
			s.Tick(t0.Add(30*time.Minute), never)
			told := s.Take().Told
			if d := cmp.Diff(c.want, lines(told)); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if len(told) == 1 && told[0].Alert.ID != id {
				t.Error("it is another alert")
			}
		})
	}
}

// What is kept of a stream, and read back, goes on as the stream itself would.
func TestGroupsAreReadBack(t *testing.T) {
	t.Parallel()
	set := NewSet([]*Compiled{rule(t, flapping+"flap: {changes: 3, window: 1h}\nfor: 30s\nkeep_firing_for: 1m\n")}, nil)
	a, b := NewStream(testStream, set, Position{}, nil), NewStream(testStream, set, Position{}, nil)
	var evs []event.Event
	for i := range 60 {
		evs = append(evs, fact(time.Duration(i*i%400)*10*time.Second+time.Duration(i)*time.Minute, "x."+[]string{"bad", "good"}[i*7%3%2], fmt.Sprint("n", i%4)))
	}
	kept := map[groupKey][]byte{}
	for _, e := range number(evs) {
		a.Judge(NewVars(&e, nil), never)
		b.Judge(NewVars(&e, nil), never)
		ca, cb := a.Take(), b.Take()
		if d := cmp.Diff(lines(ca.Told), lines(cb.Told)); d != "" {
			t.Fatalf("event %d (-goes on +was read back):\n%s", e.Sequence, d)
		}
		for _, g := range cb.Forget {
			delete(kept, g.key)
		}
		for _, g := range cb.Keep {
			data, err := json.Marshal(g)
			if err != nil {
				t.Fatal(err)
			}
			kept[g.key] = data
		}
		var groups []*Group
		for _, data := range kept {
			var g Group
			if err := json.Unmarshal(data, &g); err != nil {
				t.Fatal(err)
			}
			groups = append(groups, &g)
		}
		b = NewStream(testStream, set, b.Position, groups)
	}
}
