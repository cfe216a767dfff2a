package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Delete takes a cluster out of the fleet: its inventory, agents, tokens and
// queue. It is refused while an operation of the cluster is live. One that
// broke off is finished by asking again: the cluster itself goes last.
//
// Every admission, retry and child's admission requires in its commit that the
// cluster's item is as it was when it was not being deleted. So after the mark
// nothing comes to life, and what came before is found by record.Store.LiveIn.
//
// What agents report at the last moment, or so late that the index does not show
// it, retention's next pass removes.
func (s *Service) Delete(ctx context.Context, call admission.Call, name string) error {
	found, err := s.Find(ctx, call, name)
	if err != nil {
		return err
	}
	if err := s.unused(ctx, found); err != nil {
		return err
	}
	marked, err := s.mark(ctx, found.ID)
	if err != nil {
		return err
	}
	if err := s.unused(ctx, found); err != nil { // it slipped in before the mark
		return errors.Join(err, s.unmark(ctx, found.ID, marked))
	}
	if err := s.Store.ClearInventory(ctx, found.ID); err != nil {
		return err
	}
	if err := s.Queues.Remove(ctx, found.Queue); err != nil {
		return fmt.Errorf("remove queue of cluster %s: %w", found.ID, err)
	}
	if err := s.Store.ClearPartition(ctx, found.ID); err != nil {
		return err
	}
	return s.removeCluster(ctx, call, found)
}

// unused refuses while an operation of the cluster is live.
func (s *Service) unused(ctx context.Context, c fleet.Cluster) error {
	op, err := s.Store.LiveIn(ctx, c.ID)
	if err != nil || op == "" {
		return err
	}
	r := operation.Refuse("cluster_in_use", "operation %s of cluster %s has not ended", op, c.Name)
	r.OperationID = op
	return r
}

// mark says that the cluster is being deleted, and returns the version that says
// so. It writes even when another deletion has said it, so that the other cannot
// take it back under this one.
func (s *Service) mark(ctx context.Context, cluster string) (version int64, err error) {
	err = record.Again(ctx, func() error {
		var c fleet.Cluster
		c, version, err = s.Store.Cluster(ctx, cluster)
		if errors.Is(err, ledger.ErrNotFound) {
			return noCluster(cluster)
		}
		if err != nil {
			return err
		}
		c.Deleting = true
		return s.Store.Ledger.Commit(ctx, ledger.Write{Item: record.ClusterItem(&c), Expect: version})
	})
	return version + 1, err
}

// unmark takes a mark back, unless another deletion has made one since.
func (s *Service) unmark(ctx context.Context, cluster string, marked int64) error {
	c, version, err := s.Store.Cluster(ctx, cluster)
	switch {
	case errors.Is(err, ledger.ErrNotFound), err == nil && version != marked:
		return nil
	case err != nil:
		return err
	}
	c.Deleting = false
	err = s.Store.Ledger.Commit(ctx, ledger.Write{Item: record.ClusterItem(&c), Expect: marked})
	if errors.Is(err, ledger.ErrConflict) {
		return nil
	}
	return err
}

// maxTokens bounds the agents' tokens that end with their cluster in its commit.
const maxTokens = 80

func (s *Service) removeCluster(ctx context.Context, call admission.Call, found fleet.Cluster) error {
	var ended []string
	err := record.Again(ctx, func() error {
		ended = nil
		c, version, err := s.Store.Cluster(ctx, found.ID)
		if errors.Is(err, ledger.ErrNotFound) {
			return noCluster(found.ID)
		}
		if err != nil {
			return err
		}
		writes := []ledger.Write{
			{Kind: ledger.Delete, Item: ledger.Item{Key: record.ClusterKey(c.ID)}, Expect: version},
			{Kind: ledger.Delete, Item: ledger.Item{Key: record.ClusterNameKey(c.Name)}, Expect: ledger.AnyVersion},
			record.FormerWrite(c.ID, s.now()),
			s.audit(call, "cluster.delete", c.ID, http.StatusNoContent, ""),
		}
		for cursor := ""; ; {
			tokens, next, err := s.Tokens.ListAgent(ctx, c.ID, cursor, ledger.MaxWrites)
			if err != nil {
				return err
			}
			for _, t := range tokens {
				if t.Ended(s.now()) != "" {
					continue
				}
				if len(ended) == maxTokens {
					return operation.Refuse("cluster_in_use", "the cluster has more than %d agents' tokens: revoke some first", maxTokens)
				}
				_, w, err := s.Tokens.RevokeWrite(ctx, t.ID, call.Caller.Actor.ID)
				if err != nil && !errors.Is(err, auth.ErrNoToken) {
					return err
				}
				if err == nil {
					writes, ended = append(writes, w), append(ended, t.ID)
				}
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		_, err = event.Append(ctx, s.Store.Ledger, event.PlaneStream, s.told(event.TypeClusterDeleted, call, c),
			func() ([]ledger.Write, error) { return writes, nil })
		return err
	})
	for _, t := range ended {
		s.Tokens.Forget(t)
	}
	if err != nil {
		return fmt.Errorf("delete cluster %s: %w", found.ID, err)
	}
	return nil
}
