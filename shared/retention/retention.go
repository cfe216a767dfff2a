// Package retention deletes finished operations, old events and agents that
// never came back, by age. The record says where history begins.
package retention

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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
	// Details is how long the details of events of a type ("device.xid") or family
	// ("operation.*") are kept, where that is less than Events; an event that falls
	// under several loses its detail by the shortest. The journals of operations
	// are not touched by it, nor by Events.
	Details map[string]time.Duration
}

// Zero tells whether nothing is said.
func (p Policy) Zero() bool {
	return p.Operations == 0 && p.Events == 0 && p.Agents == 0 && len(p.Details) == 0
}

// Check refuses a policy that cannot be meant: ages below an hour, with which
// what has just happened would go, and types that are none.
func (p Policy) Check() error {
	for _, what := range slices.Sorted(maps.Keys(p.Details)) {
		if !event.ValidFamily(what) {
			return fmt.Errorf("details of %q: it is a type such as node.left, or a family such as operation.*", what)
		}
		if age := p.Details[what]; age < time.Hour || p.Events > 0 && age >= p.Events {
			return fmt.Errorf("details of %s: %s is not between 1h and the %s that events are kept", what, age, p.Events)
		}
	}
	return nil
}

// Default is the policy of those who set none: half a year of operations, a
// month of events, a week of silence.
var Default = Policy{Operations: 180 * 24 * time.Hour, Events: 30 * 24 * time.Hour, Agents: 7 * 24 * time.Hour}

// detailRuns bounds how many runs of events one pass looks at for details, in each
// stream and for each type or family.
const detailRuns = 20_000

// parallel bounds how many operations are deleted at once.
const parallel = 16

// Pass deletes what is past its age and moves the mark where history begins.
// What it could not finish it finishes the next time. Operations come last: they
// take longest, and where there are more of them than a pass has time for, agents
// and events must not wait for the last one.
func Pass(ctx context.Context, st *record.Store, p Policy) (deleted int, err error) {
	now := st.Now().UTC()
	errs := fleetAndEvents(ctx, st, p, now)
	deleted, err = operations(ctx, st, now.Add(-p.Operations))
	return deleted, errors.Join(errs, err)
}

// fleetAndEvents deletes agents and events, and what deleted clusters left. A cluster that fails leaves the
// others alone.
func fleetAndEvents(ctx context.Context, st *record.Store, p Policy, now time.Time) error {
	clusters, err := st.Clusters(ctx)
	if err != nil {
		return err
	}
	var errs error
	for _, c := range clusters {
		if err := removeAgents(ctx, st, c.ID, p.Agents); err != nil {
			errs = errors.Join(errs, fmt.Errorf("remove agents of cluster %s: %w", c.ID, err))
		}
	}
	streams, err := event.Streams(ctx, st)
	if err != nil {
		return errors.Join(errs, err)
	}
	former, err := st.Former(ctx)
	if err != nil {
		return errors.Join(errs, err)
	}
	for _, c := range former { // what its deletion did not see; see registry.Service.Delete
		errs = errors.Join(errs, st.ClearInventory(ctx, c), st.ClearPartition(ctx, c))
	}
	for _, name := range streams {
		head, _, err := event.Trim(ctx, st.Ledger, name, now.Add(-p.Events))
		if err == nil && head.Low >= head.Next && slices.Contains(former, name) { // the last of a deleted cluster
			err = st.Ledger.Commit(ctx, ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: record.FormerKey(name)}, Expect: ledger.AnyVersion},
				ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: record.JudgedKey(name)}, Expect: ledger.AnyVersion},
				ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: record.ToldKey(name)}, Expect: ledger.AnyVersion})
		}
		errs = errors.Join(errs, err)
		for _, what := range slices.Sorted(maps.Keys(p.Details)) {
			_, err := event.ExpireDetails(ctx, st.Ledger, name, what, now.Add(-p.Details[what]), detailRuns)
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// operations deletes those that ended before the time. One that cannot be read
// leaves the others alone.
func operations(ctx context.Context, st *record.Store, before time.Time) (deleted int, err error) {
	q := ledger.Query{Index: ledger.List, PK: record.ListOperations, To: record.TimeSort(before, ""), Limit: 100}
	marked := false
	var unread error
	for {
		page, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return deleted, fmt.Errorf("list old operations: %w", err)
		}
		var ids []string
		for _, it := range page.Items {
			s, err := record.Decode[operation.State](it)
			if err != nil {
				unread = fmt.Errorf("read old operations: %w", err)
				continue
			}
			if id := record.OperationOf(it.Key); id != "" && s.FinishedAt != nil && !s.FinishedAt.After(before) {
				ids = append(ids, id)
			}
		}
		if len(ids) > 0 && !marked { // the mark first: a list never claims more than it has
			if err := st.SetHistoryBegins(ctx, before); err != nil {
				return deleted, err
			}
			marked = true
		}
		n, err := deleteAll(ctx, st, ids)
		if deleted += n; err != nil {
			return deleted, err
		}
		if page.Next == "" {
			return deleted, unread
		}
		q.After = page.Next
	}
}

// deleteAll deletes the operations, some at once, and counts them. It returns the
// first error; what another pass or a retry was faster with is none.
func deleteAll(ctx context.Context, st *record.Store, ids []string) (deleted int, err error) {
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	slots := make(chan struct{}, parallel)
	for _, id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			e := st.DeleteOperation(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e == nil:
				deleted++
			case err == nil && !errors.Is(e, ledger.ErrConflict) && !errors.Is(e, ledger.ErrNotFound):
				err = e
			}
		})
	}
	wg.Wait()
	return deleted, err
}
