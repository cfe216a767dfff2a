package sim

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// endless is a fence that never says no: what is left is the world's own.
func endless(ctx context.Context) (context.Context, context.CancelFunc, error) {
	return ctx, func() {}, nil
}

// paused opens a second holder of the folder that stops at a point of its first
// effect until it is let go.
func paused(t *testing.T, dir, at string) (r *rig, reached, release chan struct{}) {
	reached, release = make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	r = openWith(t, Options{Scenario: "zoo", StateDir: dir, Pause: func(point string, _ *executor.Task) {
		if point == at && once.CompareAndSwap(false, true) {
			close(reached)
			<-release
		}
	}})
	return r, reached, release
}

// TestPausedHolder stops the first holder around its fence while a second one
// finishes the operation, and lets it go on: with a fence that has run out, with
// a call whose time has run out, and with neither, so that the world itself has
// to refuse.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	types := []struct{ typ, target, step, payload, what string }{
		{"node.cordon", "node:plain", "cordon", `{}`, DidCordon},
		{"node.uncordon", "node:cordoned-before", "uncordon", `{"take_over":true}`, DidUncordon},
		{"node.drain", "node:plain", "evict", `{}`, DidEvict},
		{"device.reset", "device:gpus/0000:18:00.0", "reset", `{}`, DidReset},
		{"deployment.roll", "deployment:zoo/fine", "restart", `{}`, DidRestart},
		{"component.upgrade", "cluster:zoo", "upgrade", `{"component":"operator","version":"v1.2.3"}`, DidUpgrade},
	}
	for _, fence := range []string{"over", "late", "none"} {
		for _, at := range []string{BeforeFence, AfterFence} {
			for _, tc := range types {
				t.Run(strings.Join([]string{tc.typ, at, fence}, "/"), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						dir := t.TempDir()
						first, reached, release := paused(t, dir, at)
						second := open(t, "zoo", dir)
						j := newJob("op_paused", tc.typ, tc.target, "", tc.payload)
						var over atomic.Bool
						switch fence {
						case "none":
							j.fence = endless
						case "over":
							j.fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
								if over.Load() {
									return ctx, func() {}, executor.ErrFenced
								}
								return ctx, func() {}, nil
							}
						case "late":
							j.fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
								c, cancel := context.WithTimeout(ctx, time.Millisecond)
								return c, cancel, nil
							}
						}
						heir := j.generation(2)
						heir.fence = endless
						if tc.step == "evict" { // the paused one is not about the cordon
							c := newJob("op_paused", tc.typ, tc.target, "", tc.payload)
							if o := second.Execute(t.Context(), c.task("cordon")); o.Class != operation.OutcomeDone {
								t.Fatal(o)
							}
						}
						result := make(chan executor.Outcome)
						go func() { result <- first.Execute(t.Context(), j.task(tc.step)) }()
						<-reached
						if step, o := second.takeOver(t.Context(), heir); step != "" {
							t.Fatalf("the heir ended at %s with %+v", step, o)
						}
						over.Store(true)
						time.Sleep(2 * time.Millisecond) // a late call's time has run out
						close(release)
						o := <-result
						for _, e := range second.effects(t) { // and nothing happened twice
							if e.Accepted && e.Generation == 1 && e.What == tc.what {
								t.Errorf("the paused holder's effect was accepted: %+v", e)
							}
						}
						fenced := at == BeforeFence && fence == "over" || at == AfterFence && fence == "late"
						if fenced && o.ErrorCode != "fenced" && o.ErrorCode != "interrupted" {
							t.Errorf("the paused holder ended with %+v", o)
						}
					})
				})
			}
		}
	}
}

// TestOlderGenerationIsRefused: the annotation on the node, the mark on the host.
func TestOlderGenerationIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		two := newJob("op_g", "node.cordon", "node:plain", "", `{}`)
		two.Generation, two.fence = 2, endless
		if o := r.Execute(t.Context(), two.task("cordon")); o.Class != operation.OutcomeDone {
			t.Fatal(o)
		}
		if err := r.Mutate(func(w *World) { // a person lifts it: the cordon is wanted again
			for _, n := range w.Nodes {
				if n.Name == "plain" {
					n.Schedulable, n.Cordon = true, nil
					n.Mark.Run = 2
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if o := r.Execute(t.Context(), two.generation(1).task("cordon")); o.ErrorCode != "fenced" {
			t.Fatalf("generation 1 after 2: %+v", o)
		}
		effects := r.effects(t)
		last := effects[len(effects)-1]
		if last.Accepted || last.Category != "refused" || !strings.Contains(last.Why, "generation 2 of op_g is newer") {
			t.Fatalf("recorded as %+v", last)
		}

		d := r.gpu(t, "gpus", 0)
		reset := newJob("op_r", "device.reset", "device:"+d.UID, d.UID, `{}`)
		reset.Generation = 2
		if step, o := r.run(t.Context(), reset); step != "" {
			t.Fatal(step, o)
		}
		if o := r.Execute(t.Context(), reset.generation(1).task("reset")); o.ErrorCode != "fenced" {
			t.Fatalf("generation 1 of the reset after 2: %+v", o)
		}
		if o := r.Execute(t.Context(), reset.generation(3).task("reset")); o.Class != operation.OutcomeDone {
			t.Fatalf("generation 3 of the reset finds it done: %+v", o)
		}
		if n := accepted(r.effects(t), DidReset); n != 1 {
			t.Fatalf("%d resets", n)
		}
	})
}

func TestEvictionIsHarmlessWhenRepeated(t *testing.T) {
	t.Parallel()
	r := open(t, "zoo", t.TempDir())
	var pod Pod
	if err := r.View(func(w *World) {
		for _, p := range w.Pods {
			if p.Key() == "zoo/slow-0" {
				pod = *p
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	j := newJob("op_e", "node.drain", "node:slow-pod", "", `{}`)
	for i, want := range []string{"ok", "already", "already"} {
		if i == 2 {
			if err := r.Mutate(func(w *World) { delete(w.Pods, pod.UID) }); err != nil {
				t.Fatal(err)
			}
		}
		rep, stop := r.removePod(t.Context(), j.task("evict"), DidEvict, &pod, -1, nil)
		if stop != nil || rep.category != want {
			t.Fatalf("eviction %d: %+v, %+v", i, rep, stop)
		}
	}
	if n := accepted(r.effects(t), DidEvict); n != 1 {
		t.Fatalf("%d evictions accepted", n)
	}
}

func TestCheckOnceSees(t *testing.T) {
	t.Parallel()
	a := Effect{Seq: 1, Operation: "op", Run: 1, Step: "reset", What: DidReset, Resource: "device/x", Accepted: true, Generation: 1}
	b := a
	b.Seq, b.Generation = 2, 2
	if CheckOnce([]Effect{a, b}) == nil {
		t.Error("a doubled effect was not seen")
	}
	b.Run = 2
	if err := CheckOnce([]Effect{a, b}); err != nil {
		t.Errorf("a retry is no double: %v", err)
	}
}
