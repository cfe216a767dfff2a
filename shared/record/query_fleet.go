package record

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
)

// ObjectSort is an object's place in the lists of its kind.
func ObjectSort(o *fleet.Object) string { return o.Name + "#" + o.ID }

// Objects reads a part of the inventory of one kind, by name, of one cluster or
// of all (""). more tells whether it goes on.
func (st *Store) Objects(ctx context.Context, kind, cluster string, sp Span) (objects []fleet.Object, more bool, err error) {
	q := ledger.Query{Index: ledger.List, PK: InventoryList(kind)}
	if cluster != "" {
		q = ledger.Query{Index: ledger.Scope, PK: InventoryScope(kind, cluster)}
	}
	p, err := st.Ledger.Query(ctx, sp.query(q))
	if err != nil {
		return nil, false, fmt.Errorf("list %s: %w", kind, err)
	}
	for _, it := range p.Items {
		o, err := Decode[fleet.Object](it)
		if err != nil {
			return nil, false, err
		}
		objects = append(objects, o)
	}
	return objects, p.Next != "", nil
}

// AllAgents lists the agents of all clusters, by cluster and id.
func (st *Store) AllAgents(ctx context.Context) ([]fleet.Agent, error) {
	agents, err := All[fleet.Agent](ctx, st.Ledger, ledger.Query{Index: ledger.List, PK: ListAgents})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(agents, func(a, b fleet.Agent) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.ID, b.ID))
	})
	return agents, nil
}
