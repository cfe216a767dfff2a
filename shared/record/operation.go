package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// Store reads and writes the domain's values. Beside what it is given it holds
// only copies of what cannot have changed: specs, and states of a known version.
type Store struct {
	Ledger ledger.Ledger
	Now    func() time.Time
	Timing operation.Timing
	// IndexLag is how late an index may show a write: 0 where it shows it at once.
	// Whoever must not miss one looks through the base items of that time.
	IndexLag time.Duration

	memory memory
}

// maxTries bounds how often a change is tried again after losing a race.
const maxTries = 12

// Decode reads an item's data, or says ErrNewer.
func Decode[T any](it ledger.Item) (T, error) {
	var v T
	err := json.Unmarshal(it.Data, &v) // it goes on behind a field of another type
	if f := formatOf(&v); f > StateFormat {
		return v, fmt.Errorf("decode item %s: format %d, known up to %d: %w", it.Key, f, StateFormat, ErrNewer)
	}
	if err != nil {
		return v, fmt.Errorf("decode item %s: %w", it.Key, err)
	}
	return v, nil
}

// encoders are reused: a value is encoded into a buffer that has its size by
// now, and copied out.
var encoders = sync.Pool{New: func() any {
	e := &encoder{}
	e.json = json.NewEncoder(&e.buffer)
	e.json.SetEscapeHTML(false) // no page shows it, and limits count bytes
	return e
}}

type encoder struct {
	buffer bytes.Buffer
	json   *json.Encoder
}

// Encode writes an item's data. The domain's values always encode.
func Encode(v any) []byte {
	e := encoders.Get().(*encoder)
	e.buffer.Reset()
	if err := e.json.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	out := bytes.Clone(bytes.TrimSuffix(e.buffer.Bytes(), []byte("\n")))
	if e.buffer.Cap() <= ledger.MaxItemBytes {
		encoders.Put(e)
	}
	return out
}

// Load reads one operation, or ledger.ErrNotFound.
func (st *Store) Load(ctx context.Context, id string) (operation.Operation, error) {
	ops, err := st.LoadMany(ctx, []string{id})
	if err != nil {
		return operation.Operation{}, err
	}
	op, ok := ops[id]
	if !ok {
		return op, fmt.Errorf("operation %s: %w", id, ledger.ErrNotFound)
	}
	return op, nil
}

// LoadMany reads those operations that exist, by id.
func (st *Store) LoadMany(ctx context.Context, ids []string) (map[string]operation.Operation, error) {
	out := make(map[string]operation.Operation, len(ids))
	const step = ledger.MaxWrites / 2
	for len(ids) > 0 {
		part := ids[:min(step, len(ids))]
		ids = ids[len(part):]
		keys := make([]ledger.Key, 0, 2*len(part))
		specs := make(map[string]operation.Spec, len(part))
		for _, id := range part {
			spec, known := st.specs().get(id)
			if r := st.current(id); r != nil && known {
				out[id] = operation.Operation{Spec: spec, State: r.state, Version: r.version}
				continue
			}
			keys = append(keys, StateKey(id))
			if known {
				specs[id] = spec
			} else {
				keys = append(keys, specKey(id))
			}
		}
		if len(keys) == 0 {
			continue
		}
		items, err := st.Ledger.GetMany(ctx, keys)
		if err != nil {
			return nil, fmt.Errorf("load %d operations: %w", len(part), err)
		}
		for _, id := range part {
			state, ok := items[StateKey(id)]
			if !ok {
				continue
			}
			s, err := st.decodeState(id, state)
			if err != nil {
				return nil, err
			}
			spec, ok := specs[id]
			if !ok {
				if spec, err = st.decodeSpec(id, items[specKey(id)]); err != nil {
					return nil, err
				}
			}
			out[id] = operation.Operation{Spec: spec, State: s, Version: state.Version}
		}
	}
	return out, nil
}

