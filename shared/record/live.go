package record

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// LiveIn tells one operation of the cluster that has not ended, or "". It misses
// none that was admitted before the call, which a deletion hangs on:
//
//   - what was admitted longer ago than IndexLag is in the index of live
//     operations, whose entries are judged by the items themselves;
//   - what is younger has its audit record in the commit that admitted it, and
//     those are base items, by time. A retry has one too;
//   - children have none, but their plan lists them, and lives as long as they.
//
// A counter, or an item for each live operation beside the cluster, would cost
// two writes of every operation for what is asked once in a cluster's life.
func (st *Store) LiveIn(ctx context.Context, cluster string) (string, error) {
	var found string
	plans := map[string]bool{}
	look := func(s *operation.State) bool {
		if s.Phase.Terminal() {
			return false
		}
		if s.Cluster == cluster {
			found = s.ID
		} else if s.PlaneLocal {
			plans[s.ID] = true
		}
		return found != ""
	}
	err := st.eachLive(ctx, []string{scopeOf(cluster), scopeOf("")}, func(s *operation.State, unread error) (bool, error) {
		return unread == nil && look(s), unread
	})
	if err != nil || found != "" {
		return found, err
	}
	if st.IndexLag == 0 {
		return "", nil
	}
	if err := st.eachYoung(ctx, look); err != nil || found != "" {
		return found, err
	}
	for plan := range plans {
		kids, err := st.Children(ctx, plan)
		if err != nil {
			return "", err
		}
		var ids []string
		for _, k := range kids.Kids {
			if k.Admitted && k.Phase == "" {
				ids = append(ids, k.Operation)
			}
		}
		if err := st.eachOf(ctx, ids, look); err != nil || found != "" {
			return found, err
		}
	}
	return "", nil
}

// EachLiveIn calls f for the cluster's operations that have not ended, as far as
// the index shows them; of one that cannot be read with why.
func (st *Store) EachLiveIn(ctx context.Context, cluster string, f func(s *operation.State, unread error) error) error {
	return st.eachLive(ctx, []string{scopeOf(cluster)}, func(s *operation.State, unread error) (bool, error) { return false, f(s, unread) })
}

// eachLive calls f for what the index of live operations has in the scopes, until
// it says stop; of what cannot be read with why. What is in another scope is told by its keys and not decoded.
func (st *Store) eachLive(ctx context.Context, scopes []string, f func(s *operation.State, unread error) (stop bool, err error)) error {
	q := ledger.Query{Index: ledger.Live, PK: ListOperations}
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return fmt.Errorf("list live operations: %w", err)
		}
		for _, it := range p.Items {
			if !slices.Contains(scopes, it.Index[ledger.Scope].PK) {
				continue
			}
			s, err := Decode[operation.State](it)
			if stop, err := f(&s, err); err != nil || stop {
				return err
			}
		}
		if p.Next == "" {
			return nil
		}
		q.After = p.Next
	}
}

// eachYoung calls f for what was admitted, or taken up again, within twice the
// index's lag: the other half is for clocks that differ.
func (st *Store) eachYoung(ctx context.Context, f func(*operation.State) (stop bool)) error {
	now := st.Now()
	from, since := now.Add(st.IndexLag), now.Add(-2*st.IndexLag)
	for place := TimeSort(from, ""); place != ""; {
		records, next, err := st.Audits(ctx, place, from, since, auditPage)
		if err != nil {
			return err
		}
		if place = next; place != "" { // the place's own day goes on
			from = records[len(records)-1].At
		}
		var ids []string
		for _, a := range records {
			switch a.Action {
			case AuditCreate, AuditRetry:
				ids = append(ids, a.Resource)
			case AuditRedrive:
				d, _, err := st.DeadLetter(ctx, a.Resource)
				if errors.Is(err, ledger.ErrNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				ids = append(ids, d.Operation)
			}
		}
		stopped := false
		if err := st.eachOf(ctx, ids, func(s *operation.State) bool { stopped = f(s); return stopped }); err != nil || stopped {
			return err
		}
	}
	return nil
}

// auditPage is how many audit records are read at once.
const auditPage = 500

// eachOf calls f for those of the operations that exist.
func (st *Store) eachOf(ctx context.Context, ids []string, f func(*operation.State) (stop bool)) error {
	ops, err := st.LoadMany(ctx, ids)
	if err != nil {
		return err
	}
	for _, op := range ops {
		if f(&op.State) {
			return nil
		}
	}
	return nil
}
