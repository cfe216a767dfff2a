package react

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// appender appends events as a process does whose clock is behind, and whose
// commit may be long under way.
type appender struct {
	lag     time.Duration
	events  []event.Event // under way
	head    event.Head
	version int64
}

// begin stamps events and reads the head; nothing is written yet.
func (a *appender) begin(b *bench, evs []event.Event) error {
	for i := range evs {
		evs[i].ReceivedAt = evs[i].ReceivedAt.Add(-a.lag)
	}
	a.events = evs
	var err error
	a.head, a.version, err = event.LoadHead(context.Background(), b.db, stream)
	return err
}

// finish commits what is under way, as event.Append does: on a conflict it reads
// the head again and commits the events as they are.
func (a *appender) finish(b *bench) error {
	ctx := context.Background()
	for len(a.events) > 0 {
		writes, _, err := event.AppendWrites(a.head, a.version, stream, a.events)
		if err == nil {
			err = b.db.Commit(ctx, writes...)
		}
		switch {
		case err == nil:
			a.events = nil
		case !errors.Is(err, ledger.ErrConflict):
			return err
		default:
			if a.head, a.version, err = event.LoadHead(ctx, b.db, stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestHistoryDeterminesAlerts: whatever the clocks of those who append, however long
// an append is under way while timers come, and whoever judges when: what was told
// follows from the stream alone. A reference evaluator reads it off the history, and
// so does a reactor that is given the history afterwards.
func TestHistoryDeterminesAlerts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b, again := setup(t), setup(t)
		defer b.close()
		defer again.close()
		b.determined(rt, again, false)
	})
}

// TestHistoryTellsOfSetBacks: what TestHistoryDeterminesAlerts shows, where a process's
// clock is ahead now and then; and no clock stays ahead.
func TestHistoryTellsOfSetBacks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b, again := setup(t), setup(t)
		defer b.close()
		defer again.close()
		b.determined(rt, again, true)
	})
}

// isAhead has the clock wrong for a step.
func (b *bench) isAhead(rt *rapid.T, step func()) {
	by := time.Duration(rapid.SampledFrom([]int{1, 30, 90, 300, 3600}).Draw(rt, "ahead")) * time.Second
	b.advance(by)
	step()
	b.advance(-by)
}

// settle has the clock of the stream set back, if it is ahead.
func (b *bench) settle(rt *rapid.T) {
	for range 3 {
		b.follow()
		b.advance(SetBackAfter)
	}
	b.follow()
	if head, _, err := event.LoadHead(context.Background(), b.db, stream); err != nil || head.Received > b.clock().Add(event.ClocksDiffer).UnixMilli() {
		rt.Fatalf("the stream is at %s, the plane at %s, %v", time.UnixMilli(head.Received).UTC(), b.clock(), err)
	}
}

