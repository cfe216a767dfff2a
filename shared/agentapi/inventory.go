package agentapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// snapshotPart is the data of one part of a full inventory: the ids in it.
type snapshotPart struct {
	IDs []string `json:"ids"`
}

// maxParts bounds the parts of one full inventory.
const maxParts = 500

// maxUnread bounds the kinds that one could not read.
const maxUnread = 50

// Inventory takes objects from the cluster's reporter: changes, or a part of a
// full resend.
func (s *Service) Inventory(ctx context.Context, cluster string, req protocol.InventoryRequest) (protocol.InventoryAnswer, error) {
	inv := &req.Objects
	if n := len(inv.Nodes) + len(inv.Devices) + len(inv.Deployments) + len(inv.Components) + len(req.Gone); n > protocol.MaxInventory {
		return protocol.InventoryAnswer{}, tooMany("objects", n, protocol.MaxInventory)
	}
	if req.Part < 0 || req.Part >= maxParts || len(req.Snapshot) > 64 {
		return protocol.InventoryAnswer{}, operation.Refuse("invalid", "snapshot takes 1 to 64 bytes, part 0 to %d", maxParts-1)
	}
	if n := len(inv.Unread); n > maxUnread {
		return protocol.InventoryAnswer{}, tooMany("unread", n, maxUnread)
	}
	agent, err := s.agent(ctx, cluster, req.AgentID, req.Boot)
	if err != nil {
		return protocol.InventoryAnswer{}, err
	}
	it, err := s.Store.Ledger.Get(ctx, record.ReporterKey(cluster))
	if errors.Is(err, ledger.ErrNotFound) {
		return protocol.InventoryAnswer{}, nil
	}
	if err != nil {
		return protocol.InventoryAnswer{}, fmt.Errorf("read reporter: %w", err)
	}
	r, err := record.Decode[fleet.Reporter](it)
	if err != nil {
		return protocol.InventoryAnswer{}, err
	}
	if r.Agent != agent.ID || r.Boot != agent.Boot {
		return protocol.InventoryAnswer{}, nil
	}
	objects, refused := fleet.Objects(cluster, inv, s.Store.Now().UTC())
	if len(refused) > 0 {
		s.Logger.WarnContext(ctx, "objects of an inventory refused", "cluster", cluster, "agent", agent.ID, "count", len(refused), "first", refused[0].Kind+"/"+refused[0].UID)
	}
	if err := s.merge(ctx, objects); err != nil {
		return protocol.InventoryAnswer{}, err
	}
	for _, gone := range req.Gone {
		if id := fleet.GoneID(cluster, gone); id != "" {
			if err := s.gone(ctx, cluster, id); err != nil {
				return protocol.InventoryAnswer{}, err
			}
		}
	}
	answer := protocol.InventoryAnswer{Reporter: true, FullInventory: req.Snapshot == "" && (r.Snapshot == "" || r.Asked)}
	if req.Snapshot == "" {
		return answer, nil
	}
	part := snapshotPart{}
	for _, o := range objects {
		part.IDs = append(part.IDs, o.ID)
	}
	for _, r := range refused {
		part.IDs = append(part.IDs, r.ID)
	}
	err = s.Store.Ledger.Commit(ctx, ledger.Write{Expect: ledger.AnyVersion, Item: ledger.Item{
		Key: record.SnapshotKey(cluster, req.Snapshot, req.Part), Data: record.Encode(part), Expires: s.Store.Now().Add(snapshotKept)}})
	if err != nil || !req.Last {
		return answer, err
	}
	return answer, s.endSnapshot(ctx, cluster, req, agent)
}

// merge brings the inventory up to the objects, some at a time.
func (s *Service) merge(ctx context.Context, objects []fleet.Object) error {
	const step = 50
	for len(objects) > 0 {
		part := objects[:min(step, len(objects))]
		for try := 0; ; try++ {
			ws, err := s.Store.MergeObjects(ctx, part)
			if err != nil {
				return err
			}
			if len(ws) == 0 {
				break
			}
			err = s.Store.Ledger.Commit(ctx, ws...)
			if err == nil {
				break
			}
			if !errors.Is(err, ledger.ErrConflict) || try > 8 {
				return fmt.Errorf("keep inventory: %w", err)
			}
		}
		objects = objects[len(part):]
	}
	return nil
}

