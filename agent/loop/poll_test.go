package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

func TestDuplicateDoorbells(t *testing.T) {
	for _, when := range []string{"at once", "while running", "after the end"} {
		t.Run(when, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				running, release := make(chan struct{}), make(chan struct{})
				b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
					close(running)
					<-release
					return b.exec.effect(ctx, task)
				}
				op := b.plane.add("dup", time.Hour, drainPlan()...)
				ten := func() {
					for range 10 {
						b.plane.queue.send(doorbell(protocol.KindOperation, op, b.plane.cluster, 0))
					}
				}
				ten()
				b.start()
				<-running
				if when == "while running" {
					ten()
					b.plane.wait(t, 10*time.Second, "the copies deleted", func() bool { return b.plane.queue.left() == 0 })
				}
				close(release)
				s := b.plane.ended(t, op, 10*time.Second)
				if when == "after the end" {
					ten()
				}
				b.plane.wait(t, time.Minute, "the copies deleted", func() bool { return b.plane.queue.left() == 0 })
				if s = b.plane.state(op); s.Phase != operation.Succeeded || s.Generation != 1 || len(b.world.issued()) != 2 {
					t.Errorf("ended %s, generation %d, effects %v", s.Phase, s.Generation, b.world.issued())
				}
			})
		})
	}
}

func doorbell(kind, op, cluster string, generation int64) []byte {
	body, _ := json.Marshal(protocol.Doorbell{Version: protocol.Version, Kind: kind, Operation: op, Cluster: cluster, Generation: generation})
	return body
}

func TestBadDoorbells(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		op := b.plane.add("good", time.Hour, drainPlan()...)
		good := string(doorbell(protocol.KindOperation, op, b.plane.cluster, 0))
		bad := []string{
			``, `{`, `null`, `[]`, `"x"`, good + good, good[:len(good)-1] + `,"more":1}`,
			string(doorbell("unheard of", op, b.plane.cluster, 0)),
			string(doorbell(protocol.KindOperation, op, id.Derive(id.Cluster, "another"), 0)),
			string(doorbell(protocol.KindOperation, "../../etc/passwd", b.plane.cluster, 0)),
			string(doorbell(protocol.KindOperation, op, b.plane.cluster, -1)),
			string(doorbell(protocol.KindPreview, "", b.plane.cluster, 0)),
			`{"version":2,"kind":"operation","operation":"` + op + `","cluster":"` + b.plane.cluster + `"}`,
		}
		for _, m := range bad {
			b.plane.queue.send([]byte(m))
		}
		b.plane.queue.send(doorbell(protocol.KindAttention, op, b.plane.cluster, 0)) // not held: deleted
		b.plane.queue.send(doorbell(protocol.KindOperation, id.Derive(id.Operation, "unknown"), b.plane.cluster, 0))
		b.plane.queue.send([]byte(good))
		b.start()
		if s := b.plane.ended(t, op, 10*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
		b.plane.wait(t, 10*time.Second, "an empty queue", func() bool { return b.plane.queue.left() == 0 })
		if n := len(b.plane.buried); n != len(bad) {
			t.Errorf("%d buried, want %d: %q", n, len(bad), b.plane.buried)
		}
		if n := b.agent.Metrics().BadDoorbells.Load(); n != int64(len(bad)) {
			t.Errorf("%d counted", n)
		}
	})
}

// A claim that must wait leaves its doorbell; at its last delivery it is deleted
// rather than made a dead letter, for sweep rings again.
func TestClaimRetryLeavesTheDoorbell(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		op := b.plane.add("later", time.Hour, drainPlan()...)
		b.plane.locked(func() { b.plane.ops[op].State.Phase = operation.Pending })
		b.plane.ring(op, protocol.KindOperation)
		b.start()
		b.plane.wait(t, 10*time.Second, "three deliveries", func() bool {
			b.plane.queue.mu.Lock()
			defer b.plane.queue.mu.Unlock()
			return b.plane.queue.items[0].receives == 3
		})
		b.plane.locked(func() { b.plane.ops[op].State.Phase = operation.Dispatched })
		if s := b.plane.ended(t, op, 10*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("ended %s", s.Phase)
		}
		stuck := b.plane.add("stuck", time.Hour, drainPlan()...)
		b.plane.locked(func() { b.plane.ops[stuck].State.Phase = operation.Pending })
		b.plane.ring(stuck, protocol.KindOperation)
		b.plane.wait(t, time.Minute, "the doorbell deleted", func() bool { return b.plane.queue.left() == 0 })
	})
}

func TestManyInParallel(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		const n = 200
		b.cfg.Concurrency = 50
		most, now := 0, 0
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			b.world.mu.Lock()
			now++
			most = max(most, now)
			b.world.mu.Unlock()
			<-time.After(300 * time.Millisecond)
			b.world.mu.Lock()
			now--
			b.world.mu.Unlock()
			return b.exec.effect(ctx, task)
		}
		var ops []string
		for i := range n {
			ops = append(ops, b.plane.submit(fmt.Sprint("many", i), time.Hour, drainPlan()...))
		}
		b.start()
		for _, op := range ops {
			if s := b.plane.ended(t, op, 2*time.Minute); s.Phase != operation.Succeeded || s.Generation != 1 {
				t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
			}
		}
		if len(b.world.issued()) != 2*n || most > 50 || most < 40 {
			t.Errorf("%d effects, %d at once", len(b.world.issued()), most)
		}
		b.plane.mu.Lock()
		defer b.plane.mu.Unlock()
		if c, r := b.plane.calls["/v1/agent/claims"], b.plane.calls["/v1/agent/reports"]; c > n/2 || r > 3*n*2/3 {
			t.Errorf("%d claim calls and %d report calls for %d operations", c, r, n)
		}
	})
}

// Nothing is received while the plane does not answer, nor without a free slot.
func TestTakesNoMoreThanItCan(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.cfg.Concurrency = 1
		release := make(chan struct{})
		b.exec.execute["preflight"] = func(context.Context, *executor.Task) executor.Outcome {
			<-release
			return executor.Done("")
		}
		first := b.plane.submit("first", time.Hour, drainPlan()...)
		b.start()
		b.plane.wait(t, time.Second, "the first running", func() bool { return b.plane.ops[first].State.Phase == operation.Running })
		second := b.plane.submit("second", time.Hour, drainPlan()...)
		time.Sleep(5 * time.Second)
		if n := b.agent.Metrics().Doorbells.Load(); n != 1 {
			t.Errorf("%d doorbells taken with one slot", n)
		}
		close(release)
		b.plane.ended(t, second, 20*time.Second)
	})
}
