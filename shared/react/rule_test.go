package react

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// code is a refusal's code.
func code(err error) string {
	var r *operation.Refusal
	if errors.As(err, &r) {
		return r.ErrorCode
	}
	var f alert.Faults
	if errors.As(err, &f) {
		return f.Code()
	}
	return fmt.Sprint(err)
}

// Rules are made, found by name, changed on condition, and deleted; names are
// taken once, also by those that ship.
func TestRules(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	r := alert.Rule{Name: "mine", On: []string{"node.left"}}
	made, err := b.service.CreateRule(ctx, call, r)
	if err != nil || made.Version != 1 || made.Revision != 1 {
		t.Fatalf("%+v, %v", made, err)
	}
	for _, name := range []string{"mine", "device-degraded"} {
		if _, err := b.service.CreateRule(ctx, call, alert.Rule{Name: name, On: []string{"node.left"}}); code(err) != "name_taken" {
			t.Errorf("a second %s: %v", name, err)
		}
	}
	next := r
	next.Severity = "critical"
	if _, err := b.service.UpdateRule(ctx, call, "mine", 7, next); code(err) != "precondition_failed" {
		t.Errorf("at another revision: %v", err)
	}
	changed, err := b.service.UpdateRule(ctx, call, made.ID, 1, next)
	if err != nil || changed.Version != 2 || changed.Rule.Severity != "critical" || changed.ID != made.ID {
		t.Errorf("%+v, %v", changed, err)
	}
	if got, err := b.service.Rule(ctx, "mine"); err != nil || !cmp.Equal(got, changed) {
		t.Errorf("read %v, %s", err, cmp.Diff(changed, got))
	}
	if _, err := b.service.CreateRule(ctx, call, alert.Rule{Name: "other", On: []string{"node.left"}, InhibitedBy: []alert.Inhibitor{{Rule: "mine"}}}); err != nil {
		t.Fatal(err)
	}
	next.InhibitedBy = []alert.Inhibitor{{Rule: "other"}}
	if _, err := b.service.UpdateRule(ctx, call, "mine", 0, next); code(err) != "invalid" || !strings.Contains(err.Error(), "circle") {
		t.Errorf("a circle: %v", err)
	}
	next.InhibitedBy, next.Name = nil, "renamed"
	if _, err := b.service.UpdateRule(ctx, call, "mine", 0, next); err != nil {
		t.Fatal(err)
	}
	if err := b.service.DeleteRule(ctx, call, "mine", 0); code(err) != "not_found" {
		t.Errorf("by its old name: %v", err)
	}
	if _, err := b.service.CreateRule(ctx, call, r); err != nil {
		t.Errorf("the old name is still taken: %v", err)
	}
	if err := b.service.DeleteRule(ctx, call, "renamed", 0); err != nil {
		t.Error(err)
	}
	if _, err := b.service.Rule(ctx, "renamed"); code(err) != "not_found" {
		t.Errorf("deleted: %v", err)
	}
}

// A rule that ships is overridden, on condition, and taken back; it is neither
// updated nor deleted, and its versions only grow.
func TestShippedRulesAreOverridden(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	was, err := b.service.Rule(ctx, "deployment-oom-loop")
	if err != nil || !was.Shipped || was.Revision != 0 || was.Version != 1 {
		t.Fatalf("%+v, %v", was, err)
	}
	if _, err := b.service.UpdateRule(ctx, call, was.ID, 0, was.Rule); code(err) != "forbidden" {
		t.Errorf("updated: %v", err)
	}
	if err := b.service.DeleteRule(ctx, call, was.ID, 0); code(err) != "forbidden" {
		t.Errorf("deleted: %v", err)
	}
	if _, err := b.service.OverrideRule(ctx, call, was.ID, 0, alert.Override{Count: -1}); code(err) != "invalid" {
		t.Errorf("a bad override: %v", err)
	}
	got, err := b.service.OverrideRule(ctx, call, was.Rule.Name, 0, alert.Override{Count: 9, Severity: "info"})
	if err != nil || got.Rule.Count != 9 || got.Rule.Window != was.Rule.Window || got.Version <= was.Version || got.Digest == was.Digest {
		t.Errorf("%+v, %v", got, err)
	}
	if read, err := b.service.Rule(ctx, was.ID); err != nil || !cmp.Equal(read, got) {
		t.Errorf("read %v: %s", err, cmp.Diff(got, read))
	}
	if err := b.service.DeleteRule(ctx, call, was.ID, 0); err != nil {
		t.Fatal(err)
	}
	back, err := b.service.Rule(ctx, was.ID)
	if err != nil || back.Rule.Count != was.Rule.Count || back.Version <= got.Version || back.Digest != was.Digest {
		t.Errorf("taken back: %+v, %v", back, err)
	}
}

