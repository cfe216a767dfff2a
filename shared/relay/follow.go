package relay

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Follow does with a batch of records what DispatchFeed and PublishFeed do one
// after the other, at fewer reads, for an engine that bills them: each operation
// is looked at once. A record that tells of no more than what this process has
// dealt with is passed over: relay's own dispatch comes back as one. An operation
// that cannot be read is told and passed over too, so that the others go on.
//
// With an error (the ledger is unavailable or lost an answer, or ctx has ended) it returns the
// records that must come again; the others are dealt with.
func (r *Relay) Follow(ctx context.Context, changes []ledger.Change) (again []ledger.Change, err error) {
	again, err = r.follow(ctx, changes)
	if err == nil || stops(ctx, err) {
		return again, err
	}
	ids := Operations(again)
	for i, id := range ids { // to find out whose fault it is
		_, err := r.follow(ctx, about(again, []string{id}))
		if stops(ctx, err) {
			return about(again, ids[i:]), err
		}
		if err != nil {
			r.Logger.ErrorContext(ctx, "an operation cannot be read", "operation", id, "err", err)
		}
	}
	return nil, nil
}

// follow is Follow, where an operation that cannot be read fails all.
func (r *Relay) follow(ctx context.Context, changes []ledger.Change) (again []ledger.Change, err error) {
	newest := map[string]int64{}
	for _, c := range changes {
		if id := record.OperationOf(c.Key); id != "" {
			newest[id] = max(newest[id], c.Version)
		}
	}
	ids := slices.DeleteFunc(Operations(changes), func(id string) bool { return newest[id] > 0 && newest[id] <= r.dealt.through(id) })
	if len(ids) == 0 {
		return nil, nil
	}
	states, pubs, err := r.Store.Glances(ctx, ids)
	if err != nil {
		return about(changes, ids), err
	}
	moved, undone, passed, err := r.dispatchAll(ctx, ids, states)
	var unseen []string
	for id, version := range moved { // their journals went on
		if g, ok := r.Store.Recall(id, version); ok {
			states[id] = g
		} else {
			unseen = append(unseen, id)
		}
	}
	if len(unseen) > 0 {
		is, at, e := r.Store.Glances(ctx, unseen)
		if e != nil {
			return about(changes, ids), errors.Join(err, e)
		}
		maps.Copy(states, is)
		maps.Copy(pubs, at)
	}
	unpublished, forgone, e := r.publishAll(ctx, ids, &glances{states, pubs})
	left := slices.Concat(undone, unpublished)
	for _, id := range ids {
		if !slices.Contains(left, id) && !slices.Contains(passed, id) && !slices.Contains(forgone, id) {
			r.dealt.with(id, max(newest[id], moved[id]))
		}
	}
	if err = errors.Join(err, e); err != nil {
		return about(changes, left), err
	}
	return nil, nil
}

// dealtKept bounds the operations that a process keeps in mind: two generations
// of half as many.
const dealtKept = 8192

// dealt keeps in mind, by operation, the version of its state through which it
// was dispatched and published. Ids are never used again and versions of a state
// only grow, so that it stays true whatever happens.
type dealt struct {
	mu         sync.Mutex
	young, old map[string]int64
}

func (d *dealt) through(id string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(d.young[id], d.old[id])
}

func (d *dealt) with(id string, version int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.young == nil || len(d.young) >= dealtKept/2 {
		d.old, d.young = d.young, make(map[string]int64)
	}
	d.young[id] = max(version, d.young[id])
}
