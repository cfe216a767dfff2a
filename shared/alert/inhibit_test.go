package alert

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

const (
	low  = "name: low\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\n"
	high = "on: [x.worse]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.better]}\n"
	by   = "inhibited_by: [{rule: high, equal: [g]}]\n"
)

// What an alert keeps from being told is told once the inhibitor is renamed, is
// deleted, or is named no more; and by whoever reads the groups back.
func TestInhibitorsThatChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		rules []string // afterwards; the second is the inhibitor
		want  []string
	}{
		{"it is renamed", []string{low + by, "name: higher\n" + high}, []string{"10m0s resolved high{a} rule_changed", "10m0s firing low{a} inhibition_over"}},
		{"it is renamed and goes on", []string{low + by, "name: higher\non_change: keep\n" + high}, []string{"10m0s firing higher{a} rule_changed", "10m0s firing low{a} inhibition_over", "20m0s resolved higher{a} condition_ended"}},
		{"it is deleted", []string{low + by}, []string{"10m0s resolved high{a} rule_deleted", "10m0s firing low{a} inhibition_over"}},
		{"it is disabled", []string{low + by, "name: high\nenabled: false\n" + high}, []string{"10m0s resolved high{a} rule_disabled", "10m0s firing low{a} inhibition_over"}},
		{"it is named no more", []string{low + "on_change: keep\n", "name: high\n" + high}, []string{"10m0s firing low{a} inhibition_over", "20m0s resolved high{a} condition_ended"}},
		{"it stays", []string{low + by + "description: more\n", "name: high\n" + high}, []string{"20m0s resolved high{a} condition_ended", "20m0s firing low{a} inhibition_over"}},
		{"another change of its own rule", []string{low + by + "on_change: keep\nfor: 1s\n", "name: high\n" + high}, []string{"20m0s resolved high{a} condition_ended", "20m0s firing low{a} inhibition_over"}},
	} {
		for _, readBack := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				set := func(texts ...string) *Set {
					var rules []*Compiled
					for i, text := range texts {
						c := rule(t, text)
						c.ID = []string{"rul_z", "rul_a"}[i]
						rules = append(rules, c)
					}
					return NewSet(rules, nil)
				}
				before, after := set(low+by, "name: high\n"+high), set(tt.rules...)
				s := NewStream(testStream, before, Position{}, nil)
				evs := number([]event.Event{fact(0, "x.worse", "a"), fact(time.Minute, "x.bad", "a"), fact(20*time.Minute, "x.better", "a")})
				s.Judge(NewVars(&evs[0], nil), never)
				s.Judge(NewVars(&evs[1], nil), never)
				told := s.Take()
				if len(told.Told) != 2 || told.Told[1].Alert.InhibitedBy != told.Told[0].Alert.ID {
					t.Fatalf("told %v", lines(told.Told))
				}
				if readBack {
					var groups []*Group
					for _, g := range told.Keep {
						var kept Group
						if err := json.Unmarshal(encode(t, g), &kept); err != nil {
							t.Fatal(err)
						}
						groups = append(groups, &kept)
					}
					s = NewStream(testStream, after, s.Position, groups)
				}
				s.SetRules(after, "2", t0.Add(10*time.Minute), never)
				s.Judge(NewVars(&evs[2], nil), never)
				s.Release(never)
				if d := cmp.Diff(tt.want, lines(s.Take().Told)); d != "" {
					t.Errorf("read back %v: told (-want +got):\n%s", readBack, d)
				}
				if len(s.muting) != 0 {
					t.Errorf("read back %v: still muting %v", readBack, s.muting)
				}
			})
		}
	}
}
