package alert

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// What ends something in one of the groups over the limit ends nothing for the
// others that are folded with it.
func TestFoldedGroupsAreNotEndedByOne(t *testing.T) {
	t.Parallel()
	for _, more := range []string{
		"resolve_when: {on: [x.good]}\n",
		"resolve_after: 24h\nwhile: {begin: {on: [x.begin]}, end: {on: [x.good]}, each: '\"one\"'}\n",
	} {
		s := NewStream(testStream, NewSet([]*Compiled{rule(t, "name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\n"+more)}, nil), Position{}, nil)
		s.MaxGroups = 2
		var evs []event.Event
		for i := range 4 {
			evs = append(evs, fact(0, "x.begin", fmt.Sprint(i)), fact(0, "x.bad", fmt.Sprint(i)))
		}
		evs = append(evs, fact(time.Minute, "x.good", "2"), fact(time.Minute, "x.good", "9"))
		got := playOn(t, s, 30*time.Hour, evs...)
		want := []string{
			"0s firing each{0} condition_holds", "0s firing each{1} condition_holds",
			"0s groups_folded each{(other)} ", "0s firing each{(other)} condition_holds", "24h0m0s resolved each{(other)} quiet",
		}
		got = slices.DeleteFunc(got, func(l string) bool {
			return strings.HasSuffix(l, "resolved each{0} quiet") || strings.HasSuffix(l, "resolved each{1} quiet")
		})
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s told (-want +got):\n%s", more, d)
		}
	}
}

// operationsOf are events of operations that begin every so often and each end a
// minute later, but for the first.
func operationsOf(n int, every time.Duration) []event.Event {
	var begins, ends []event.Event
	for i := range n {
		op := fmt.Sprint("op_", i)
		of := func(after time.Duration, typ string) event.Event {
			e := fact(after, typ, "n1", "operation", op, "type", "node.drain", "phase", typ[len("operation."):])
			return e
		}
		begins = append(begins, of(time.Duration(i)*every, "operation.running"))
		if i > 0 {
			ends = append(ends, of(time.Duration(i)*every+time.Minute, "operation.succeeded"))
		}
	}
	var out []event.Event
	for len(begins)+len(ends) > 0 {
		if len(begins) > 0 && (len(ends) == 0 || !ends[0].ReceivedAt.Before(begins[0].ReceivedAt)) {
			out, begins = append(out, begins[0]), begins[1:]
		} else {
			out, ends = append(out, ends[0]), ends[1:]
		}
	}
	return out
}

// An operation that is stuck is told however many others come and go: what is over
// takes no room. Of more than the limit at once it is told that they are not looked
// at, once, and those that are go on.
func TestManyOperationsOneStuck(t *testing.T) {
	t.Parallel()
	var stuck *Compiled
	for _, sh := range ShippedRules() {
		if sh.Rule.Name == "operation-stuck" {
			var err error
			if stuck, err = Compile(sh.Rule, sh.ID, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name  string
		n     int
		every time.Duration
		most  int
		want  []string
	}{
		{"5,000 in 5 minutes, 1,000 at once", 5000, 60 * time.Millisecond, 1002, []string{"1h0m0s firing operation-stuck{op_0} condition_holds"}},
		{"more at once than the limit", 300, 100 * time.Millisecond, 100, []string{
			"10s groups_folded operation-stuck{(other)} ", "1h0m0s firing operation-stuck{op_0} condition_holds"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := NewStream(testStream, NewSet([]*Compiled{stuck}, nil), Position{}, nil)
			s.MaxGroups = tt.most
			if d := cmp.Diff(tt.want, playOn(t, s, 2*time.Hour, operationsOf(tt.n, tt.every)...)); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if s.Groups() != 1 {
				t.Errorf("%d groups are left", s.Groups())
			}
		})
	}
}

// To forget groups that are over wakes nobody for long, and they take no room: the
// next event takes them with it, and where none comes an hour does.
func TestForgettingWakesNobody(t *testing.T) {
	t.Parallel()
	s := NewStream(testStream, NewSet([]*Compiled{rule(t, "name: one\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\nresolve_after: 5m\n")}, nil), Position{}, nil)
	s.MaxGroups = 2
	var evs []event.Event
	for i := range 5 {
		at := time.Duration(i) * time.Second
		evs = append(evs, fact(at, "x.bad", fmt.Sprint(i)), fact(at, "x.good", fmt.Sprint(i)))
	}
	evs = append(evs, fact(5*time.Second, "x.bad", "5"), fact(6*time.Second, "x.bad", "6"))
	dues := map[int64]time.Duration{1: 5 * time.Minute, 2: time.Hour, 9: 4*time.Second + 5*time.Minute, 10: 4*time.Second + time.Hour, 12: 5*time.Second + 5*time.Minute}
	for _, e := range number(evs) {
		s.Judge(NewVars(&e, nil), never)
		if want, ok := dues[e.Sequence]; ok && s.Due().Sub(t0).Truncate(time.Second) != want {
			t.Errorf("behind event %d due at %s, want %s", e.Sequence, s.Due().Sub(t0), want)
		}
		if n := s.Groups(); n > 2 {
			t.Errorf("behind event %d there are %d groups", e.Sequence, n)
		}
	}
	if told := lines(s.Take().Told); len(told) != 12 || strings.Contains(strings.Join(told, ""), "folded") {
		t.Errorf("told %q", told)
	}
	s.Tick(t0.Add(6*time.Second+5*time.Minute), never) // both quiet, and the first forgotten
	if n, due := s.Groups(), s.Due(); n != 1 || !due.After(t0.Add(time.Hour)) {
		t.Errorf("%d groups, due at %s", n, due)
	}
	s.Tick(s.Due(), never)
	if n, due := s.Groups(), s.Due(); n != 0 || !due.IsZero() {
		t.Errorf("%d groups, due at %s", n, due)
	}
}
