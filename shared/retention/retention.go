// Package retention deletes finished operations, old events and agents that
// never came back, by age. The record says where history begins.
package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Policy says how long what has ended is kept.
type Policy struct {
	Operations time.Duration // since it finished
	Events     time.Duration
	// Agents is how long an agent that is not heard of stays listed; zero: for
	// ever.
	Agents time.Duration
}

// Default is the policy of those who set none: half a year of operations, a
// month of events, a week of silence.
var Default = Policy{Operations: 180 * 24 * time.Hour, Events: 30 * 24 * time.Hour, Agents: 7 * 24 * time.Hour}

// Pass deletes what is past its age and moves the mark where history begins.
// What it could not finish it finishes the next time.
func Pass(ctx context.Context, st *record.Store, p Policy) (deleted int, err error) {
	now := st.Now().UTC()
	before := now.Add(-p.Operations)
	q := ledger.Query{Index: ledger.List, PK: record.ListOperations, To: record.TimeSort(before, ""), Limit: 100}
	for {
		page, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return deleted, fmt.Errorf("list old operations: %w", err)
		}
		for _, it := range page.Items {
			id := record.OperationOf(it.Key)
			s, err := record.Decode[operation.State](it)
			if err != nil {
				return deleted, err
			}
			if id == "" || s.FinishedAt == nil || s.FinishedAt.After(before) {
				continue
			}
			if deleted == 0 { // the mark first: a list never claims more than it has
				if err := st.SetHistoryBegins(ctx, before); err != nil {
					return deleted, err
				}
			}
			err = st.DeleteOperation(ctx, id)
			switch {
			case err == nil:
				deleted++
			case !errors.Is(err, ledger.ErrConflict) && !errors.Is(err, ledger.ErrNotFound): // else it was retried, or another pass was faster
				return deleted, err
			}
		}
		if page.Next == "" {
			break
		}
		q.After = page.Next
	}
	clusters, err := st.Clusters(ctx)
	if err != nil {
		return deleted, err
	}
	names := []string{event.StreamOf("")}
	for _, c := range clusters {
		if err := removeAgents(ctx, st, c.ID, p.Agents); err != nil {
			return deleted, fmt.Errorf("remove agents of cluster %s: %w", c.ID, err)
		}
		names = append(names, event.StreamOf(c.ID))
	}
	for _, name := range names {
		if _, _, err := event.Trim(ctx, st.Ledger, name, now.Add(-p.Events)); err != nil {
			return deleted, fmt.Errorf("trim stream %s: %w", name, err)
		}
	}
	return deleted, nil
}
