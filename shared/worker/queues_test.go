package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// oneFails makes every queue but one.
type oneFails struct {
	queue.Admin
	name string
}

func (q oneFails) Ensure(ctx context.Context, name string) error {
	if name == q.name {
		return queue.ErrUnavailable
	}
	return q.Admin.Ensure(ctx, name)
}

// TestTickMakesQueues: a cluster's queue that was deleted by hand is made again
// within the hour; that of a cluster being deleted is not, and one whose queue
// cannot be made holds up no other.
func TestTickMakesQueues(t *testing.T) {
	t.Parallel()
	p := setup(t)
	queueOf := func(name string) string { return fleet.QueueName(id.Derive(id.Cluster, name)) }
	for _, c := range []fleet.Cluster{{Name: "aaa"}, {Name: "going", Deleting: true}} {
		c.ID, c.Queue = id.Derive(id.Cluster, c.Name), queueOf(c.Name)
		p.no(p.db.Commit(t.Context(), ledger.Write{Item: record.ClusterItem(&c)}))
	}
	kept := fleet.QueueName(p.cluster)
	p.no(p.queue.Remove(t.Context(), kept))
	p.tick(t0.Add(29 * time.Minute))
	if _, err := p.queue.Depth(t.Context(), kept); !errors.Is(err, queue.ErrNoQueue) {
		t.Fatalf("before its minute: %v", err)
	}
	h := p.sweepFunction()
	h.Sweep.Queue = oneFails{p.queue, queueOf("aaa")}
	if _, err := invoke(t.Context(), h.Handle, tickAt(t0.Add(30*time.Minute))); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("the tick says %v of the queue that cannot be made", err)
	}
	if _, err := p.queue.Depth(t.Context(), kept); err != nil {
		t.Errorf("the queue that was deleted: %v", err)
	}
	if _, err := p.queue.Depth(t.Context(), queueOf("going")); !errors.Is(err, queue.ErrNoQueue) {
		t.Errorf("the queue of a cluster being deleted: %v", err)
	}
}
