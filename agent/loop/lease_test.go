package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// lapse is longer than a lease and a call deadline.
const lapse = testLease + testCall + 2*time.Second

func TestLeaseIsCountedFromTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		now := time.Duration(0)
		l, held, work := newLease(context.Background(), func() time.Duration { return now }, -5*time.Second, 15_000, 60_000, 10_000)
		defer l.release()
		ctx, cancel, err := l.fence(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		end, _ := ctx.Deadline()
		cancel()
		if left := time.Until(end); left != 9500*time.Millisecond { // 15 s - 5 s - the margin
			t.Errorf("a call may take %s", left)
		}
		now = 9500 * time.Millisecond
		if _, _, err := l.fence(context.Background()); !errors.Is(err, executor.ErrFenced) {
			t.Errorf("fence past the lease: %v", err)
		}
		if !errors.Is(context.Cause(work), errLeaseOver) || held.Err() != nil {
			t.Errorf("work %v, held %v", context.Cause(work), held.Err())
		}
		l.renew(now, 15_000, 60_000)
		if _, _, err := l.fence(context.Background()); !errors.Is(err, executor.ErrFenced) {
			t.Error("a lease that was over came back")
		}
		now = 20 * time.Second // the lease and one call
		if _ = l.check(); !errors.Is(context.Cause(held), errLeaseOver) {
			t.Error("telling goes on past the call deadline")
		}
	})
}

// The agent's process is stopped in the step, before it looks at the fence: the
// plane gives the operation to another generation, and nothing is issued by the
// old one.
func TestStoppedBeforeTheCheck(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["cordon"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if task.Assignment.Generation == 1 {
				b.jump.Add(int64(lapse)) // it wakes up long after
			}
			return b.exec.effect(ctx, task)
		}
		b.start()
		op := b.plane.submit("before", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 2*time.Minute)
		if s.Phase != operation.Succeeded || s.Generation < 2 {
			t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
		}
		for _, e := range b.world.issued() {
			if strings.HasSuffix(e, "/1") {
				t.Errorf("effect %s under a lease that was over", e)
			}
		}
		if b.agent.Metrics().Fenced.Load() == 0 {
			t.Error("the fence was not asked")
		}
	})
}

// It is stopped after the check: the call goes out late, and the other side
// refuses the older generation.
func TestStoppedAfterTheCheck(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		other, late := make(chan struct{}), make(chan struct{})
		b.exec.execute["cordon"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if task.Assignment.Generation > 1 {
				close(other)
				return b.exec.effect(ctx, task)
			}
			if _, cancel, err := task.Fence(ctx); err != nil {
				return executor.Outcome{Class: operation.OutcomeTransient}
			} else {
				defer cancel()
			}
			b.plane.locked(func() { // meanwhile the plane counts its lease out
				o := b.plane.ops[task.Assignment.Operation]
				o.State.Lease.Until = time.Now().Add(-time.Minute)
			})
			defer close(late)
			<-other
			// Wait for the successor's effect to land, then let the late call go.
			b.plane.wait(t, 10*time.Second, "the successor's effect", func() bool { return b.world.count("cordon/2") == 1 })
			if b.world.issue(task.Assignment.Operation, "cordon", 1) {
				b.exec.broken("the world took an older generation")
			}
			if _, _, err := task.Fence(context.Background()); err == nil {
				b.exec.broken("the old generation got through the fence once more")
			}
			return executor.Outcome{Class: operation.OutcomePermanent, ErrorCode: "stale"}
		}
		b.start()
		op := b.plane.submit("after", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 2*time.Minute)
		<-late
		if s.Phase != operation.Succeeded || b.world.refused != 1 {
			t.Fatalf("ended %s, %d refused", s.Phase, b.world.refused)
		}
	})
}

// Another agent takes the operation: the renewal says so and the step is cut.
func TestLeaseLostInAStep(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		cut := make(chan time.Time, 1)
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			b.plane.locked(func() {
				o := b.plane.ops[task.Assignment.Operation]
				_ = b.plane.apply(o, operation.LoseLease{})
				_ = b.plane.apply(o, operation.Claim{Agent: "another", Boot: "b", Until: time.Now().Add(time.Hour)})
			})
			<-ctx.Done()
			cut <- time.Now()
			return b.exec.effect(context.WithoutCancel(ctx), task)
		}
		b.start()
		began := time.Now()
		op := b.plane.submit("lost", time.Hour, drainPlan()...)
		at := <-cut
		if at.Sub(began) > testLease/3*6/5+time.Second {
			t.Errorf("cut after %s", at.Sub(began))
		}
		b.plane.wait(t, 10*time.Second, "the late report", func() bool {
			es := b.plane.entries[op]
			return es[len(es)-1].Kind == operation.EntryLateReport
		})
		if b.world.count("evict/1") != 0 {
			t.Error("an effect after the lease was lost")
		}
		b.plane.wait(t, time.Minute, "nothing kept", func() bool { return !b.agent.kept.has(op, 1) })
		if s := b.plane.state(op); s.Lease == nil || s.Lease.Agent != "another" {
			t.Errorf("lease %+v", s.Lease)
		}
	})
}

