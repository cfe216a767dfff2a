package loop

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestHandOver: a step that another agent should go on with gives the lease back,
// nothing having gone wrong, and this agent leaves the operation to the others
// for a while. When nobody took it, it goes on itself.
func TestHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		var handed, again time.Time
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			if task.Assignment.Generation == 1 {
				handed = time.Now()
				return executor.HandBack("own_node", "the agent's own pod is the last one on the node")
			}
			again = time.Now()
			return b.exec.effect(ctx, task)
		}
		b.start()
		op := b.plane.submit("own", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 5*time.Minute)
		if s.Phase != operation.Succeeded || s.Generation != 2 {
			t.Fatalf("ended %s, generation %d", s.Phase, s.Generation)
		}
		if waited := again.Sub(handed); waited < executor.HandBackFor || waited > executor.HandBackFor+time.Minute {
			t.Errorf("taken up again after %s", waited)
		}
		if diff := cmp.Diff([]string{"cordon/1", "evict/2"}, b.world.issued()); diff != "" {
			t.Error(diff)
		}
		if s.Assignments[0].Ended != "handed_back" {
			t.Errorf("the first assignment ended %q", s.Assignments[0].Ended)
		}
	})
}

// TestBlockersKeepTheirTime: what stands in the way is shown with the time since
// when, which another detail does not move.
func TestBlockersKeepTheirTime(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		pdb := func(detail string) protocol.Blocker {
			return protocol.Blocker{Code: "pdb", Resource: "pod/a/web-0", Rule: "pdb/a/web", Detail: detail}
		}
		var first time.Time
		b.exec.execute["evict"] = func(ctx context.Context, task *executor.Task) executor.Outcome {
			first = time.Now().UTC()
			task.Progress(0, 2, "pods", "evicting")
			task.Blocked([]protocol.Blocker{pdb("allows 0, token=opt_abcdefgh")})
			pause(ctx, 30*time.Second)
			task.Blocked([]protocol.Blocker{pdb("still allows 0"), {Code: "finalizer", Resource: "pod/a/b"}})
			pause(ctx, 30*time.Second)
			p := b.plane.state(task.Assignment.Operation).Progress
			if p == nil || p.Total != 2 || len(p.Blockers) != 2 {
				t.Fatalf("progress %+v", p)
			}
			for i, since := range []time.Time{first, first.Add(30 * time.Second)} {
				if p.Blockers[i].Since == nil || !p.Blockers[i].Since.Equal(since) {
					t.Errorf("blocker %d since %v, want %s", i, p.Blockers[i].Since, since)
				}
			}
			task.Blocked(make([]protocol.Blocker, 50))
			pause(ctx, 30*time.Second)
			if n := len(b.plane.state(task.Assignment.Operation).Progress.Blockers); n != operation.MaxProgressBlockers {
				t.Errorf("%d blockers are shown", n)
			}
			task.Blocked(nil)
			return b.exec.effect(ctx, task)
		}
		b.start()
		op := b.plane.submit("blocked", time.Hour, drainPlan()...)
		s := b.plane.ended(t, op, 5*time.Minute)
		if s.Phase != operation.Succeeded || s.Progress == nil || len(s.Progress.Blockers) > 0 {
			t.Fatalf("ended %s, progress %+v", s.Phase, s.Progress)
		}
		if i := slices.IndexFunc(s.Steps, func(st operation.StepState) bool { return st.Progress != nil && len(st.Progress.Blockers) > 0 }); i >= 0 {
			t.Errorf("step %d keeps blockers of its own", i)
		}
	})
}