// Of many who make a rule of one name at once, one does.
func TestTwoRulesOfOneName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	outcomes := map[string]int{}
	for range 8 {
		wg.Go(func() {
			_, err := b.service.CreateRule(t.Context(), call, alert.Rule{Name: "one", On: []string{"node.left"}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				outcomes["made"]++
			} else {
				outcomes[code(err)]++
			}
		})
	}
	wg.Wait()
	if d := cmp.Diff(map[string]int{"made": 1, "name_taken": 7}, outcomes); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A changed rule is taken by streams in which nothing happens, by reactors that
// have the old one at hand; what fires resolves, and keeps its name when the rule
// is gone.
func TestRuleChangesReachQuietStreams(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: one\non: [x.bad]\ngroup_by: {g: event.subject.name}\nseverity: error\nsummary: 'bad {subject}'\n")
	for i := range 40 { // more than one commit takes
		b.tell("x.bad", fmt.Sprint("n", i))
	}
	b.follow()
	b.advance(time.Minute)
	if err := b.service.DeleteRule(t.Context(), call, "one", 0); err != nil {
		t.Fatal(err)
	}
	b.follow()
	got, _, err := b.service.Alerts(t.Context(), Filter{Rule: "one", States: []alert.State{alert.Resolved, alert.Firing}}, "", 100)
	if err != nil || len(got) != 40 {
		t.Fatalf("%d alerts, %v", len(got), err)
	}
	for _, l := range got {
		a := l.Alert
		if a.State != alert.Resolved || a.Reason != alert.ReasonDeleted || a.Severity != "error" || a.Summary != "bad "+a.Group["g"] || len(a.History) != 2 {
			t.Fatalf("%+v", a)
		}
	}
	if groups, err := b.reactor.groups(t.Context(), stream); err != nil || len(groups) != 0 {
		t.Errorf("%d groups are left, %v", len(groups), err)
	}
}

// Pages of the list hold each alert once, whatever their size; filters and places
// go together.
func TestAlertPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: one\non: [x.bad]\ngroup_by: {g: event.subject.name}\nseverity: error\nresolve_when: {on: [x.good]}\n")
	b.rule("name: two\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\n")
	for i := range 25 {
		b.tell("x.bad", fmt.Sprint("n", i))
		b.advance(time.Second)
	}
	b.tell("x.good", "n3")
	b.follow()
	for _, c := range []struct {
		f    Filter
		want int
	}{
		{Filter{}, 50}, {Filter{Rule: "one"}, 25}, {Filter{Severities: []string{"error"}}, 25}, {Filter{Streams: []string{stream}}, 50},
		{Filter{Streams: []string{"plane"}}, 0}, {Filter{States: []alert.State{alert.Firing}}, 48}, {Filter{States: []alert.State{alert.Resolved}, Rule: "two"}, 1},
		{Filter{Since: t0.Add(20 * time.Second)}, 10}, {Filter{Until: t0.Add(5 * time.Second), Rule: "one"}, 5}, {Filter{Streams: []string{}}, 0},
	} {
		for _, limit := range []int{1, 7, 25, 200} {
			seen := map[string]bool{}
			last := t0.Add(time.Hour)
			for after, n := "", 0; ; n++ {
				got, next, err := b.service.Alerts(t.Context(), c.f, after, limit)
				if err != nil || len(got) > limit || n > 60 {
					t.Fatalf("%d alerts, %v", len(got), err)
				}
				for _, l := range got {
					if seen[l.Alert.ID] || l.Alert.Since.After(last) {
						t.Fatalf("%+v limit %d: %s is there twice, or out of order", c.f, limit, l.Alert.ID)
					}
					seen[l.Alert.ID], last = true, l.Alert.Since
				}
				if after = next; after == "" {
					break
				}
			}
			if len(seen) != c.want {
				t.Errorf("%+v limit %d: %d alerts, want %d", c.f, limit, len(seen), c.want)
			}
		}
	}
}

