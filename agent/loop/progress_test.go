package loop

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// What refuses a pod throughout has done so since the first refusal, though nothing
// stands in the way while the pod is asked for again.
func TestSinceOutlastsARetry(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 3, 4, 5, 25, 14, 0, time.UTC)
	refused := protocol.Blocker{Code: "eviction_refused", Resource: "pod/ns/web", Rule: "policy/no-mondays", Detail: "no"}
	reworded := refused
	reworded.Detail = "not on a Monday"
	other := refused
	other.Rule = "webhook/guard"
	for name, tt := range map[string]struct {
		looks []protocol.Blocker // one a look; of no code: nothing stood in the way
		every time.Duration
		since time.Duration // of the last one, from the first look
	}{
		"throughout":               {[]protocol.Blocker{refused, refused, refused}, time.Hour, 0},
		"asked again and again":    {[]protocol.Blocker{refused, {}, refused, {}, refused}, 4 * time.Second, 0},
		"in other words":           {[]protocol.Blocker{refused, {}, reworded}, 4 * time.Second, 0},
		"after the longest pause":  {[]protocol.Blocker{refused, {}, refused}, standsAgainWithin, 0},
		"anew, after it was gone":  {[]protocol.Blocker{refused, {}, refused}, standsAgainWithin + time.Second, 2 * (standsAgainWithin + time.Second)},
		"by another rule":          {[]protocol.Blocker{refused, {}, other}, 4 * time.Second, 8 * time.Second},
		"beside another, no more":  {[]protocol.Blocker{refused, other, {}, refused}, 10 * time.Second, 0},
		"not since another's time": {[]protocol.Blocker{other, refused}, 10 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o obstacles
			var told []protocol.Blocker
			for i, b := range tt.looks {
				var now []protocol.Blocker
				if b.Code != "" {
					now = append(now, b)
				}
				told = o.now(begun.Add(time.Duration(i)*tt.every), now)
			}
			if want := begun.Add(tt.since); len(told) != 1 || told[0].Since == nil || !told[0].Since.Equal(want) {
				t.Errorf("told %+v, not since %s", told, want)
			}
		})
	}
}

// An executor that knows since when something stands in the way is believed, as the
// blocker's own words name that time, but for what no clock can have seen. What a preflight
// only foresaw, as a finalizer of a pod that is not told to stop yet, stood in no way then.
func TestSinceIsTheExecutors(t *testing.T) {
	t.Parallel()
	shown := time.Date(2026, 3, 4, 8, 43, 34, 0, time.UTC)
	const every = 10 * time.Second
	for name, tt := range map[string]struct {
		said  []time.Duration // at each look, from the first one; never: nothing is said
		since time.Duration   // of the last one, from the first look
	}{
		"nothing is said":             {[]time.Duration{never}, 0},
		"before it was shown":         {[]time.Duration{-6 * time.Second}, -6 * time.Second},
		"after it was shown":          {[]time.Duration{0, 5 * time.Second}, 0},
		"later of the same trouble":   {[]time.Duration{-6 * time.Second, 4 * time.Second}, -6 * time.Second},
		"no more":                     {[]time.Duration{-6 * time.Second, never}, -6 * time.Second},
		"it is learned":               {[]time.Duration{never, -time.Minute}, -time.Minute},
		"it was foreseen":             {[]time.Duration{never, 7 * time.Second}, 7 * time.Second},
		"it was foreseen, and stays":  {[]time.Duration{never, 7 * time.Second, never, 28 * time.Second}, 7 * time.Second},
		"foreseen, and ahead of us":   {[]time.Duration{never, 12 * time.Second}, 0},
		"weeks ago":                   {[]time.Duration{-40 * 24 * time.Hour}, -40 * 24 * time.Hour},
		"in the future":               {[]time.Duration{time.Hour}, 0},
		"in the future, still":        {[]time.Duration{time.Hour, time.Hour}, 0},
		"longer than can be":          {[]time.Duration{-sinceMost - time.Second}, 0},
		"longer than can be, at last": {[]time.Duration{-6 * time.Second, -2 * sinceMost}, -6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o obstacles
			var told []protocol.Blocker
			for i, said := range tt.said {
				b := protocol.Blocker{Code: codeSilent, Resource: "cluster", Rule: "api_server"}
				if said != never {
					since := shown.Add(said).In(time.FixedZone("there", 3600))
					b.Since = &since
				}
				told = o.now(shown.Add(time.Duration(i)*every), []protocol.Blocker{b})
			}
			if want := shown.Add(tt.since); len(told) != 1 || told[0].Since == nil || !told[0].Since.Equal(want) || told[0].Since.Location() != time.UTC {
				t.Errorf("told %+v, not since %s", told, want)
			}
		})
	}
	var o obstacles
	b := protocol.Blocker{Code: codeSilent, Since: &time.Time{}} // a duration cannot reach it
	if told := o.now(shown, []protocol.Blocker{b}); !told[0].Since.Equal(shown) {
		t.Errorf("of no time told since %s", told[0].Since)
	}
}

