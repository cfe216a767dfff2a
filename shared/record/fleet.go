package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// ClusterItem is the item of a cluster.
func ClusterItem(c *fleet.Cluster) ledger.Item {
	return ledger.Item{Key: ClusterKey(c.ID), Data: Encode(c), Index: map[ledger.Index]ledger.Key{
		ledger.List: {PK: ListClusters, SK: c.Name + "#" + c.ID},
	}}
}

// ClusterName is the data of the item that makes a cluster's name unique.
type ClusterName struct {
	Cluster string `json:"cluster"`
}

// Cluster reads a cluster by id, with the version of its item.
func (st *Store) Cluster(ctx context.Context, id string) (fleet.Cluster, int64, error) {
	it, err := st.Ledger.Get(ctx, ClusterKey(id))
	if err != nil {
		return fleet.Cluster{}, 0, fmt.Errorf("cluster %s: %w", id, err)
	}
	c, err := Decode[fleet.Cluster](it)
	return c, it.Version, err
}

// ClusterByName reads a cluster by name.
func (st *Store) ClusterByName(ctx context.Context, name string) (fleet.Cluster, error) {
	it, err := st.Ledger.Get(ctx, ClusterNameKey(name))
	if err != nil {
		return fleet.Cluster{}, fmt.Errorf("cluster named %q: %w", name, err)
	}
	ref, err := Decode[ClusterName](it)
	if err != nil {
		return fleet.Cluster{}, err
	}
	c, _, err := st.Cluster(ctx, ref.Cluster)
	return c, err
}

// ClusterStands is the write that lets a commit pass only while the cluster is
// not being deleted: the deletion's first commit changes the cluster's item.
func (st *Store) ClusterStands(ctx context.Context, cluster string) (ledger.Write, error) {
	c, version, err := st.Cluster(ctx, cluster)
	if errors.Is(err, ledger.ErrNotFound) || (err == nil && c.Deleting) {
		return ledger.Write{}, operation.Refuse("not_found", "cluster %s is deleted, or about to be", cluster)
	}
	return ledger.Write{Kind: ledger.Check, Item: ledger.Item{Key: ClusterKey(cluster)}, Expect: version}, err
}

// Clusters lists all clusters by name.
func (st *Store) Clusters(ctx context.Context) ([]fleet.Cluster, error) {
	return All[fleet.Cluster](ctx, st.Ledger, ledger.Query{Index: ledger.List, PK: ListClusters})
}

// All reads every item of a query.
func All[T any](ctx context.Context, l ledger.Reader, q ledger.Query) ([]T, error) {
	var out []T
	for {
		p, err := l.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", q.PK, err)
		}
		for _, it := range p.Items {
			v, err := Decode[T](it)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		if p.Next == "" {
			return out, nil
		}
		q.After = p.Next
	}
}

// AgentItem is the item of an agent; due is when it counts as silent.
func (st *Store) AgentItem(a *fleet.Agent) ledger.Item {
	it := ledger.Item{Key: AgentKey(a.Cluster, a.ID), Data: Encode(a), Index: map[ledger.Index]ledger.Key{
		ledger.List: {PK: ListAgents, SK: a.Cluster + "#" + a.ID},
	}}
	if !a.Silent {
		it.Due = dueMilli(a.LastSeen.Add(st.Timing.AgentSilent))
	}
	return it
}

// Agents lists a cluster's agents.
func (st *Store) Agents(ctx context.Context, cluster string) ([]fleet.Agent, error) {
	return All[fleet.Agent](ctx, st.Ledger, ledger.Query{PK: ClusterPK(cluster), From: skAgent, To: skAgent + "~"})
}

