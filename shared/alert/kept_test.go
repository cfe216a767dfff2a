package alert

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// TestKeptWhenItIsOver: an alert that is kept through a change of its rule, and whose
// condition is over already, does not fire until somebody ends it: what flaps gets
// steady, what is kept firing ends, both by the changed rule's times.
func TestKeptWhenItIsOver(t *testing.T) {
	t.Parallel()
	const m = time.Minute
	const flap, clear = "flap: {changes: 3, window: 1h}\n", "keep_firing_for: 6m\n"
	off := []event.Event{fact(0, "x.bad", "a"), fact(2*m, "x.good", "a"), fact(4*m, "x.bad", "a"), fact(8*m, "x.good", "a")}
	on := off[:3]
	for _, c := range []struct {
		name, before, after string
		evs                 []event.Event
		want                []string // from the change on, at 10m
	}{
		{"it flaps", flap, flap + "for: 1s\n", off, []string{"1h8m0s resolved flaps{a} steady"}},
		{"it flaps, and is shown otherwise", flap, flap + "for: 1s\nseverity: critical\n", off, []string{"10m0s flapping flaps{a} rule_changed", "1h8m0s resolved flaps{a} steady"}},
		{"it flaps, for less", flap, "flap: {changes: 3, window: 5m}\n", off, []string{"13m0s resolved flaps{a} steady"}},
		{"it flaps no more by its rule", flap, "", off, []string{"10m0s resolved flaps{a} condition_ended"}},
		{"it flaps and holds", flap, flap + "for: 1s\n", on, []string{"1h4m0s firing flaps{a} steady"}},
		{"it flaps and holds, no more by its rule", flap, "", on, []string{"10m0s firing flaps{a} rule_changed"}},
		{"it is kept firing", clear, clear + "for: 1s\n", off, []string{"14m0s resolved flaps{a} condition_ended"}},
		{"it is kept firing, for less", clear, "keep_firing_for: 1m\n", off, []string{"11m0s resolved flaps{a} condition_ended"}},
		{"it is kept firing, for longer", clear, "keep_firing_for: 1h\n", off, []string{"14m0s resolved flaps{a} condition_ended"}},
		{"it is kept firing no more by its rule", clear, "", off, []string{"10m0s resolved flaps{a} condition_ended"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := NewStream(testStream, NewSet([]*Compiled{rule(t, flapping+c.before)}, nil), Position{}, nil)
			for _, e := range number(c.evs) {
				s.Judge(NewVars(&e, nil), never)
			}
			s.Take()
			if !s.SetRules(NewSet([]*Compiled{rule(t, flapping+"on_change: keep\n"+c.after)}, nil), "2", t0.Add(10*m), never) {
				t.Fatal("ended early")
			}
			s.Tick(t0.Add(3*time.Hour), never)
			if d := cmp.Diff(c.want, lines(s.Take().Told)); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
		})
	}
}
