package react

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/record"
)

// standing are the alerts of a rule that fired or are pending, as the plane has them.
func (b *bench) standing(rule string) []alert.Alert {
	b.t.Helper()
	found, _, err := b.service.Alerts(context.Background(), Filter{Rule: rule}, "", 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	out := []alert.Alert{}
	for _, l := range slices.Backward(found) {
		if l.Alert.FiredAt != nil || l.Alert.State == alert.Pending {
			out = append(out, l.Alert)
		}
	}
	return out
}

// delete deletes the cluster, of which the reactor hears at once.
func (b *bench) delete() {
	b.t.Helper()
	if err := b.db.Commit(context.Background(), record.FormerWrite(stream, b.clock())); err != nil {
		b.t.Fatal(err)
	}
	b.follow()
}

// TestBacktestIsWhatTheReactorHas: of any rule and any history, whatever inhibits it,
// a test lists the alerts that the reactor has, each as it has it: those that are open
// with what they count by now.
func TestBacktestIsWhatTheReactorHas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := setup(t)
		defer b.close()
		b.quiet()
		r := randomRule(rt)
		if _, err := b.service.CreateRule(t.Context(), call, over()); err != nil {
			rt.Fatal(err)
		}
		if rapid.Bool().Draw(rt, "inhibited") {
			r.InhibitedBy = []alert.Inhibitor{{Rule: "over", Equal: []string{"g"}}}
		}
		if _, err := b.service.CreateRule(t.Context(), call, r); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 40).Draw(rt, "events") {
			if put := func() { b.put(b.randomEvent(rt)) }; rapid.IntRange(0, 9).Draw(rt, "wrong") == 0 {
				b.isAhead(rt, put)
			} else {
				put()
			}
			b.advance(time.Duration(rapid.IntRange(0, 8).Draw(rt, "wait")) * 15 * time.Second)
			if rapid.Bool().Draw(rt, "judged now") {
				b.follow()
			}
		}
		b.settle(rt)
		b.advance(event.ClocksDiffer + time.Millisecond) // the stream may be ahead by so much: what is to come is not of a test
		b.follow()
		if rapid.Bool().Draw(rt, "deleted") { // and all that is open with it
			b.delete()
			b.advance(time.Hour)
		}
		got, err := b.service.Backtest(t.Context(), Backtest{Rule: r, Streams: []string{stream}, Since: t0})
		if err != nil {
			rt.Fatal(err)
		}
		byTime := cmpopts.SortSlices(func(x, y alert.Alert) bool { return x.ID < y.ID })
		if d := cmp.Diff(b.standing("model"), got.Alerts, byTime); d != "" {
			rt.Fatalf("rule %+v: alerts (-reactor +test):\n%s", r, d)
		}
	})
}

// A test lists an alert that is open with all that it counts, and one that is pending.
func TestBacktestOfWhatIsOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 20 {
		b.tell("node.not_ready", "n1")
		b.advance(time.Second)
	}
	b.tell("node.not_ready", "n2")
	b.advance(time.Second)
	r := alert.Rule{Name: "x", On: []string{"node.not_ready"}, GroupBy: map[string]string{"node": "event.subject.name"}, ResolveWhen: &alert.Clause{On: []string{"node.ready"}},
		For: alert.Duration(10 * time.Second)}
	got, err := b.service.Backtest(t.Context(), Backtest{Rule: r, Streams: []string{stream}, Since: t0})
	if err != nil || len(got.Alerts) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	a, p := got.Alerts[0], got.Alerts[1]
	if a.State != alert.Firing || a.Count != 20 || len(a.Evidence) != 10 || !a.Last.Equal(t0.Add(19*time.Second)) {
		t.Errorf("open: %+v", a)
	}
	if p.State != alert.Pending || p.Count != 1 || p.FiredAt != nil {
		t.Errorf("pending: %+v", p)
	}
}