// endSnapshot removes what a full inventory did not name, and could have. When a part is
// missing nothing is removed and another resend is asked for.
func (s *Service) endSnapshot(ctx context.Context, cluster string, req protocol.InventoryRequest, agent fleet.Agent) error {
	named := map[string]bool{}
	for part := range req.Part + 1 {
		it, err := s.Store.Ledger.Get(ctx, record.SnapshotKey(cluster, req.Snapshot, part))
		if errors.Is(err, ledger.ErrNotFound) {
			s.Logger.WarnContext(ctx, "a full inventory lacks a part", "cluster", cluster, "part", part)
			return nil
		}
		if err != nil {
			return fmt.Errorf("read snapshot: %w", err)
		}
		p, err := record.Decode[snapshotPart](it)
		if err != nil {
			return err
		}
		for _, id := range p.IDs {
			named[id] = true
		}
	}
	for _, kind := range []string{operation.KindNode, operation.KindDevice, operation.KindDeployment, operation.KindComponent} {
		have, err := record.All[fleet.Object](ctx, s.Store.Ledger, ledger.Query{Index: ledger.Scope, PK: record.InventoryScope(kind, cluster)})
		if err != nil {
			return err
		}
		for _, o := range have {
			if d := o.Deployment; d != nil && slices.Contains(req.Objects.Unread, d.Kind) {
				continue // nobody knows
			}
			if !named[o.ID] {
				if err := s.gone(ctx, cluster, o.ID); err != nil {
					return err
				}
			}
		}
	}
	return s.snapshotEnded(ctx, cluster, req.Snapshot, agent)
}

// snapshotEnded notes on the reporter's lease that a full inventory is in.
func (s *Service) snapshotEnded(ctx context.Context, cluster, snapshot string, agent fleet.Agent) error {
	for try := 0; ; try++ {
		it, err := s.Store.Ledger.Get(ctx, record.ReporterKey(cluster))
		if err != nil {
			return fmt.Errorf("read reporter: %w", err)
		}
		r, err := record.Decode[fleet.Reporter](it)
		if err != nil || r.Agent != agent.ID || r.Boot != agent.Boot {
			return err
		}
		r.Snapshot, r.Asked = snapshot, false
		err = s.Store.Ledger.Commit(ctx, ledger.Write{Item: ledger.Item{Key: it.Key, Data: record.Encode(r)}, Expect: it.Version})
		if err == nil || !errors.Is(err, ledger.ErrConflict) || try > 5 {
			return err
		}
	}
}

// gone removes an object, and ends what can no longer start on it.
func (s *Service) gone(ctx context.Context, cluster, id string) error {
	o, _, err := s.Store.Object(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) || (err == nil && o.Cluster != cluster) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.Store.RemoveObject(ctx, id); err != nil {
		return err
	}
	locks, err := s.Store.Locks(ctx, []string{id})
	if err != nil {
		return err
	}
	for _, h := range locks[id].Holders {
		_, err := s.Store.Update(ctx, h.Operation, func(op *operation.Operation) (operation.Change, []ledger.Write, error) {
			if op.State.Phase != operation.Pending && op.State.Phase != operation.Dispatched {
				return nil, nil, nil
			}
			return operation.CannotStart{
				Cause:      operation.Cause{ErrorCode: "target_gone", Detail: o.Kind + " " + o.Name + " is gone from its cluster"},
				NextAction: operation.NextAction{Code: operation.ActCorrectInput, Text: "ask again for a target that exists"},
			}, nil, nil
		})
		if err != nil && !errors.Is(err, ledger.ErrNotFound) {
			return err
		}
	}
	return nil
}
