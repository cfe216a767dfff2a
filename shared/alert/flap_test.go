package alert

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// That an alert flaps is told once, and nothing of it until it is steady: not as
// firing, whatever inhibits it begins and ends meanwhile. One that began to flap
// while it was inhibited is told then, as flapping; after that it was told.
func TestInhibitorsOfWhatFlaps(t *testing.T) {
	t.Parallel()
	const m = time.Minute
	rules := []*Compiled{rule(t, "name: high\n"+high), rule(t, low+by+"flap: {changes: 3, window: 40m}\n")}
	flaps := func(from time.Duration) []event.Event {
		return []event.Event{fact(from, "x.bad", "a"), fact(from+m, "x.good", "a"), fact(from+2*m, "x.bad", "a"), fact(from+3*m, "x.good", "a")}
	}
	ends := func(from time.Duration) []event.Event {
		return []event.Event{fact(from, "x.worse", "a"), fact(from+m, "x.better", "a")}
	}
	for _, tt := range []struct {
		name string
		evs  [][]event.Event
		want []string
	}{
		{"inhibited again and again", [][]event.Event{flaps(0), ends(10 * m), ends(12 * m)}, []string{
			"0s firing low{a} condition_holds", "1m0s resolved low{a} condition_ended", "2m0s flapping low{a} flapping", "43m0s resolved low{a} steady"}},
		{"it began to flap while inhibited", [][]event.Event{{fact(0, "x.worse", "a")}, flaps(m), {fact(5*m, "x.better", "a")}, ends(10 * m)}, []string{
			"1m0s firing low{a} condition_holds*", "2m0s resolved low{a} condition_ended*", "3m0s flapping low{a} flapping*",
			"5m0s flapping low{a} inhibition_over", "44m0s resolved low{a} steady"}},
		{"inhibited when it is steady", [][]event.Event{flaps(0)[:3], {fact(10*m, "x.worse", "a"), fact(50*m, "x.better", "a")}}, []string{
			"0s firing low{a} condition_holds", "1m0s resolved low{a} condition_ended", "2m0s flapping low{a} flapping",
			"42m0s firing low{a} steady*", "50m0s firing low{a} inhibition_over"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var evs []event.Event
			for _, x := range tt.evs {
				evs = append(evs, x...)
			}
			s := NewStream(testStream, NewSet(rules, nil), Position{}, nil)
			for _, e := range number(evs) {
				s.Judge(NewVars(&e, nil), never)
			}
			s.Tick(t0.Add(time.Hour), never)
			var got []string
			for _, x := range s.Take().Told {
				if x.Alert.Rule == "low" {
					got = append(got, line(&x))
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
		})
	}
}

// A silence that is over is told of an alert that flaps as that, not as firing.
func TestSilencesOfWhatFlaps(t *testing.T) {
	t.Parallel()
	c := rule(t, flapping+"flap: {changes: 3, window: 40m}\n")
	s := NewStream(testStream, windows(t, c, window{"s1", 5 * time.Minute, 10 * time.Minute, ""}), Position{}, nil)
	got := playOn(t, s, time.Hour, fact(0, "x.bad", "a"), fact(time.Minute, "x.good", "a"), fact(2*time.Minute, "x.bad", "a"), fact(3*time.Minute, "x.good", "a"))
	want := []string{
		"0s firing flaps{a} condition_holds", "1m0s resolved flaps{a} condition_ended", "2m0s flapping flaps{a} flapping",
		"5m0s silenced flaps{a} silenced", "10m0s unsilenced flaps{a} silence_over", "10m0s flapping flaps{a} silence_over", "43m0s resolved flaps{a} steady",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}