// A test judges what inhibits the rule, as it is stored, and lists and counts the
// rule's own alone; a stored rule of its name is not judged.
func TestBacktestWithInhibitors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: over\non: [x.over]\nwhen: event.detail.missing == 1 || true\ngroup_by: {g: event.subject.name}\n")
	b.rule("name: off\nenabled: false\non: [x.bad]\n")
	b.rule("name: gone\non: [x.bad]\n")
	b.rule("name: mine\non: [x.bad, x.over]\ninhibited_by: [{rule: gone}]\n")
	if err := b.service.DeleteRule(t.Context(), call, "gone", 0); err != nil { // what was named before may go on being named
		t.Fatal(err)
	}
	for _, typ := range []string{"x.over", "x.bad"} {
		b.tell(typ, "n1")
		b.advance(time.Second)
	}
	r := alert.Rule{Name: "mine", On: []string{"x.bad"}, GroupBy: map[string]string{"g": "event.subject.name"},
		InhibitedBy: []alert.Inhibitor{{Rule: "off"}, {Rule: "over", Equal: []string{"g"}}, {Rule: "gone"}}}
	test := func(r alert.Rule) Backtested {
		t.Helper()
		got, err := b.service.Backtest(t.Context(), Backtest{Rule: r, Streams: []string{stream}, Since: t0})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := test(r)
	if len(got.Alerts) != 1 || got.Alerts[0].InhibitedBy == "" || got.Matched != 1 || got.InhibitorCost == 0 || got.Cost == 0 || !cmp.Equal(got.Inhibitors, []string{"over"}) {
		t.Errorf("%+v", got)
	}
	b.follow()
	if live := b.standing("over"); len(live) != 1 || live[0].ID != got.Alerts[0].InhibitedBy {
		t.Errorf("it is inhibited by %s, which is not the one that fires: %+v", got.Alerts[0].InhibitedBy, live)
	}
	r.InhibitedBy = nil
	if alone := test(r); alone.Cost != got.Cost || alone.InhibitorCost != 0 || alone.Alerts[0].InhibitedBy != "" || len(alone.Inhibitors) != 0 {
		t.Errorf("%+v, without inhibitors %+v", got, alone)
	}
	over, err := b.service.Rule(t.Context(), "over")
	if err != nil {
		t.Fatal(err)
	}
	circle := over.Rule
	circle.InhibitedBy = []alert.Inhibitor{{Rule: "mine"}}
	mine := r
	mine.InhibitedBy = []alert.Inhibitor{{Rule: "over"}}
	if _, err := b.service.UpdateRule(t.Context(), call, "mine", 0, mine); err != nil {
		t.Fatal(err)
	}
	if _, err := b.service.Backtest(t.Context(), Backtest{Rule: circle, Streams: []string{stream}, Since: t0}); code(err) != "invalid" {
		t.Errorf("in a circle: %v", err)
	}
}

// How judging failed is told by rule, over the streams that are asked about, of the
// rule as it is now; a process that ends loses none of it and counts none twice.
func TestFailing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	made := b.rule("name: hot\non: [x.bad]\nwhen: event.detail.n > 3\n")
	failing := func(streams ...string) Failing {
		t.Helper()
		all, err := b.service.Rules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.service.Failing(t.Context(), streams, all)
		if err != nil {
			t.Fatal(err)
		}
		return got[made.ID]
	}
	b.follow()
	for range 8 {
		b.tell("x.bad", "n1")
		b.reactor = b.another()
		b.follow()
		b.advance(time.Second)
	}
	got := failing(stream, second)
	if got.Count != 8 || got.Stream != stream || got.Last.Field != "/when" || got.Last.Event == "" || !got.At.Equal(t0.Add(7*time.Second)) {
		t.Errorf("%+v", got)
	}
	if got := failing(second); got.Count != 0 {
		t.Errorf("of another stream: %+v", got)
	}
	r := made.Rule
	r.When = "event.detail.?n.orValue(0) > 3"
	if _, err := b.service.UpdateRule(t.Context(), call, "hot", 0, r); err != nil {
		t.Fatal(err)
	}
	if got := failing(stream); got.Count != 0 {
		t.Errorf("of a rule that was mended: %+v", got)
	}
}

