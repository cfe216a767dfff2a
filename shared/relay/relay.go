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

	"github.com/opsplane/opsplane/shared/agentapi"
	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// PlaneQueue is the queue of what never reaches a cluster.
const PlaneQueue = "plane"

// attentionFor is how long after a cancel request its holder is still rung.
const attentionFor = 30 * time.Second

// parallel bounds how many operations are worked on at once.
const parallel = 64

// Relay holds what its two halves need; it has no state of its own.
type Relay struct {
	Store  *record.Store
	Queue  queue.Sender
	Bus    bus.Publisher // nil: no bus
	Logger *slog.Logger
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
	pubs, err := r.Store.Published(ctx, ids)
	if err != nil {
		return ids, err
	}
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	slots := make(chan struct{}, parallel)
	for _, id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if e := r.dispatch(ctx, id, pubs[id]); e != nil {
				mu.Lock()
				failed, err = append(failed, id), errors.Join(err, e)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed, err
}

func (r *Relay) dispatch(ctx context.Context, id string, pub record.Published) error {
	op, err := r.Store.Load(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	s := &op.State
	switch {
	case s.Phase.Terminal():
		if s.Parent != "" {
			return r.RingPlane(ctx, s.Parent)
		}
		return nil
	case s.PlaneLocal:
		return r.RingPlane(ctx, id)
	case s.Phase == operation.Pending:
		op, err = r.Store.Update(ctx, id, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
			if op.State.Phase != operation.Pending {
				return nil, nil, nil
			}
			w, err := r.Store.Availability(ctx, op.Spec.Cluster, op.Spec.Steps)
			return operation.Dispatch{Waiting: w}, nil, err
		})
		if err != nil {
			return fmt.Errorf("dispatch %s: %w", id, err)
		}
		if op.State.Phase != operation.Dispatched {
			return nil
		}
		return r.Ring(ctx, &op.State)
	case s.Lease == nil && s.RungAt != nil && (pub.Rung == nil || !pub.Rung.Equal(*s.RungAt)):
		return r.Ring(ctx, s)
	case s.Lease != nil && s.Cancel != nil && r.Store.Now().Sub(s.Cancel.RequestedAt) < attentionFor:
		return r.send(ctx, protocol.KindAttention, s)
	}
	return nil
}

// Ring puts a doorbell for the operation on its cluster's queue.
func (r *Relay) Ring(ctx context.Context, s *operation.State) error {
	return r.send(ctx, protocol.KindOperation, s)
}

func (r *Relay) send(ctx context.Context, kind string, s *operation.State) error {
	body, err := json.Marshal(protocol.Doorbell{Version: protocol.Version, Kind: kind, Operation: s.ID, Cluster: s.Cluster,
		Generation: s.Generation, SentAt: r.Store.Now().UTC()})
	if err != nil {
		return fmt.Errorf("encode doorbell: %w", err)
	}
	err = r.Queue.Send(ctx, agentapi.QueueName(s.Cluster), queue.Outgoing{Body: body})
	if errors.Is(err, queue.ErrNoQueue) {
		r.Logger.Warn("a cluster has no queue", "cluster", s.Cluster, "operation", s.ID)
		return nil // the deadline ends it
	}
	if err != nil {
		return fmt.Errorf("ring for %s: %w", s.ID, err)
	}
	return nil
}

// PlaneMessage is what the plane's queue carries.
type PlaneMessage struct {
	Version   int    `json:"version"`
	Operation string `json:"operation"`
}

// RingPlane rings for an operation that the plane runs.
func (r *Relay) RingPlane(ctx context.Context, id string) error {
	body, err := json.Marshal(PlaneMessage{Version: protocol.Version, Operation: id})
	if err != nil {
		return fmt.Errorf("encode plane message: %w", err)
	}
	if err := r.Queue.Send(ctx, PlaneQueue, queue.Outgoing{Body: body}); err != nil {
		return fmt.Errorf("ring the plane for %s: %w", id, err)
	}
	return nil
}

// Reoffer rings again for every operation of the cluster that nobody holds: an
// agent has arrived.
func (r *Relay) Reoffer(ctx context.Context, cluster string) error {
	q := ledger.Query{Index: ledger.Live, PK: record.ListOperations}
	for {
		p, err := r.Store.Ledger.Query(ctx, q)
		if err != nil {
			return fmt.Errorf("list live operations: %w", err)
		}
		for _, it := range p.Items {
			s, err := record.Decode[operation.State](it)
			if err != nil {
				return err
			}
			if s.Cluster != cluster || s.Lease != nil || s.PlaneLocal {
				continue
			}
			if s.Phase == operation.Dispatched || s.Phase == operation.Reconciling {
				if err := r.Ring(ctx, &s); err != nil {
					return err
				}
			}
		}
		if p.Next == "" {
			return nil
		}
		q.After = p.Next
	}
}