// determined plays a history, and has it judged once more on another plane.
func (b *bench) determined(rt *rapid.T, again *bench, wrong bool) {
	ctx := context.Background()
	no := func(err error) {
		if err != nil {
			rt.Fatal(err)
		}
	}
	rule := randomRule(rt)
	switch rapid.IntRange(0, 3).Draw(rt, "inhibited") {
	case 0:
		rule.InhibitedBy = []alert.Inhibitor{{Rule: "over"}}
	case 1, 2:
		rule.InhibitedBy = []alert.Inhibitor{{Rule: "over", Equal: []string{"g"}}}
	}
	for _, x := range []*bench{b, again} {
		x.quiet()
		_, err := x.service.CreateRule(ctx, call, over())
		no(err)
		_, err = x.service.CreateRule(ctx, call, rule)
		no(err)
	}
	seed := rapid.Uint64().Draw(rt, "seed")
	flaky := func(n uint64) *Reactor {
		r := b.another()
		r.Batch = rapid.IntRange(1, 5).Draw(rt, "batch")
		r.Store = &record.Store{Ledger: &faulty{Ledger: b.db, rand: rand.New(rand.NewPCG(seed, n)), chance: 0.03}, Now: b.clock, Timing: b.store.Timing}
		return r
	}
	reactors := []*Reactor{flaky(0), flaky(1)}
	appenders := make([]*appender, 3)
	for i := range appenders {
		appenders[i] = &appender{lag: time.Duration(rapid.SampledFrom([]int{0, 1, 20, 90, 400}).Draw(rt, "lag")) * time.Second}
	}
	b.put(b.randomEvent(rt))
	b.follow() // from here on it is judged
	for i := range rapid.IntRange(1, 25).Draw(rt, "steps") {
		a := appenders[rapid.IntRange(0, 2).Draw(rt, "appender")]
		switch rapid.IntRange(0, 8).Draw(rt, "step") {
		case 0, 1, 2:
			no(a.finish(b))
			evs := make([]event.Event, rapid.IntRange(1, 3).Draw(rt, "events"))
			for j := range evs {
				evs[j] = b.randomEvent(rt)
			}
			no(a.begin(b, evs))
		case 3:
			no(a.finish(b))
		case 4:
			b.advance(time.Duration(rapid.IntRange(1, 40).Draw(rt, "wait")) * 7500 * time.Millisecond)
		case 5:
			reactors[i%2] = flaky(uint64(i) + 2)
			if wrong {
				b.isAhead(rt, func() {
					no(a.finish(b))
					b.put(b.randomEvent(rt))
					no(a.begin(b, []event.Event{b.randomEvent(rt)}))
					if rapid.Bool().Draw(rt, "judged by it") {
						b.advance(10 * time.Second)
						_ = reactors[i%2].Follow(ctx, stream)
						b.advance(-10 * time.Second)
					}
				})
			}
		case 6:
			var wg sync.WaitGroup
			errs := make([]error, len(appenders))
			for _, r := range reactors {
				wg.Go(func() { _ = r.Follow(ctx, stream) })
			}
			for j, a := range appenders {
				wg.Go(func() { errs[j] = a.finish(b) })
			}
			wg.Wait()
			no(errors.Join(errs...))
		default:
			_ = reactors[i%2].Follow(ctx, stream) // it may fail
		}
	}
	for _, a := range appenders {
		no(a.finish(b))
	}
	b.advance(time.Duration(rapid.IntRange(0, 200).Draw(rt, "last")) * 15 * time.Second)
	b.follow()
	if wrong {
		b.settle(rt)
	}

	evs, _, err := event.ReadStream(ctx, b.db, stream, 1, 10_000)
	no(err)
	for i := 1; i < len(evs); i++ {
		if _, back := event.SetBackOf(&evs[i]); !back && evs[i].ReceivedAt.Before(evs[i-1].ReceivedAt) {
			rt.Fatalf("event %d was received at %s, %d at %s", evs[i-1].Sequence, evs[i-1].ReceivedAt, evs[i].Sequence, evs[i].ReceivedAt)
		}
	}
	told := b.modelTold()
	if d := cmp.Diff(reference(&rule, evs, b.clock()), told); !wrong && d != "" {
		rt.Fatalf("rule %s\ntold (-reference +reactor):\n%s", record.Encode(rule), d)
	}
	again.replay(rt, evs, b.clock())
	if d := cmp.Diff(again.modelTold(), told); d != "" {
		rt.Fatalf("rule %s\ntold (-of the history afterwards +then):\n%s", record.Encode(rule), d)
	}
}

// replay judges a history, alerts' own events apart, as it went, until the time.
func (b *bench) replay(rt *rapid.T, evs []event.Event, until time.Time) {
	for i, e := range evs {
		if strings.HasPrefix(e.Type, "alert.") {
			continue
		}
		if _, back := event.SetBackOf(&e); back {
			head, version, err := event.LoadHead(context.Background(), b.db, stream)
			var writes []ledger.Write
			if err == nil {
				writes, err = event.AgainWrites(head, version, stream, e)
			}
			if err == nil {
				err = b.db.Commit(context.Background(), writes...)
			}
			if err != nil {
				rt.Fatal(err)
			}
			b.advance(e.ReceivedAt.Sub(b.clock()))
			continue
		}
		b.advance(max(0, e.ReceivedAt.Sub(b.clock())))
		b.put(e)
		if i == 0 || rapid.IntRange(0, 3).Draw(rt, "judged now") == 0 {
			b.follow()
		}
	}
	b.advance(until.Sub(b.clock()))
	b.follow()
}