// A renamed rule goes on inhibiting, and being silenced: what names it is changed with
// it, and what it had opened stays. What named a rule that is gone may be put as it is.
func TestRename(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	ctx := t.Context()
	high := b.rule("name: high\non: [x.worse]\ngroup_by: {g: event.subject.name}\non_change: keep\nresolve_when: {on: [x.better]}\n")
	b.rule("name: low\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\ninhibited_by: [{rule: high, equal: [g]}]\n")
	silence := func(ms ...alert.Match) alert.Silence {
		t.Helper()
		s, err := b.service.CreateSilence(ctx, call, alert.Silence{Matchers: ms, EndsAt: t0.Add(time.Hour), Reason: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := silence(alert.Match{Field: "rule", Op: "=", Value: "high"}, alert.Match{Field: "group.g", Op: "=", Value: "n2"})
	pattern := silence(alert.Match{Field: "rule", Op: "=~", Value: "high|hi"})
	if _, err := b.service.EndSilence(ctx, call, pattern.ID); err != nil {
		t.Fatal(err)
	}
	b.tell("x.bad", "n1")
	b.follow()
	next := high.Rule
	next.Name = "higher"
	if _, err := b.service.UpdateRule(ctx, call, "high", 0, next); err != nil {
		t.Fatal(err)
	}
	b.follow()
	b.advance(time.Minute)
	b.tell("x.worse", "n1")
	b.tell("x.worse", "n2")
	b.follow()
	want := []string{"0s firing lowmap[g:n1] condition_holds", "1m0s firing highermap[g:n1] condition_holds", "1m0s inhibited lowmap[g:n1] inhibited*", "1m0s firing highermap[g:n2] condition_holds"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	low, err := b.service.Rule(ctx, "low")
	if err != nil || low.Rule.InhibitedBy[0].Rule != "higher" || low.Version != 2 {
		t.Errorf("%+v, %v", low, err)
	}
	if s, err = b.service.Silence(ctx, s.ID); err != nil || s.Matchers[0].Value != "higher" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, a := range b.standing("higher") {
		if (a.SilencedBy != "") != (a.Group["g"] == "n2") {
			t.Errorf("silenced by %q: %+v", a.SilencedBy, a)
		}
	}
	// A circle is one also when the rename makes it.
	circle := next
	circle.Name, circle.InhibitedBy = "highest", []alert.Inhibitor{{Rule: "low"}}
	if _, err := b.service.UpdateRule(ctx, call, "higher", 0, circle); code(err) != "invalid" {
		t.Errorf("a circle: %v", err)
	}
	// Gone: what names it is put as it is; a new one that names it is not taken.
	if err := b.service.DeleteRule(ctx, call, "higher", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.service.UpdateRule(ctx, call, "low", 0, low.Rule); err != nil {
		t.Errorf("put as it is: %v", err)
	}
	low.Rule.Name = "lower"
	if _, err := b.service.CreateRule(ctx, call, low.Rule); code(err) != "invalid" {
		t.Errorf("a new one that names it: %v", err)
	}
}

// A rename that takes too much along is refused, and nothing is changed.
func TestRenameOfWhatManyName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	r := alert.Rule{Name: "high", On: []string{"node.left"}}
	if _, err := b.service.CreateRule(ctx, call, r); err != nil {
		t.Fatal(err)
	}
	for i := range maxCarried + 1 {
		low := alert.Rule{Name: "low-" + string(rune('a'+i%26)) + string(rune('a'+i/26)), On: []string{"node.left"}, InhibitedBy: []alert.Inhibitor{{Rule: "high"}}}
		if _, err := b.service.CreateRule(ctx, call, low); err != nil {
			t.Fatal(err)
		}
	}
	r.Name = "higher"
	if _, err := b.service.UpdateRule(ctx, call, "high", 0, r); code(err) != "invalid" {
		t.Errorf("renamed: %v", err)
	}
	if err := b.service.DeleteRule(ctx, call, "low-aa", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.service.UpdateRule(ctx, call, "high", 0, r); err != nil {
		t.Error(err)
	}
	all, err := b.service.Rules(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if len(x.Rule.InhibitedBy) > 0 && !x.Shipped && x.Rule.InhibitedBy[0].Rule != "higher" {
			t.Errorf("%s is inhibited by %v", x.Rule.Name, x.Rule.InhibitedBy)
		}
	}
}

// A test until before a cluster was deleted has its alerts open, one until after has
// them end with it, and with no event since.
func TestBacktestOfADeletedCluster(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.tell("node.not_ready", "n1")
	b.advance(time.Minute)
	b.delete()
	end := b.clock()
	b.tell("node.not_ready", "n2")
	b.advance(time.Hour)
	rule := alert.Rule{Name: "x", Severity: "critical", On: []string{"node.not_ready"}, GroupBy: map[string]string{"node": "event.subject.name"}}
	for _, tt := range []struct {
		until  time.Time
		state  alert.State
		reason string
	}{
		{end.Add(-time.Second), alert.Firing, alert.ReasonHolds},
		{end, alert.Resolved, alert.ReasonCluster},
		{b.clock(), alert.Resolved, alert.ReasonCluster},
	} {
		got, err := b.service.Backtest(t.Context(), Backtest{Rule: rule, Since: t0, Until: tt.until})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Alerts) != 1 || !got.Complete {
			t.Errorf("until %s: %+v", tt.until.Sub(t0), got)
			continue
		}
		a := got.Alerts[0]
		if a.State != tt.state || a.Reason != tt.reason || a.Rule != "x" || a.Severity != "critical" || a.Group["node"] != "n1" ||
			tt.state == alert.Resolved && !a.ResolvedAt.Equal(end) {
			t.Errorf("until %s: %+v", tt.until.Sub(t0), a)
		}
	}
}