const never = time.Duration(math.MaxInt64)

// A drain of many pods does not remember all that ever stood in its way.
func TestObstaclesAreForgotten(t *testing.T) {
	t.Parallel()
	var o obstacles
	at := time.Now()
	for look := range 5 {
		many := make([]protocol.Blocker, operation.MaxProgressBlockers+10)
		for i := range many {
			many[i] = protocol.Blocker{Code: "pdb", Resource: fmt.Sprintf("pod/ns/%d-%d", look, i)}
		}
		if told := o.now(at, many); len(told) != operation.MaxProgressBlockers {
			t.Errorf("%d blockers are told", len(told))
		}
		at = at.Add(standsAgainWithin + time.Second)
	}
	if len(o) > 2*operation.MaxProgressBlockers {
		t.Errorf("%d are remembered", len(o))
	}
}

// TestProgressNamesTheStepThatRuns: also of steps that tell no progress, and not the
// numbers and blockers of the one before. Of a step with an effect it is shown before
// anything is touched.
func TestProgressNamesTheStepThatRuns(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		for _, name := range []string{"preflight", "cordon", "evict", "confirm"} {
			b.exec.execute[name] = func(ctx context.Context, task *executor.Task) executor.Outcome {
				if !task.Step.Effect { // what nothing waits for comes with the next word to the plane
					pause(ctx, 30*time.Second)
				}
				p := b.plane.state(task.Assignment.Operation).Progress
				if p == nil || p.Step != name || p.Total != 0 || len(p.Blockers) > 0 {
					t.Errorf("while %s runs, progress is %+v", name, p)
				}
				task.Progress(1, 2, "pods", "of "+name)
				task.Blocked([]protocol.Blocker{{Code: "pdb", Resource: "pod/a/" + name}})
				pause(ctx, 30*time.Second)
				if p = b.plane.state(task.Assignment.Operation).Progress; p == nil || p.Step != name || p.Total != 2 || len(p.Blockers) != 1 {
					t.Errorf("when %s has told, progress is %+v", name, p)
				}
				return b.exec.effect(ctx, task)
			}
		}
		b.start()
		op := b.plane.submit("named", time.Hour, drainPlan()...)
		if s := b.plane.ended(t, op, 30*time.Minute); s.Phase != operation.Succeeded {
			t.Fatalf("ended %s: %+v", s.Phase, s.Result)
		}
	})
}

// TestSinceByAClockThatIsWrong: what stands in the way does so since then by the plane's
// clock, which tells the deadline, whatever the agent's is set to.
func TestSinceByAClockThatIsWrong(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 5 * time.Minute, "behind": -5 * time.Minute, "a little ahead": clockFar - time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.cfg.Now = func() time.Time { return time.Now().Add(off) }
				b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					want := time.Now()
					if off.Abs() < clockFar {
						want = want.Add(off)
					}
					task.Blocked([]protocol.Blocker{{Code: "pdb", Resource: "pod/a/b"}})
					pause(ctx, 30*time.Second)
					p := b.plane.state(task.Assignment.Operation).Progress
					if p == nil || len(p.Blockers) != 1 || p.Blockers[0].Since == nil || p.Blockers[0].Since.Sub(want).Abs() > time.Second {
						t.Errorf("shown %+v, want since %s", p, want)
					}
					return b.exec.effect(ctx, task)
				}
				b.start()
				op := b.plane.submit("since", time.Hour, drainPlan()...)
				if s := b.plane.ended(t, op, 30*time.Minute); s.Phase != operation.Succeeded {
					t.Fatalf("ended %s: %+v", s.Phase, s.Result)
				}
			})
		})
	}
}
