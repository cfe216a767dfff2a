package react

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// crasher is the ledger of a process that ends at its nth call: that call and all
// later ones fail. With applied a commit at which it ends is in effect.
type crasher struct {
	ledger.Ledger
	at, n   int
	applied bool
}

var errCrash = errors.New("the process has ended")

func (l *crasher) dead() (dead, now bool) {
	l.n++
	return l.n >= l.at, l.n == l.at
}

func (l *crasher) Get(ctx context.Context, k ledger.Key) (ledger.Item, error) {
	if dead, _ := l.dead(); dead {
		return ledger.Item{}, errCrash
	}
	return l.Ledger.Get(ctx, k)
}

func (l *crasher) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	if dead, _ := l.dead(); dead {
		return nil, errCrash
	}
	return l.Ledger.GetMany(ctx, ks)
}

func (l *crasher) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	if dead, _ := l.dead(); dead {
		return ledger.Page{}, errCrash
	}
	return l.Ledger.Query(ctx, q)
}

func (l *crasher) Commit(ctx context.Context, ws ...ledger.Write) error {
	dead, now := l.dead()
	if dead && !(now && l.applied) {
		return errCrash
	}
	err := l.Ledger.Commit(ctx, ws...)
	if now && err == nil {
		return errCrash
	}
	return err
}

const crashRules = `
name: b-high
on: [x.bad]
group_by: {g: event.subject.name}
count: 2
window: 5m
resolve_after: 3m
|
name: a-low
on: [x.bad]
group_by: {g: event.subject.name}
for: 2m
resolve_when: {on: [x.good]}
inhibited_by: [{rule: b-high, equal: [g]}]
`

// night plays a short night, in which everything happens once; a step that fails
// is left to whoever comes next.
func (b *bench) night(follow func()) {
	for i, names := range []string{"ab", "", "ac", "c", "", "A", "bB", "", ""} {
		var evs []event.Event
		for _, n := range names {
			typ := "x.bad"
			if n < 'a' {
				typ = "x.good"
			}
			evs = append(evs, b.fact(typ, strings.ToLower(string(n)), nil))
		}
		if len(evs) > 0 {
			b.put(evs...)
		}
		follow()
		b.advance(time.Duration(30+20*(i%3)) * time.Second)
	}
	b.advance(10 * time.Minute)
}

// crashing plays a night whose first process ends at a call, and returns what was
// told and how many calls that process made.
func (b *bench) crashing(at int, applied bool) (told []string, calls int) {
	b.t.Helper()
	b.quiet()
	for _, text := range strings.Split(crashRules, "|") {
		b.rule(text)
	}
	l := &crasher{Ledger: b.db, at: at, applied: applied}
	first := b.another()
	first.Batch = 2
	first.Store = &record.Store{Ledger: l, Now: b.clock, Timing: b.store.Timing}
	b.night(func() {
		if first != nil && first.Follow(context.Background(), stream) == nil {
			return
		}
		first = nil // it has ended
		b.follow()
	})
	b.follow()
	return b.told(), l.n
}

// TestCrashBetweenAnyTwoCalls ends the process at each of its calls to the ledger,
// before and after the call, and lets another go on: what is told is the same.
func TestCrashBetweenAnyTwoCalls(t *testing.T) {
	t.Parallel()
	run := func(at int, applied bool) (told []string, calls int) { return setup(t).crashing(at, applied) }
	want, calls := run(1<<30, false)
	if len(want) < 10 || !slices.ContainsFunc(want, func(s string) bool { return strings.Contains(s, "inhibition_over") }) {
		t.Fatalf("the night is too quiet: %v", want)
	}
	for at := 1; at <= calls; at++ {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprint("call ", at, " applied ", applied), func(t *testing.T) {
				t.Parallel()
				got, _ := run(at, applied)
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("told (-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestManyReactorsAtOnce: eight reactors follow one stream while it is written to.
// Each alert is told once, and none is missing.
func TestManyReactorsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\n")
	const n = 300
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			r := b.another()
			r.Batch = 7
			for last := false; ; {
				if err := r.Follow(context.Background(), stream); err != nil && !errors.Is(err, ledger.ErrConflict) {
					t.Error(err)
					return
				}
				if last {
					return
				}
				select {
				case <-done:
					last = true
				default:
				}
			}
		})
	}
	for i := range n {
		b.put(b.fact("x.bad", fmt.Sprint("n", i), nil))
		b.put(b.fact("x.good", fmt.Sprint("n", i), nil))
	}
	close(done)
	wg.Wait()
	b.follow()
	told := b.told()
	if len(told) != 2*n {
		t.Errorf("told %d times, want %d", len(told), 2*n)
	}
	slices.Sort(told)
	if len(slices.Compact(told)) != 2*n {
		t.Error("something was told twice")
	}
}

