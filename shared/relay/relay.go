// Package relay follows the ledger's change feed: it dispatches what was
// admitted, rings the clusters' queues, puts journals into event streams and
// streams on the bus.
//
// A feed record is only a hint. Relay reads the operation itself and goes on
// from the last entry that it published for it, so that records may come twice,
// late, reordered or never: sweep mends what no record told.
package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// attentionFor is how long after a cancel request its holder is still rung.
const attentionFor = 30 * time.Second

// parallel bounds how many operations are worked on at once.
const parallel = 64

// agentsKept is how old the list of agents may be by which a dispatch says that
// it waits for one. The sweep says it anew at each ring.
const agentsKept = 500 * time.Millisecond

// Relay holds what its two halves need, and for a moment the agents it has seen.
type Relay struct {
	Store  *record.Store
	Queue  queue.Sender
	Bus    bus.Publisher // nil: no bus
	Logger *slog.Logger

	mu     sync.Mutex
	agents map[string]agentsSeen // by cluster

	dealt dealt // by Follow
}

type agentsSeen struct {
	at     time.Time
	agents []fleet.Agent
}

// availability is record.Store.Availability by agents read a moment ago.
func (r *Relay) availability(ctx context.Context, spec *operation.Spec) (*operation.Waiting, error) {
	r.mu.Lock()
	seen, ok := r.agents[spec.Cluster]
	r.mu.Unlock()
	if now := r.Store.Now(); !ok || now.Sub(seen.at) > agentsKept || now.Before(seen.at) {
		agents, err := r.Store.Agents(ctx, spec.Cluster)
		if err != nil {
			return nil, err
		}
		seen = agentsSeen{at: now, agents: agents}
		r.mu.Lock()
		if r.agents == nil {
			r.agents = map[string]agentsSeen{}
		}
		r.agents[spec.Cluster] = seen
		r.mu.Unlock()
	}
	return r.Store.AvailabilityOf(seen.agents, spec.Steps), nil
}

// Operations returns the operations that the records are about, each once.
func Operations(changes []ledger.Change) []string {
	var out []string
	seen := map[string]bool{}
	for _, c := range changes {
		if id := record.OperationOf(c.Key); id != "" && !c.Deleted && !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

// Dispatch moves on what the records tell of: pending operations are
// dispatched, queues are rung. It returns the operations that failed, with the
// first error; the others are done.
func (r *Relay) Dispatch(ctx context.Context, ids []string) (failed []string, err error) {
	glances, _, err := r.Store.Glances(ctx, ids)
	if err != nil {
		return ids, err
	}
	_, failed, err = r.dispatchBy(ctx, ids, glances)
	return failed, err
}

// dispatchBy is Dispatch by glances that were taken before. moved are the
// operations that it wrote, and their versions behind that.
func (r *Relay) dispatchBy(ctx context.Context, ids []string, glances map[string]record.Glance) (moved map[string]int64, failed []string, err error) {
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	moved = map[string]int64{}
	slots := make(chan struct{}, parallel)
	for _, id := range ids {
		g, ok := glances[id]
		if !ok || r.nothingToDo(&g) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			version, e := r.dispatch(ctx, &g)
			mu.Lock()
			defer mu.Unlock()
			if version > 0 {
				moved[id] = version
			}
			if e != nil {
				failed, err = append(failed, id), errors.Join(err, e)
			}
		})
	}
	wg.Wait()
	return moved, failed, err
}

// nothingToDo tells whether an operation needs neither dispatch nor a ring.
func (r *Relay) nothingToDo(g *record.Glance) bool {
	switch {
	case g.Phase.Terminal():
		return g.Parent == ""
	case g.PlaneLocal, g.Phase == operation.Pending:
		return false
	case g.Lease == nil:
		return g.RungAt == nil || g.Rings > 0 // else whoever changed it has rung
	}
	return g.Cancel == nil || r.Store.Now().Sub(g.Cancel.RequestedAt) >= attentionFor
}

// dispatch does what one operation needs, and returns its version if it wrote
// it, else 0.
func (r *Relay) dispatch(ctx context.Context, g *record.Glance) (int64, error) {
	switch {
	case g.Phase.Terminal():
		return 0, r.RingPlane(ctx, g.Parent)
	case g.PlaneLocal:
		return 0, r.RingPlane(ctx, g.ID)
	case g.Phase == operation.Pending:
		op, err := r.Store.Update(ctx, g.ID, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
			if op.State.Phase != operation.Pending {
				return nil, nil, nil
			}
			w, err := r.availability(ctx, &op.Spec)
			return operation.Dispatch{Waiting: w}, nil, err
		})
		if errors.Is(err, ledger.ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("dispatch %s: %w", g.ID, err)
		}
		if op.State.Phase != operation.Dispatched {
			return op.Version, nil
		}
		return op.Version, r.Ring(ctx, &op.State)
	case g.Lease == nil:
		return 0, r.send(ctx, protocol.KindOperation, g.ID, g.Cluster, g.Generation)
	}
	return 0, r.send(ctx, protocol.KindAttention, g.ID, g.Cluster, g.Generation)
}

// Ring puts a doorbell for the operation on its cluster's queue.
//
// One that cannot be sent is due again at once.
func (r *Relay) Ring(ctx context.Context, s *operation.State) error {
	err := r.send(ctx, protocol.KindOperation, s.ID, s.Cluster, s.Generation)
	if err == nil {
		return nil
	}
	_, uerr := r.Store.Update(ctx, s.ID, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
		return operation.NotRung{}, nil, nil
	})
	return errors.Join(err, uerr)
}

func (r *Relay) send(ctx context.Context, kind, op, cluster string, generation int64) error {
	body, err := json.Marshal(protocol.Doorbell{Version: protocol.Version, Kind: kind, Operation: op, Cluster: cluster,
		Generation: generation, SentAt: r.Store.Now().UTC()})
	if err != nil {
		return fmt.Errorf("encode doorbell: %w", err)
	}
	err = r.Queue.Send(ctx, fleet.QueueName(cluster), queue.Outgoing{Body: body})
	if errors.Is(err, queue.ErrNoQueue) {
		r.Logger.WarnContext(ctx, "a cluster has no queue", "cluster", cluster, "operation", op)
		return nil // the deadline ends it
	}
	if err != nil {
		return fmt.Errorf("ring for %s: %w", op, err)
	}
	return nil
}

// Reoffer rings again for every operation of the cluster that nobody holds: an
// agent has arrived. One that cannot be read is told, and left out.
func (r *Relay) Reoffer(ctx context.Context, cluster string) error {
	return r.Store.EachLiveIn(ctx, cluster, func(s *operation.State, unread error) error {
		if unread != nil {
			r.Logger.ErrorContext(ctx, "an operation cannot be read", "cluster", cluster, "err", unread)
			return nil
		}
		waits := s.Phase == operation.Dispatched || s.Phase == operation.Reconciling
		if !waits || s.Lease != nil || s.PlaneLocal {
			return nil
		}
		return r.Ring(ctx, s)
	})
}
