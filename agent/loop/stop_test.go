package loop

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

func TestStopHandsBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		running := make(chan struct{})
		first := true
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if first {
				first = false
				close(running)
				<-task.Cancelled
				return executor.Outcome{Class: operation.OutcomeWaiting, Detail: "two pods left"}
			}
			return b.exec.effect(ctx, task)
		}
		b.exec.probe["cordon"] = func(*executor.Task) executor.Finding { return executor.Finding{Phase: operation.StepSucceeded} }
		b.start()
		op := b.plane.submit("stop", time.Hour, drainPlan()...)
		<-running
		at := time.Now()
		if err := b.halt(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(at); took > time.Second {
			t.Errorf("the stop took %s", took)
		}
		s := b.plane.state(op)
		if s.Phase != operation.Dispatched || s.Lease != nil || s.Assignments[0].Ended != "handed_back" {
			t.Fatalf("%s %+v", s.Phase, s.Assignments)
		}
		if hb := b.plane.beats[len(b.plane.beats)-1]; !hb.Stopping {
			t.Error("the last heartbeat does not say so")
		}
		b.start()
		if s = b.plane.ended(t, op, time.Minute); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
		if diff := cmp.Diff([]string{"cordon/1", "evict/2"}, b.world.issued()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestStopLetsFirmStepsFinish(t *testing.T) {
	for _, tc := range []struct {
		name   string
		takes  time.Duration
		after  operation.Phase
		within time.Duration
	}{
		{"in time", 12 * time.Second, operation.Dispatched, 13 * time.Second},
		{"not in time", time.Hour, operation.Reconciling, 22 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				running := make(chan struct{})
				b.exec.execute["reset"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					close(running)
					select {
					case <-ctx.Done():
						return executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: "cut"}
					case <-time.After(tc.takes):
						return b.exec.effect(ctx, task)
					}
				}
				b.start()
				op := b.plane.submit("firm", 2*time.Hour, step("reset", effect, firm), step("verify", effect))
				<-running
				at := time.Now()
				if err := b.halt(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(at); took > tc.within {
					t.Errorf("the stop took %s", took)
				}
				if s := b.plane.state(op); s.Phase != tc.after || s.Lease != nil {
					t.Errorf("phase %s, lease %+v", s.Phase, s.Lease)
				}
			})
		})
	}
}

// That an agent stops is told when it begins to, once: it may be killed before it
// is through.
func TestStopIsToldAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		running := make(chan struct{})
		b.exec.execute["reset"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			close(running)
			time.Sleep(12 * time.Second) // the bubble's time
			return b.exec.effect(ctx, task)
		}
		b.start()
		b.plane.submit("firm", 2*time.Hour, step("reset", effect, firm))
		<-running
		at := time.Now()
		b.stop()
		b.plane.wait(t, time.Minute, "a heartbeat that says so", func() bool { return b.plane.beats[len(b.plane.beats)-1].Stopping })
		if took := time.Since(at); took > time.Second {
			t.Errorf("told after %s", took)
		}
		var before int
		b.plane.locked(func() { before = len(b.plane.beats) })
		time.Sleep(3 * time.Second)
		b.plane.locked(func() {
			if n := len(b.plane.beats) - before; n > 1 {
				t.Errorf("%d more heartbeats within three seconds", n)
			}
		})
		if err := <-b.done; err != nil {
			t.Error(err)
		}
		b.stop = nil
	})
}

// At a stop with the plane away the end is kept for the next process.
func TestStopWhileThePlaneIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			b.plane.locked(func() { b.plane.away = true })
			return b.exec.effect(ctx, task)
		}
		b.cfg.StopGrace = 5 * time.Second // so that the lease still stands after it
		b.start()
		op := b.plane.submit("away", time.Hour, drainPlan()...)
		b.plane.wait(t, time.Minute, "the plane gone", func() bool { return b.plane.away })
		time.Sleep(2 * time.Second) // the bubble's time: the last steps are done by then
		if err := b.halt(); err != nil {
			t.Fatal(err)
		}
		b.plane.locked(func() { b.plane.away = false })
		b.start()
		s := b.plane.ended(t, op, 5*time.Second) // the old lease still stands: its report counts
		if s.Phase != operation.Succeeded || s.Generation != 1 {
			t.Errorf("ended %s, generation %d", s.Phase, s.Generation)
		}
	})
}

func TestUnauthorizedStops(t *testing.T) {
	for _, when := range []string{"at the start", "later"} {
		t.Run(when, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				deny := func() { b.plane.locked(func() { b.plane.denied = true }) }
				if when == "at the start" {
					deny()
				}
				b.start()
				if when == "later" {
					b.exec.execute["evict"] = func(ctx context.Context, _ *executor.Task) executor.Outcome {
						deny()
						<-ctx.Done()
						return executor.Outcome{Class: operation.OutcomeTransient}
					}
					b.plane.submit("denied", time.Hour, drainPlan()...)
				}
				select {
				case err := <-b.done:
					b.stop = nil
					var denied *UnauthorizedError
					if !errors.As(err, &denied) || denied.Status != http.StatusUnauthorized || denied.Detail != "no such token" {
						t.Errorf("stopped with %v", err)
					}
				case <-time.After(20 * time.Second):
					t.Error("it goes on")
				}
				if len(b.world.issued()) > 1 {
					t.Errorf("effects %v", b.world.issued())
				}
			})
		})
	}
}

// The start of a step that the plane refuses is never executed.
func TestRefusedReport(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status int
	}{{"the call", http.StatusBadRequest}} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.plane.spoil(rule{path: "/v1/agent/reports", times: 1, status: tc.status})
				b.start()
				op := b.plane.submit("refused", time.Hour, drainPlan()...)
				time.Sleep(5 * time.Second)
				if len(b.world.issued()) != 0 {
					t.Errorf("effects %v", b.world.issued())
				}
				s := b.plane.ended(t, op, 2*time.Minute) // by another generation, with a probe
				if s.Phase != operation.Succeeded || s.Generation != 2 {
					t.Errorf("ended %s, generation %d", s.Phase, s.Generation)
				}
			})
		})
	}
}

func TestRunsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.start()
		_ = b.halt()
		if err := b.agent.Run(t.Context()); err == nil {
			t.Error("it ran twice")
		}
	})
}