// TestTimersThatTellNothing: what a timer did in silence was before whatever is
// appended behind it, too.
func TestTimersThatTellNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: two\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 6m\nwhile: {begin: {on: [x.begin]}, end: {on: [x.end]}, each: '\"one\"'}\n")
	b.tell("x.bad", "a")
	b.follow()
	b.advance(6*time.Minute + 30*time.Second)
	late := appender{lag: time.Minute}
	if err := late.begin(b, []event.Event{b.fact("x.bad", "a", nil)}); err != nil {
		t.Fatal(err)
	}
	b.follow() // it was quiet for long: nothing is left
	if groups, err := b.reactor.groups(t.Context(), stream); err != nil || len(groups) != 0 {
		t.Fatalf("%d groups are left, %v", len(groups), err)
	}
	if err := late.finish(b); err != nil {
		t.Fatal(err)
	}
	evs, _, err := event.ReadStream(t.Context(), b.db, stream, 2, 10)
	if err != nil || len(evs) != 1 || !evs[0].ReceivedAt.Equal(t0.Add(6*time.Minute+time.Millisecond)) {
		t.Errorf("%+v, %v", evs, err)
	}
}

// TestRulesComeBeforeWhatIsUnread: a reactor that was away and finds other rules
// judges what happened meanwhile when it was received, not when it looks.
func TestRulesComeBeforeWhatIsUnread(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule(notReady)
	b.tell("node.not_ready", "n0")
	b.follow()
	for _, typ := range []string{"node.not_ready", "node.ready"} { // nobody judges
		b.advance(10 * time.Minute)
		b.tell(typ, "n1")
	}
	b.advance(10 * time.Minute)
	b.rule("name: other\non: [x.bad]\ngroup_by: {g: event.subject.name}\n")
	b.follow()
	// All is read: what comes under way when the rules change comes behind them.
	late := appender{lag: 5 * time.Minute}
	if err := late.begin(b, []event.Event{b.fact("x.bad", "n2", nil)}); err != nil {
		t.Fatal(err)
	}
	if err := b.service.DeleteRule(t.Context(), call, "not-ready", 0); err != nil {
		t.Fatal(err)
	}
	b.follow()
	if err := late.finish(b); err != nil {
		t.Fatal(err)
	}
	b.follow()
	want := []string{
		"0s pending not-readymap[g:n0] condition_holds", "1m0s firing not-readymap[g:n0] condition_holds",
		"10m0s pending not-readymap[g:n1] condition_holds", "11m0s firing not-readymap[g:n1] condition_holds", "20m0s resolved not-readymap[g:n1] condition_ended",
		"30m0s resolved not-readymap[g:n0] rule_deleted", "30m0s firing othermap[g:n2] condition_holds",
	}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}

// TestRulesOfAQuietStream: what a stream has yet to judge may be no more than what
// the rules made; a change that comes much later is not put back to that.
func TestRulesOfAQuietStream(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.quiet()
	b.rule("name: each\non: [x.bad]\ngroup_by: {g: event.subject.name}\nresolve_after: 30d\n")
	b.tell("x.bad", "a")
	b.follow()
	b.advance(24 * time.Hour)
	if err := b.service.DeleteRule(t.Context(), call, "each", 0); err != nil {
		t.Fatal(err)
	}
	r := b.another()
	r.Batch = 1
	if err := r.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	want := []string{"0s firing eachmap[g:a] condition_holds", "24h0m0s resolved eachmap[g:a] rule_deleted"}
	if d := cmp.Diff(want, b.told()); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}