// The plane is away for ten minutes in the middle of a run.
func TestPlaneAway(t *testing.T) {
	for _, tc := range []struct {
		name    string
		restart bool
		stolen  bool
	}{{"claims again", false, false}, {"after a restart", true, false}, {"another took it", false, true}} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					b.plane.locked(func() { b.plane.away = true })
					return b.exec.effect(ctx, task)
				}
				done := func(name string) func(*executor.Task) executor.Finding {
					return func(*executor.Task) executor.Finding {
						for _, e := range b.world.issued() {
							if strings.HasPrefix(e, name+"/") {
								return executor.Finding{Phase: operation.StepSucceeded}
							}
						}
						return executor.Finding{Phase: operation.StepPending}
					}
				}
				b.exec.probe["cordon"], b.exec.probe["evict"] = done("cordon"), done("evict")
				b.start()
				op := b.plane.submit("away", time.Hour, drainPlan()...)
				b.plane.wait(t, time.Minute, "the plane gone", func() bool { return b.plane.away })
				time.Sleep(3 * time.Minute)
				if files, _ := filepath.Glob(filepath.Join(b.cfg.StateDir, "report-*.json")); len(files) != 1 {
					t.Fatalf("kept %v", files)
				}
				received := b.agent.Metrics().Doorbells.Load()
				if tc.restart {
					_ = b.halt()
					b.start()
				}
				time.Sleep(7 * time.Minute)
				if n := b.agent.Metrics().Doorbells.Load(); !tc.restart && n > received {
					t.Errorf("%d doorbells taken while the plane was away", n-received)
				}
				if tc.stolen {
					b.plane.locked(func() {
						o := b.plane.ops[op]
						_ = b.plane.apply(o, operation.Claim{Agent: "another", Boot: "b", Until: time.Now().Add(time.Hour)})
					})
				}
				b.plane.locked(func() { b.plane.away = false })
				b.plane.wait(t, 2*time.Minute, "the late report", func() bool {
					for _, e := range b.plane.entries[op] {
						// By itself, or in the report of the run that a doorbell led to first.
						if e.Kind == operation.EntryLateReport && e.Detail == protocol.FinalSucceeded || e.Reason == "late_report" {
							return true
						}
					}
					return false
				})
				if !tc.stolen {
					s := b.plane.ended(t, op, time.Minute)
					if s.Phase != operation.Succeeded || s.Generation != 2 {
						t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
					}
				}
				b.plane.wait(t, 2*time.Minute, "nothing kept", func() bool { return !b.agent.kept.has(op, 1) })
				if diff := cmp.Diff([]string{"cordon/1", "evict/1"}, b.world.issued()); diff != "" {
					t.Error(diff)
				}
				_ = b.halt()
				if files, _ := os.ReadDir(b.cfg.StateDir); len(files) != 0 {
					t.Errorf("left behind: %v", files)
				}
			})
		})
	}
}

// The plane is away for less than a lease and a call: the report just comes late.
func TestPlaneAwayBriefly(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			b.plane.locked(func() { b.plane.away = true })
			return b.exec.effect(ctx, task)
		}
		b.start()
		op := b.plane.submit("brief", time.Hour, drainPlan()...)
		b.plane.wait(t, time.Minute, "the plane gone", func() bool { return b.plane.away })
		time.Sleep(testLease + testCall/2)
		b.plane.locked(func() { b.plane.away = false })
		s := b.plane.ended(t, op, 10*time.Second)
		if s.Phase != operation.Succeeded || s.Generation != 1 {
			t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
		}
	})
}

// A crash at every report: a new process probes and finishes, and no effect that
// took hold is issued again.
func TestKilledAtEveryBoundary(t *testing.T) {
	for at := 1; at <= 3; at++ {
		for _, applied := range []bool{true, false} {
			t.Run(fmt.Sprintf("report %d applied=%v", at, applied), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *bench) {
					for _, name := range []string{"cordon", "evict"} {
						b.exec.probe[name] = func(*executor.Task) executor.Finding {
							for g := range 5 {
								if b.world.count(fmt.Sprintf("%s/%d", name, g)) > 0 {
									return executor.Finding{Phase: operation.StepSucceeded}
								}
							}
							return executor.Finding{Phase: operation.StepPending}
						}
					}
					// Everything after that report is lost, as if the process had died:
					// its lease runs out unheard.
					b.cfg.StateDir = ""
					b.start()
					op := b.plane.add("killed", time.Hour, drainPlan()...)
					old := b.agent
					b.plane.locked(func() { b.plane.dieAt, b.plane.dieApplied = at, applied })
					b.plane.ring(op, protocol.KindOperation)
					b.plane.wait(t, time.Minute, "the death", func() bool { return b.plane.dead[old.boot] })
					_ = b.halt()
					b.start()
					s := b.plane.ended(t, op, 3*time.Minute)
					if s.Phase != operation.Succeeded {
						t.Fatalf("ended %s", s.Phase)
					}
					for _, name := range []string{"cordon", "evict"} {
						n := 0
						for g := range 5 {
							n += b.world.count(fmt.Sprintf("%s/%d", name, g))
						}
						if n != 1 {
							t.Errorf("%s took effect %d times: %v", name, n, b.world.issued())
						}
					}
				})
			})
		}
	}
}

// Claimed in the deadline's last moment, of which an assignment in milliseconds
// may leave nothing: nothing is issued, and the end is told at once, not left to
// the lease.
func TestClaimedAtTheDeadline(t *testing.T) {
	for _, left := range []time.Duration{time.Microsecond, 999 * time.Microsecond, time.Millisecond, 1500 * time.Microsecond} {
		t.Run(left.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.exec.execute["preflight"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					<-ctx.Done()
					return executor.Outcome{Class: operation.OutcomeTransient, ErrorCode: "stopped", Detail: "stopped"}
				}
				b.start()
				op := b.plane.submit("hair", left, drainPlan()...)
				s := b.plane.ended(t, op, 2*time.Second)
				if s.Phase != operation.TimedOut || len(b.world.issued()) > 0 {
					t.Fatalf("ended %s, issued %v", s.Phase, b.world.issued())
				}
			})
		})
	}
}
