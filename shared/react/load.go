package react

import (
	"context"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// load brings the stream at hand up to what is kept, and returns the rules.
func (r *Reactor) load(ctx context.Context, stream string, j *judged) (*alert.Set, string, error) {
	key := record.JudgedKey(stream)
	items, err := r.Store.Ledger.GetMany(ctx, []ledger.Key{key, record.RulesKey, record.FormerKey(stream)})
	if err != nil {
		return nil, "", fmt.Errorf("read position: %w", err)
	}
	set, mark, err := r.rules.load(ctx, r.Store, items[record.RulesKey].Version, r.faulty(ctx))
	if err != nil {
		return nil, "", err
	}
	if items[record.FormerKey(stream)].Version > 0 { // nothing of a deleted cluster is judged
		set, mark = deleted, markDeleted
	}
	it := items[key]
	if j.stream != nil && j.version == it.Version {
		return set, mark, nil
	}
	at := position{Position: alert.Position{Next: 1, Rules: mark}, Since: r.now().Add(-Backlog).UnixMilli()}
	var groups []*alert.Group
	if it.Version > 0 {
		if at, err = record.Decode[position](it); errors.Is(err, record.ErrNewer) {
			return nil, "", err
		} else if err != nil {
			if at, err = r.anew(ctx, stream, err); err != nil {
				return nil, "", err
			}
		}
		if groups, err = r.groups(ctx, stream); err != nil {
			return nil, "", err
		}
	} else if head, _, err := event.LoadHead(ctx, r.Store.Ledger, stream); err != nil {
		return nil, "", err
	} else {
		at.Next = max(head.Low, 1)
	}
	j.stream, j.ahead = alert.NewStream(stream, set, at.Position, groups), nil
	j.stream.MaxGroups = r.MaxGroups
	j.version, j.since, j.due, j.saved, j.lead = it.Version, at.Since, it.Due, at.Next, at.Lead
	return set, mark, nil
}

// anew is the position of a stream whose own cannot be read, which is told: it is
// judged from now on, by its groups as they are kept. Nobody knows by which rules
// it was, so that they are taken anew.
func (r *Reactor) anew(ctx context.Context, stream string, why error) (position, error) {
	r.Metrics.faulty()
	r.Logger.ErrorContext(ctx, "how far a stream is judged cannot be read: it is judged from now on", "stream", stream, "err", why)
	head, _, err := event.LoadHead(ctx, r.Store.Ledger, stream)
	if err != nil {
		return position{}, err
	}
	return position{Position: alert.Position{Next: max(head.Low, 1), Clock: head.Received}, Since: r.now().UnixMilli()}, nil
}

// deleted is the set of rules for the stream of a deleted cluster.
var deleted = alert.NoRules(alert.ReasonCluster)

const markDeleted = "deleted"

// groups reads all groups of a stream.
func (r *Reactor) groups(ctx context.Context, stream string) ([]*alert.Group, error) {
	from, to := record.GroupSpan()
	q := ledger.Query{PK: record.JudgedPK(stream), From: from, To: to}
	var out []*alert.Group
	for {
		p, err := r.Store.Ledger.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("read groups: %w", err)
		}
		for _, it := range p.Items {
			g, err := record.Decode[alert.Group](it)
			if err != nil { // one that cannot be read leaves the others alone
				r.Logger.ErrorContext(ctx, "a group of a rule cannot be read and begins anew", "stream", stream, "err", err)
				continue
			}
			out = append(out, &g)
		}
		if p.Next == "" {
			return out, nil
		}
		q.After = p.Next
	}
}