// StateItem is the item of an operation's state, with its places in the indexes.
func (st *Store) StateItem(s *operation.State) ledger.Item {
	sort := TimeSort(s.CreatedAt, s.ID)
	it := ledger.Item{
		Key: StateKey(s.ID), Due: st.dueAt(s),
		Index: map[ledger.Index]ledger.Key{
			ledger.List:   {PK: ListOperations, SK: sort},
			ledger.Scope:  {PK: scopeOf(s.Cluster), SK: sort},
			ledger.Lookup: {PK: ListOperations + "#actor#" + s.ActorID, SK: sort},
		},
	}
	if !s.Phase.Terminal() {
		it.Index[ledger.Live] = ledger.Key{PK: ListOperations, SK: sort}
	}
	s.Format = StateFormat
	it.Data = Encode(s)
	return it
}

// scopeOf is the index partition of a cluster's operations, or of those of none.
func scopeOf(cluster string) string {
	if cluster == "" {
		cluster = "plane"
	}
	return ListOperations + "#" + cluster
}

// CreateWrites are the writes that make a new operation: its parts, and a
// reference from each resource.
func (st *Store) CreateWrites(op *operation.Operation, entries []operation.Entry) []ledger.Write {
	ws := st.StateWrites(&op.State, 0, entries)
	ws = append(ws, ledger.Write{Item: ledger.Item{Key: specKey(op.Spec.ID), Data: Encode(op.Spec)}})
	for _, r := range op.Spec.Resources {
		ws = append(ws, ledger.Write{Item: ledger.Item{Key: refKey(r, op.Spec.ID, op.Spec.CreatedAt), Data: []byte("{}")}})
	}
	return ws
}

// Decide says what happens to an operation as it was read: a change, and writes
// that go into the same commit. A nil change commits nothing.
type Decide func(op *operation.Operation) (operation.Change, []ledger.Write, error)

// Update applies a change to the newest state of an operation: it reads,
// decides, applies and commits, and starts over when another writer was faster.
// The commit that ends an operation gives its locks back. It returns the
// operation as it is afterwards; operation.ErrNoChange is not an error here.
func (st *Store) Update(ctx context.Context, id string, decide Decide) (operation.Operation, error) {
	var op operation.Operation
	err := Again(ctx, func() (err error) {
		if op, err = st.Load(ctx, id); err != nil {
			return err
		}
		return st.apply(ctx, &op, decide)
	})
	return op, err
}

// apply is one try of Update; op becomes what was committed.
func (st *Store) apply(ctx context.Context, op *operation.Operation, decide Decide) error {
	change, extra, err := decide(op)
	if err != nil {
		return err
	}
	if change == nil {
		return nil
	}
	next, entries, err := operation.Apply(&op.Spec, op.State, change, st.Now())
	if errors.Is(err, operation.ErrNoChange) {
		return nil
	}
	if err != nil {
		return err
	}
	st.lookAgain(&next, change)
	writes := append(st.StateWrites(&next, op.Version, entries), extra...)
	writes[0].WasDue = op.State.DueAt
	switch was, is := op.State.Phase.Terminal(), next.Phase.Terminal(); {
	case !was && is:
		locks, err := st.releaseLocks(ctx, &op.Spec, &next)
		if err != nil {
			return err
		}
		writes = append(writes, locks...)
	case was && !is:
		locks, _, err := st.AcquireLocks(ctx, &op.Spec, st.Now())
		if err != nil {
			return err
		}
		writes = append(writes, locks...)
		if op.Spec.Cluster != "" {
			stands, err := st.ClusterStands(ctx, op.Spec.Cluster)
			if err != nil {
				return err
			}
			writes = append(writes, stands)
		}
	}
	if err := st.Ledger.Commit(ctx, writes...); err != nil {
		return fmt.Errorf("commit operation %s: %w", op.Spec.ID, err)
	}
	op.State = next
	op.Version++
	st.committed(&next, op.Version)
	return nil
}

