package alert

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// With an error there is no rule: one without its condition would match everything.
func TestNoRuleWithFaults(t *testing.T) {
	t.Parallel()
	c, err := Compile(Rule{Name: "x", On: []string{"x.a"}, When: "event.nothing == 1"}, "rul_x", 1)
	if c != nil || err == nil {
		t.Errorf("compiled to %+v, %v", c, err)
	}
}

// The alerts of a rule that cannot be used for now stay as they are: nothing is
// told, not by timers either, and they go on when it can be used again.
func TestRestingRule(t *testing.T) {
	t.Parallel()
	c := rule(t, flapping+"resolve_after: 5m\ninhibited_by: [{rule: high}]\n")
	high := rule(t, "name: high\non: [x.worse]\nresolve_after: 2m\n")
	s := NewStream(testStream, NewSet([]*Compiled{c, high}, nil), Position{}, nil)
	evs := number([]event.Event{fact(0, "x.worse", "a"), fact(0, "x.bad", "a"), fact(20*time.Minute, "x.good", "a"), fact(20*time.Minute, "x.bad", "b")})
	for i := range 2 {
		s.Judge(NewVars(&evs[i], nil), never)
	}
	first := s.Take()
	var g Group
	for _, x := range first.Keep {
		if x.Rule == c.ID {
			if err := json.Unmarshal(encode(t, x), &g); err != nil {
				t.Fatal(err)
			}
		}
	}
	resting := NewSet([]*Compiled{high}, nil, c.ID)
	s.SetRules(resting, "2", t0.Add(time.Minute), never)
	s.Judge(NewVars(&evs[2], nil), never)
	s.Judge(NewVars(&evs[3], nil), never)
	s.Tick(t0.Add(30*time.Minute), never)
	s.Release(never)
	if d := cmp.Diff([]string{"2m0s resolved high{} quiet"}, lines(s.Take().Told)); d != "" {
		t.Errorf("told while it rests (-want +got):\n%s", d)
	}
	again := NewStream(testStream, resting, s.Position, []*Group{&g})
	again.Tick(t0.Add(30*time.Minute), never)
	for _, s := range []*Stream{s, again} {
		s.SetRules(NewSet([]*Compiled{c, high}, nil), "3", t0.Add(40*time.Minute), never)
		s.Tick(t0.Add(40*time.Minute), never)
		if d := cmp.Diff([]string{"40m0s firing flaps{a} inhibition_over", "40m0s resolved flaps{a} quiet"}, lines(s.Take().Told)); d != "" {
			t.Errorf("told afterwards (-want +got):\n%s", d)
		}
	}
}

// Errors of conditions are counted by rule.
func TestErrorsByRule(t *testing.T) {
	t.Parallel()
	s := NewStream(testStream, NewSet([]*Compiled{rule(t, "name: a\non: [x.a]\nwhen: event.detail.n > 3"), rule(t, "name: b\non: [x.a]")}, nil), Position{}, nil)
	playOn(t, s, 0, fact(0, "x.a", "n"), fact(0, "x.a", "n", "n", 1), fact(0, "x.a", "n"))
	var m Meter
	m.Add(s.Meter)
	m.Add(s.Meter)
	if d := cmp.Diff(map[string]int64{"a": 4}, m.Failed); d != "" {
		t.Errorf("counted (-want +got):\n%s", d)
	}
}
