package react

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/record"
)

// randomRule draws a rule of the reference evaluator's kind.
func randomRule(t *rapid.T) alert.Rule {
	span := func(name string) alert.Duration {
		return alert.Duration(time.Duration(rapid.IntRange(1, 20).Draw(t, name)) * 30 * time.Second)
	}
	maybe := func(name string) bool { return rapid.Bool().Draw(t, name) }
	r := alert.Rule{Name: "model", On: []string{"x.match"}, GroupBy: map[string]string{"g": "event.subject.name"}}
	switch rapid.IntRange(0, 3).Draw(t, "condition") {
	case 0:
		r.Count, r.Window = rapid.IntRange(1, 4).Draw(t, "count"), span("window")
	case 1:
		r.Count, r.Window, r.Distinct = rapid.IntRange(1, 3).Draw(t, "count"), span("window"), "string(event.detail.V)"
	case 2:
		r.Absence = &alert.Absence{Expect: alert.Clause{On: []string{"x.expect"}}, Within: span("within")}
	}
	if r.Absence == nil && maybe("while") {
		r.While = &alert.While{Begin: alert.Clause{On: []string{"x.begin"}}, End: alert.Clause{On: []string{"x.end"}}, Each: "string(event.detail.V)"}
	}
	if maybe("for") {
		r.For = span("for")
	}
	if maybe("resolve_when") {
		r.ResolveWhen = &alert.Clause{On: []string{"x.*"}, When: `event.type == "x.resolve"`}
	}
	if maybe("resolve_after") {
		r.ResolveAfter = span("resolve_after")
	}
	if maybe("keep") {
		r.KeepFiringFor = span("keep")
	}
	if maybe("flap") {
		r.Flap = &alert.Flap{Changes: rapid.IntRange(2, 4).Draw(t, "changes"), Window: span("flap window")}
	}
	return r
}

// over is the rule that inhibits the model's.
func over() alert.Rule {
	return alert.Rule{Name: "over", On: []string{"x.over"}, GroupBy: map[string]string{"g": "event.subject.name"},
		ResolveWhen: &alert.Clause{On: []string{"x.under"}}}
}

// randomEvent draws an event that was received now; when it happened is wrong in
// every way that there is.
func (b *bench) randomEvent(t *rapid.T) event.Event {
	typ := "x." + rapid.SampledFrom([]string{"match", "match", "match", "resolve", "expect", "begin", "end", "over", "over", "under"}).Draw(t, "type")
	e := b.fact(typ, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group"), nil)
	detail := map[string]any{"V": rapid.SampledFrom([]any{"1", "2", "3", 3, nil, "none"}).Draw(t, "v")}
	if detail["V"] == "none" {
		delete(detail, "V")
	}
	e.Detail, _ = json.Marshal(detail)
	off := rapid.SampledFrom([]time.Duration{0, 0, 0, -time.Second, -time.Minute, -4 * time.Minute, -5 * time.Minute, -time.Hour, time.Hour}).Draw(t, "late")
	e.Timestamp = e.Timestamp.Add(off)
	return e
}

// modelTold reads what the stream tells, by group.
func (b *bench) modelTold() map[string][]string {
	out := map[string][]string{}
	for _, l := range b.told() {
		at, rest, _ := strings.Cut(l, " ")
		if strings.Contains(l, " overmap[") {
			continue // of what inhibits
		}
		kind, rest, _ := strings.Cut(rest, " ")
		group, why, _ := strings.Cut(strings.TrimPrefix(rest, "modelmap[g:"), "] ")
		out[group] = append(out[group], at+" "+kind+" "+why)
	}
	return out
}

// TestModel: whatever happens to two reactors over one stream - events late and
// early, calls that fail or whose answer is lost, processes that end, both at once,
// rules and silences that change while events are unread - what is told is what the
// reference evaluator makes of the whole history.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := setup(t)
		defer b.close()
		b.model(rt)
	})
}

func (b *bench) model(rt *rapid.T) {
	b.quiet()
	rule := randomRule(rt)
	if _, err := b.service.CreateRule(context.Background(), call, rule); err != nil {
		rt.Fatalf("%v: %+v", err, rule)
	}
	seed := rapid.Uint64().Draw(rt, "seed")
	flaky := func(n uint64) *Reactor {
		r := b.another()
		r.Batch = rapid.IntRange(1, 5).Draw(rt, "batch")
		l := &faulty{Ledger: b.db, rand: rand.New(rand.NewPCG(seed, n)), chance: 0.05}
		r.Store = &record.Store{Ledger: l, Now: b.clock, Timing: b.store.Timing}
		return r
	}
	reactors := []*Reactor{flaky(0), flaky(1)}
	ctx := context.Background()
	b.put(b.randomEvent(rt))
	b.follow() // from here on it is judged
	cuts := []cut{{next: 1, rule: &rule}}
	for i := range rapid.IntRange(1, 40).Draw(rt, "steps") {
		switch rapid.IntRange(0, 8).Draw(rt, "step") {
		case 8:
			// Not at the time of any event or timer: what comes first then is another test's.
			off := time.Duration(i+1) * time.Millisecond
			b.advance(off)
			cuts = append(cuts, b.change(rt, cuts[len(cuts)-1]))
			for n := range reactors {
				reactors[n] = flaky(uint64(i*2+n) + 100)
				_ = reactors[n].Follow(ctx, stream)
			}
			b.reactor = b.another()
			b.follow()
			b.advance(15*time.Second - off)
		case 0, 1, 2:
			evs := make([]event.Event, rapid.IntRange(1, 3).Draw(rt, "events"))
			for j := range evs {
				evs[j] = b.randomEvent(rt)
			}
			b.put(evs...)
		case 3:
			b.advance(time.Duration(rapid.IntRange(1, 40).Draw(rt, "wait")) * 15 * time.Second)
		case 4:
			n := rapid.IntRange(0, 1).Draw(rt, "restart")
			reactors[n] = flaky(uint64(i) + 2)
		case 5:
			var wg sync.WaitGroup
			for _, r := range reactors {
				wg.Go(func() { _ = r.Follow(ctx, stream) })
			}
			wg.Wait()
		default:
			_ = reactors[rapid.IntRange(0, 1).Draw(rt, "who")].Follow(ctx, stream) // it may fail
		}
	}
	b.advance(time.Duration(rapid.IntRange(0, 200).Draw(rt, "last")) * 15 * time.Second)
	b.follow()
	evs, _, err := event.ReadStream(ctx, b.db, stream, 1, 10_000)
	if err != nil {
		rt.Fatal(err)
	}
	if d := cmp.Diff(changing(cuts, evs, b.clock()), b.modelTold()); d != "" {
		rt.Fatalf("rules and silences %s\ntold (-reference +reactor):\n%s", tellCuts(cuts), d)
	}
}