// AcquireLocks returns the writes that take an operation's locks, and the
// operations that left one of the resources unsettled; *operation.LockedError
// when another holds one.
func (st *Store) AcquireLocks(ctx context.Context, spec *operation.Spec, now time.Time) (writes []ledger.Write, unsettled []string, err error) {
	if len(spec.Locks) == 0 {
		return nil, nil, nil
	}
	items, err := st.lockItems(ctx, spec.Locks)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range spec.Locks {
		it, state, err := lockOf(items, l.Resource)
		if err != nil {
			return nil, nil, err
		}
		next, err := state.Acquire(l.Resource, operation.Holder{
			Operation: spec.ID, Mode: l.Mode, Type: spec.Request.Type, Actor: spec.Actor, Since: now.UTC()})
		if err != nil {
			return nil, nil, err
		}
		unsettled = append(unsettled, state.Unsettled...)
		writes = append(writes, ledger.Write{Item: ledger.Item{Key: LockKey(l.Resource), Data: Encode(next)}, Expect: it.Version})
	}
	return writes, unsettled, nil
}

// releaseLocks returns the writes that give an ended operation's locks back. A
// lock is emptied, not deleted, so that its version only grows.
func (st *Store) releaseLocks(ctx context.Context, spec *operation.Spec, s *operation.State) ([]ledger.Write, error) {
	if len(spec.Locks) == 0 {
		return nil, nil
	}
	items, err := st.lockItems(ctx, spec.Locks)
	if err != nil {
		return nil, err
	}
	residual := map[string]bool{}
	if s.Result != nil {
		for _, r := range s.Result.Residual {
			residual[r.Resource] = true
		}
	}
	var writes []ledger.Write
	for _, l := range spec.Locks {
		it, state, err := lockOf(items, l.Resource)
		if err != nil {
			return nil, err
		}
		next := state.Release(spec.ID, residual[l.Resource], s.Settles() && l.Mode == operation.Exclusive)
		writes = append(writes, ledger.Write{Item: ledger.Item{Key: LockKey(l.Resource), Data: Encode(next)}, Expect: it.Version})
	}
	return writes, nil
}

func (st *Store) lockItems(ctx context.Context, locks []operation.Lock) (map[ledger.Key]ledger.Item, error) {
	keys := make([]ledger.Key, len(locks))
	for i, l := range locks {
		keys[i] = LockKey(l.Resource)
	}
	items, err := st.Ledger.GetMany(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read locks: %w", err)
	}
	return items, nil
}

func lockOf(items map[ledger.Key]ledger.Item, resource string) (ledger.Item, operation.LockState, error) {
	it, ok := items[LockKey(resource)]
	if !ok {
		return it, operation.LockState{}, nil
	}
	s, err := Decode[operation.LockState](it)
	return it, s, err
}

// Locks returns the lock of each resource that has one.
func (st *Store) Locks(ctx context.Context, resources []string) (map[string]operation.LockState, error) {
	out := map[string]operation.LockState{}
	for len(resources) > 0 {
		part := resources[:min(ledger.MaxWrites, len(resources))]
		resources = resources[len(part):]
		keys := make([]ledger.Key, len(part))
		for i, r := range part {
			keys[i] = LockKey(r)
		}
		items, err := st.Ledger.GetMany(ctx, keys)
		if err != nil {
			return nil, fmt.Errorf("read locks: %w", err)
		}
		for _, r := range part {
			if it, ok := items[LockKey(r)]; ok {
				if out[r], err = Decode[operation.LockState](it); err != nil {
					return nil, err
				}
			}
		}
	}
	return out, nil
}

// Again calls f until it no longer loses a race, waiting a little more each time.
func Again(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		if err == nil || !errors.Is(err, ledger.ErrConflict) || try == maxTries {
			return err
		}
		if err := backOff(ctx, try); err != nil {
			return err
		}
	}
}

// backOff waits a little, more with each try, with jitter.
func backOff(ctx context.Context, try int) error {
	d := time.Duration(1+rand.IntN(1<<min(try, 7))) * time.Millisecond
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
