package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Whatever ends a call ends the wait for its answer at once, the outbox closed
// before or by it.
func TestLandedEndsWithTheCall(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		closed bool // while the call is under way
		end    func(*outbox)
		landed bool
		told   bool
	}{
		{"acknowledged", false, (*outbox).answered, true, false},
		{"acknowledged, closed", true, (*outbox).answered, true, false},
		{"lease lost", false, func(o *outbox) { o.lost(true) }, false, true},
		{"lease lost, closed", true, func(o *outbox) { o.lost(true) }, false, true},
		{"refused", false, func(o *outbox) { o.shut(errRefused, false) }, false, false},
		{"no answer", false, (*outbox).again, false, false},
		{"no answer, closed", true, (*outbox).again, false, false},
		{"put back, closed", true, (*outbox).requeue, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				o := newOutbox(&protocol.Assignment{}, func() time.Duration { return time.Since(start) }, func() pace { return paceOf(protocol.HeartbeatAnswer{}) }, func(*outbox) {})
				seq := o.add(true, func(d *draft) { d.final = &protocol.Final{} })
				if o.freeze() == nil {
					t.Fatal("nothing to send")
				}
				ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
				defer cancel()
				landed := make(chan bool, 1)
				go func() { landed <- o.landed(ctx, seq) }()
				synctest.Wait()
				if tc.closed {
					o.close(errLeaseOver)
					synctest.Wait()
				}
				select {
				case <-landed:
					t.Fatal("it did not wait for the call")
				default:
				}
				time.Sleep(time.Second)
				tc.end(o)
				if got := <-landed; got != tc.landed || time.Since(start) != time.Second {
					t.Errorf("landed %v after %s", got, time.Since(start))
				}
				if o.wasTold() != tc.told {
					t.Errorf("told %v", o.wasTold())
				}
			})
		})
	}
}

// The final report is answered with a lost lease: the slot is free at once, and
// the report is kept as told.
func TestFinalAnsweredLeaseLost(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.exec.execute["confirm"] = func(_ context.Context, task *executor.Task) executor.Outcome {
			b.plane.locked(func() {
				o := b.plane.ops[task.Assignment.Operation]
				err := errors.Join(b.plane.apply(o, operation.LoseLease{}),
					b.plane.apply(o, operation.Claim{Agent: "another", Boot: "b", Until: time.Now().Add(time.Hour)}))
				if err != nil {
					b.exec.broken(err.Error())
				}
			})
			return executor.Done("")
		}
		b.start()
		op := b.plane.submit("lost", time.Hour, drainPlan()...)
		b.plane.wait(t, time.Minute, "the late report", func() bool {
			es := b.plane.entries[op]
			return es[len(es)-1].Kind == operation.EntryLateReport
		})
		time.Sleep(time.Millisecond)
		m := b.agent.Metrics()
		if b.agent.runs.holds(op) || m.LeasesLost.Load() != 1 || m.Kept.Load() != 1 {
			t.Errorf("held %v, %d leases lost, %d kept", b.agent.runs.holds(op), m.LeasesLost.Load(), m.Kept.Load())
		}
		b.plane.wait(t, 5*time.Second, "nothing kept", func() bool { return !b.agent.kept.has(op, 1) })
	})
}

// TestPace: where renewals come as often as reports, progress alone waits for
// one; anything else leaves at the plane's pace, together with what other
// operations have, and takes the progress along.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		mono := func() time.Duration { return time.Since(start) + 3*time.Second }
		slow := paceOf(protocol.HeartbeatAnswer{ReportMS: 10_000, LeaseMS: 30_000})
		if want := (pace{every: 10 * time.Second, rides: true}); slow != want {
			t.Fatalf("pace %+v, want %+v", slow, want)
		}
		var mu sync.Mutex
		var left []string
		box := func(name string, p pace) *outbox {
			return newOutbox(&protocol.Assignment{Operation: name}, mono, func() pace { return p }, func(*outbox) {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, fmt.Sprint(name, " ", mono()))
			})
		}
		leaves := func(what string, want ...string) {
			mu.Lock()
			defer mu.Unlock()
			if slices.Sort(left); !slices.Equal(left, want) {
				t.Errorf("%s left %v, want %v", what, left, want)
			}
			left = nil
		}
		one, two, quick := box("one", slow), box("two", slow), box("quick", paceOf(protocol.HeartbeatAnswer{LeaseMS: 30_000}))
		one.tell(operation.Progress{Done: 1, Total: 2})
		two.tell(operation.Progress{Done: 1, Total: 2})
		quick.tell(operation.Progress{Done: 1, Total: 2})
		time.Sleep(time.Minute)
		leaves("progress alone", "quick 4s")
		p := one.takeProgress()
		if p == nil || p.Done != 1 || one.takeProgress() != nil {
			t.Fatalf("a renewal took %v", p)
		}
		if one.untold(p); one.takeProgress() != p {
			t.Error("progress that no renewal took is lost")
		}
		one.note(protocol.Note{Code: "x"})
		time.Sleep(2 * time.Second)
		two.note(protocol.Note{Code: "x"})
		time.Sleep(time.Minute)
		leaves("notes", "one 1m10s", "two 1m10s")
		two.mu.Lock()
		defer two.mu.Unlock()
		if two.draft.progress == nil {
			t.Error("its progress does not go along")
		}
	})
}