// Availability says whether the cluster has an agent that can carry the steps
// out: a waiting code (operation.WaitNoAgent, WaitIncompatible) with its words,
// or "".
func (st *Store) Availability(ctx context.Context, cluster string, steps []operation.PlanStep) (*operation.Waiting, error) {
	agents, err := st.Agents(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return st.AvailabilityOf(agents, steps), nil
}

// AvailabilityOf is Availability of agents that were read before.
func (st *Store) AvailabilityOf(agents []fleet.Agent, steps []operation.PlanStep) *operation.Waiting {
	now := st.Now()
	missing, online := "", 0
	for _, a := range agents {
		if !a.Online(now, st.Timing.AgentSilent) {
			continue
		}
		online++
		m := a.Missing(steps)
		if m == "" {
			return nil
		}
		missing = m
	}
	if online == 0 {
		return &operation.Waiting{Code: operation.WaitNoAgent, Since: now, Detail: "no agent of the cluster is online",
			Need: "an online agent", Have: fmt.Sprintf("%d known, none heard of for %s", len(agents), st.Timing.AgentSilent)}
	}
	return &operation.Waiting{Code: operation.WaitIncompatible, Since: now, Detail: "no online agent can do what the plan needs",
		Need: missing, Have: fmt.Sprintf("%d online agents without it", online)}
}

// ObjectItem is the item of an object of the inventory.
func ObjectItem(o *fleet.Object) ledger.Item {
	sort := o.Name + "#" + o.ID
	return ledger.Item{Key: InventoryKey(o.ID), Data: Encode(o), Index: map[ledger.Index]ledger.Key{
		ledger.List:   {PK: InventoryList(o.Kind), SK: sort},
		ledger.Scope:  {PK: InventoryScope(o.Kind, o.Cluster), SK: sort},
		ledger.Lookup: {PK: InventoryName(o.Kind, o.Name), SK: o.Cluster},
	}}
}

// Object reads an object of the inventory with the version of its item.
func (st *Store) Object(ctx context.Context, id string) (fleet.Object, int64, error) {
	it, err := st.Ledger.Get(ctx, InventoryKey(id))
	if err != nil {
		return fleet.Object{}, 0, fmt.Errorf("object %s: %w", id, err)
	}
	o, err := Decode[fleet.Object](it)
	return o, it.Version, err
}

// ObjectsByName reads the objects of a kind that have the name.
func (st *Store) ObjectsByName(ctx context.Context, kind, name string) ([]fleet.Object, error) {
	return All[fleet.Object](ctx, st.Ledger, ledger.Query{Index: ledger.Lookup, PK: InventoryName(kind, name)})
}

// DevicesByAlias reads a cluster's devices that have the name among their other
// spellings (a bus address, NODE/INDEX), whatever its case. It looks through all
// devices of the cluster: names that are no UUID are for people.
func (st *Store) DevicesByAlias(ctx context.Context, cluster, name string) ([]fleet.Object, error) {
	all, err := All[fleet.Object](ctx, st.Ledger, ledger.Query{Index: ledger.Scope, PK: InventoryScope(operation.KindDevice, cluster)})
	if err != nil {
		return nil, fmt.Errorf("devices of %s: %w", cluster, err)
	}
	return slices.DeleteFunc(all, func(o fleet.Object) bool {
		return o.Device == nil || !slices.ContainsFunc(o.Device.Aliases, func(a string) bool { return strings.EqualFold(a, name) })
	}), nil
}

// MergeObjects returns the writes that bring the inventory up to the objects:
// only those that are newer than what is stored, at most 60.
func (st *Store) MergeObjects(ctx context.Context, objects []fleet.Object) ([]ledger.Write, error) {
	keys := make([]ledger.Key, len(objects))
	for i, o := range objects {
		keys[i] = InventoryKey(o.ID)
	}
	have, err := st.Ledger.GetMany(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read inventory: %w", err)
	}
	var ws []ledger.Write
	for _, o := range objects {
		it, ok := have[InventoryKey(o.ID)]
		if ok {
			old, err := Decode[fleet.Object](it)
			if err != nil {
				return nil, err
			}
			if old.Revision >= o.Revision {
				continue
			}
			o.FirstSeen = old.FirstSeen
		}
		ws = append(ws, ledger.Write{Item: ObjectItem(&o), Expect: it.Version})
	}
	return ws, nil
}

// RemoveObject deletes an object of the inventory; one that is not there is no
// error.
func (st *Store) RemoveObject(ctx context.Context, id string) error {
	for try := 0; ; try++ {
		it, err := st.Ledger.Get(ctx, InventoryKey(id))
		if errors.Is(err, ledger.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove object %s: %w", id, err)
		}
		err = st.Ledger.Commit(ctx, ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: it.Key}, Expect: it.Version})
		if err == nil {
			return nil
		}
		if !errors.Is(err, ledger.ErrConflict) || try == maxTries {
			return fmt.Errorf("remove object %s: %w", id, err)
		}
		if err := backOff(ctx, try); err != nil {
			return err
		}
	}
}

// AskInventory returns the write that asks a cluster's reporter for a full inventory;
// none for "", and where one is asked for.
func (st *Store) AskInventory(ctx context.Context, cluster string) ([]ledger.Write, error) {
	if cluster == "" {
		return nil, nil
	}
	it, err := st.Ledger.Get(ctx, ReporterKey(cluster))
	var r fleet.Reporter
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		return nil, fmt.Errorf("read reporter of %s: %w", cluster, err)
	default:
		if r, err = Decode[fleet.Reporter](it); err != nil {
			return nil, err
		}
		if r.Asked {
			return nil, nil
		}
	}
	r.Asked = true
	it.Key, it.Data = ReporterKey(cluster), Encode(r)
	return []ledger.Write{{Item: it, Expect: it.Version}}, nil
}

// Idempotency is what is kept under an idempotency key.
type Idempotency struct {
	Fingerprint string    `json:"fingerprint"`
	Resource    string    `json:"resource"` // the id of what the first request made
	At          time.Time `json:"at"`
}

// IdempotencyKept is how long a key is kept.
const IdempotencyKept = 25 * time.Hour

// Idempotency reads what is kept under a key, or ledger.ErrNotFound.
func (st *Store) Idempotency(ctx context.Context, principal, method, path, key string) (Idempotency, error) {
	it, err := st.Ledger.Get(ctx, idemKey(principal, method, path, key))
	if err != nil {
		return Idempotency{}, err
	}
	return Decode[Idempotency](it)
}

// IdempotencyWrite keeps a key; it conflicts when another request was first.
func (st *Store) IdempotencyWrite(principal, method, path, key string, v Idempotency) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: idemKey(principal, method, path, key), Data: Encode(v), Expires: v.At.Add(IdempotencyKept)}}
}

// IsIdempotencyConflict tells whether a commit lost to another request under
// the same key.
func IsIdempotencyConflict(err error) bool {
	var c *ledger.ConflictError
	if !errors.As(err, &c) {
		return false
	}
	for _, k := range c.Keys {
		if k.SK == "idem" {
			return true
		}
	}
	return false
}