// TestBurst: 10,000 events at once, of one group and of as many.
func TestBurst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\n")
	b.rule("name: all\non: [x.*]\ncount: 10000\nwindow: 1h\n")
	const n = 10_000
	for i := 0; i < n; i += 500 {
		evs := make([]event.Event, 500)
		for j := range evs {
			evs[j] = b.fact("x.bad", fmt.Sprint("n", i+j), nil)
		}
		b.put(evs...)
	}
	b.follow()
	var each, all, folded int
	for _, l := range b.told() {
		switch {
		case strings.Contains(l, "firing each"):
			each++
		case strings.Contains(l, "firing all"):
			all++
		case strings.Contains(l, "groups_folded each"):
			folded++
		}
	}
	if each != alert.DefaultGroups+1 || all != 1 || folded != 1 {
		t.Errorf("%d alerts of each, %d of all, folded %d times", each, all, folded)
	}
	if m := b.reactor.Metrics.Read(); m.Judged != n || m.Matched != 2*n || m.Told[alert.TypeFiring] != int64(each+all) {
		t.Errorf("counted %+v", m)
	}
	// An hour later all of it is over, and nothing is left.
	b.advance(2 * time.Hour)
	b.follow()
	b.advance(2 * time.Hour)
	b.follow()
	got, _, err := b.service.Alerts(t.Context(), Filter{States: []alert.State{alert.Pending, alert.Firing}}, "", 10)
	if err != nil || len(got) != 0 {
		t.Errorf("%d alerts are open, %v", len(got), err)
	}
	if groups, err := b.reactor.groups(t.Context(), stream); err != nil || len(groups) != 0 {
		t.Errorf("%d groups are left, %v", len(groups), err)
	}
	items, err := b.db.Due(t.Context(), b.clock().Add(1000*time.Hour), 10)
	if err != nil || len(items) != 0 {
		t.Errorf("due: %v, %v", items, err)
	}
}

// TestOneEventForManyRules: an event that a thousand rules match takes several
// commits, and a process may end between any two of them.
func TestOneEventForManyRules(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	var writes []ledger.Write
	const n = 300
	for i := range n {
		r := alert.Rule{Name: fmt.Sprint("r", i), On: []string{"x.bad"}, GroupBy: map[string]string{"g": "event.subject.name"}}
		st := stored{ID: alert.ShippedID(r.Name), Rule: r, Version: 1}
		writes = append(writes, ledger.Write{Item: ledger.Item{Key: record.RuleKey(st.ID), Data: record.Encode(st)}})
		if len(writes) == 90 || i == n-1 {
			if err := b.service.change(t.Context(), func() ([]ledger.Write, error) { return writes, nil }); err != nil {
				t.Fatal(err)
			}
			writes = nil
		}
	}
	b.put(b.fact("x.bad", "a", nil))
	for at := 3; ; at += 4 { // processes that end soon
		r := b.another()
		r.Store = &record.Store{Ledger: &crasher{Ledger: b.db, at: at, applied: at%8 == 3}, Now: b.clock, Timing: b.store.Timing}
		if r.Follow(t.Context(), stream) == nil {
			break
		}
	}
	if told := b.told(); len(told) != n {
		t.Errorf("told %d times, want %d", len(told), n)
	}
}

// TestRetentionPassesTheReactor: what was forgotten before it was judged is
// counted, and the rest is judged.
func TestRetentionPassesTheReactor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\n")
	b.tell("x.bad", "a")
	b.follow()
	for range 5 {
		b.tell("x.bad", "b")
	}
	b.advance(time.Hour)
	b.tell("x.bad", "c")
	if _, _, err := event.Trim(t.Context(), b.db, stream, b.clock()); err != nil {
		t.Fatal(err)
	}
	b.follow()
	if m := b.reactor.Metrics.Read(); m.Lost == 0 || m.Judged != 2 {
		t.Errorf("counted %+v", m)
	}
}

// TestFirstReactor: a deployment that gets its first reactor is told of what is
// going on, not of what is over.
func TestFirstReactor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_when: {on: [x.good]}\n")
	b.tell("x.bad", "old")
	b.advance(2 * time.Hour)
	b.tell("x.bad", "new")
	b.follow()
	if d := cmp.Diff([]string{"2h0m0s firing eachmap[g:new] condition_holds"}, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}