// A silence is made, seen on what fires, ended, and then what fires is told.
func TestSilences(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: one\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 2h\n")
	ctx := t.Context()
	s := alert.Silence{Matchers: []alert.Match{{Field: "rule", Op: "=", Value: "one"}}, EndsAt: t0.Add(time.Hour), Reason: "maintenance"}
	if _, err := b.service.CreateSilence(ctx, call, alert.Silence{Matchers: s.Matchers, StartsAt: t0.Add(-2 * time.Hour), EndsAt: t0.Add(-time.Hour), Reason: "late"}); code(err) != "invalid" {
		t.Errorf("one that is past: %v", err)
	}
	s, err := b.service.CreateSilence(ctx, call, s)
	if err != nil || s.Author.ID != "ada" || !s.StartsAt.Equal(t0) {
		t.Fatalf("%+v, %v", s, err)
	}
	b.tell("x.bad", "a")
	b.follow()
	got, _, err := b.service.Alerts(ctx, Filter{}, "", 10)
	if err != nil || len(got) != 1 || got[0].Alert.SilencedBy != s.ID || !got[0].Alert.Muted() {
		t.Fatalf("%+v, %v", got, err)
	}
	b.advance(10 * time.Minute)
	if s, err = b.service.EndSilence(ctx, call, s.ID); err != nil || !s.EndsAt.Equal(b.clock()) {
		t.Errorf("%+v, %v", s, err)
	}
	b.follow()
	want := []string{"0s firing onemap[g:a] condition_holds", "10m0s unsilenced onemap[g:a] silence_over", "10m0s firing onemap[g:a] silence_over"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	got, _, err = b.service.Alerts(ctx, Filter{}, "", 10)
	if err != nil || len(got) != 1 || got[0].Alert.Muted() {
		t.Errorf("%+v, %v", got, err)
	}
	later, err := b.service.CreateSilence(ctx, call, alert.Silence{Matchers: s.Matchers, StartsAt: b.clock().Add(time.Minute), EndsAt: b.clock().Add(time.Hour), Reason: "again"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"", later.ID} { // it is seen on what fires once it begins
		if got, _, err = b.service.Alerts(ctx, Filter{}, "", 10); err != nil || len(got) != 1 || got[0].Alert.SilencedBy != want {
			t.Errorf("%+v, %v; want silence %q", got, err, want)
		}
		b.advance(time.Minute)
	}
	if _, err := b.service.EndSilence(ctx, call, later.ID); err != nil {
		t.Fatal(err)
	}
	for past, n := range map[bool]int{false: 0, true: 2} {
		if list, err := b.service.Silences(ctx, past); err != nil || len(list) != n {
			t.Errorf("listed %v, %v", list, err)
		}
	}
}

// A backtest tells what a rule would have done, from the stored events, and keeps
// and tells nothing; what retention took is passed by.
func TestBacktest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	for i := range 50 {
		b.tell("x.bad", fmt.Sprint("n", i%5))
		b.advance(time.Minute)
	}
	r := alert.Rule{Name: "try", On: []string{"x.bad"}, GroupBy: map[string]string{"g": "event.subject.name"}, When: `event.subject.name != "n4"`,
		Count: 3, Window: alert.Duration(12 * time.Minute), ResolveAfter: alert.Duration(30 * time.Minute)}
	off := false
	r.Enabled = &off // it is tried all the same
	b.advance(time.Hour)
	got, err := b.service.Backtest(t.Context(), Backtest{Rule: r, Streams: []string{stream}, Since: t0.Add(10 * time.Minute)})
	if err != nil || len(got.Alerts) != 4 || !got.Complete || got.Judged != 40 || got.Matched != 32 || got.Cost == 0 || got.Errors != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	a := got.Alerts[0]
	if a.Group["g"] != "n0" || !a.FiredAt.Equal(t0.Add(20*time.Minute)) || len(a.Evidence) != 8 || a.State != alert.Resolved || !a.ResolvedAt.Equal(t0.Add(75*time.Minute)) {
		t.Errorf("first alert %+v", a)
	}
	if told := b.told(); len(told) != 0 {
		t.Errorf("told %v", told)
	}
	if _, err := b.service.Backtest(t.Context(), Backtest{Rule: alert.Rule{Name: "x"}, Since: t0}); code(err) != "invalid" {
		t.Errorf("a bad rule: %v", err)
	}
	if _, _, err := event.Trim(t.Context(), b.db, stream, t0.Add(40*time.Minute)); err != nil {
		t.Fatal(err)
	}
	got, err = b.service.Backtest(t.Context(), Backtest{Rule: r, Streams: []string{stream}, Since: t0, Until: t0.Add(49 * time.Minute)})
	if err != nil || got.Judged != 9 {
		t.Errorf("behind retention: %+v, %v", got, err)
	}
}

// The alerts of a cluster end with it, and nothing of it is judged any more.
func TestDeletedCluster(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: one\non: [x.bad]\ngroup_by: {g: event.subject.name}\n")
	b.tell("x.bad", "a")
	b.follow()
	b.advance(time.Minute)
	w := record.FormerWrite(stream, b.clock())
	if err := b.db.Commit(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if streams, all := record.Wakes([]ledger.Change{{Key: w.Item.Key, Version: 1}}); all || !cmp.Equal(streams, []string{stream}) || !w.Feed {
		t.Errorf("the feed's record wakes %v", streams)
	}
	b.follow()
	b.tell("x.bad", "b")
	b.follow()
	want := []string{"0s firing onemap[g:a] condition_holds", "1m0s resolved onemap[g:a] cluster_deleted"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if items, err := b.db.Due(t.Context(), b.clock().Add(1000*time.Hour), 10); err != nil || len(items) != 0 {
		t.Errorf("due: %v, %v", items, err)
	}
}

// Rules and groups that are as large as they may be still fit in a commit.
func TestLargestAlerts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	labels := map[string]string{}
	for i := range 29 {
		labels[fmt.Sprint("l", i)] = strings.Repeat("x", 1024)
	}
	for i := range 3 {
		r := alert.Rule{Name: fmt.Sprint("big", i), On: []string{"x.bad"}, Labels: labels, Count: 1, Window: alert.Duration(time.Hour),
			Distinct: "event.subject.id", GroupBy: map[string]string{"g": "event.subject.name"}}
		if _, err := b.service.CreateRule(t.Context(), call, r); err != nil {
			t.Fatal(err)
		}
	}
	var evs []event.Event
	for i := range 100 {
		evs = append(evs, b.fact("x.bad", fmt.Sprint(strings.Repeat("y", 500), i), nil))
	}
	b.put(evs...)
	b.follow()
	if told := b.told(); len(told) != 300 {
		t.Errorf("told %d times", len(told))
	}
}
