package record

import (
	"context"
	"fmt"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// inventoryKinds are the kinds of objects that agents report.
var inventoryKinds = []string{operation.KindNode, operation.KindDevice, operation.KindDeployment, operation.KindComponent}

// ClearInventory deletes a cluster's inventory, as far as the index shows it.
func (st *Store) ClearInventory(ctx context.Context, cluster string) error {
	for _, kind := range inventoryKinds {
		q := ledger.Query{Index: ledger.Scope, PK: InventoryScope(kind, cluster), Limit: ledger.MaxWrites}
		if err := st.clear(ctx, q); err != nil {
			return fmt.Errorf("remove inventory of cluster %s: %w", cluster, err)
		}
	}
	return nil
}

// ClearPartition deletes what a cluster's partition holds beside the cluster:
// agents, the reporter, marks of events, parts of snapshots.
func (st *Store) ClearPartition(ctx context.Context, cluster string) error {
	if err := st.clear(ctx, ledger.Query{PK: ClusterPK(cluster), Limit: ledger.MaxWrites}); err != nil {
		return fmt.Errorf("remove agents of cluster %s: %w", cluster, err)
	}
	return nil
}

// clear deletes every item of a query but the cluster's own. Nobody decides by
// these items, so that the last write may win.
func (st *Store) clear(ctx context.Context, q ledger.Query) error {
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return err
		}
		var writes []ledger.Write
		for _, it := range p.Items {
			if it.SK != "cluster" {
				writes = append(writes, ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: it.Key}, Expect: ledger.AnyVersion})
			}
		}
		if len(writes) > 0 {
			if err := st.Ledger.Commit(ctx, writes...); err != nil {
				return err
			}
		}
		if p.Next == "" {
			return nil
		}
		q.After = p.Next
	}
}
