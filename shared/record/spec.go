package record

import (
	"context"
	"fmt"
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// specsKept bounds the copies of specs: two generations of half as many.
const specsKept = 8192

// specCache keeps decoded specs. A spec never changes and an operation's id is
// never used again, so that a copy is as good as the item. Callers share it and
// must not write to it.
type specCache struct {
	mu         sync.Mutex
	young, old map[string]operation.Spec
}

func (c *specCache) get(id string) (operation.Spec, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.young[id]; ok {
		return s, true
	}
	s, ok := c.old[id]
	if ok {
		c.put(id, s)
	}
	return s, ok
}

// put keeps a spec; the caller holds the lock.
func (c *specCache) put(id string, s operation.Spec) {
	if c.young == nil || len(c.young) >= specsKept/2 {
		c.old, c.young = c.young, make(map[string]operation.Spec, specsKept/2)
	}
	c.young[id] = s
}

// decode reads a spec's item and keeps a copy.
func (c *specCache) decode(id string, it ledger.Item) (operation.Spec, error) {
	s, err := Decode[operation.Spec](it)
	if err != nil {
		return s, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(id, s)
	return s, nil
}

// Specs reads the specs of those operations that exist.
func (st *Store) Specs(ctx context.Context, ids []string) (map[string]operation.Spec, error) {
	out := make(map[string]operation.Spec, len(ids))
	var missing []string
	for _, id := range ids {
		if s, ok := st.specs.get(id); ok {
			out[id] = s
		} else {
			missing = append(missing, id)
		}
	}
	for len(missing) > 0 {
		part := missing[:min(ledger.MaxWrites, len(missing))]
		missing = missing[len(part):]
		keys := make([]ledger.Key, len(part))
		for i, id := range part {
			keys[i] = specKey(id)
		}
		items, err := st.Ledger.GetMany(ctx, keys)
		if err != nil {
			return nil, fmt.Errorf("read specs: %w", err)
		}
		for _, id := range part {
			it, ok := items[specKey(id)]
			if !ok {
				continue
			}
			if out[id], err = st.specs.decode(id, it); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
