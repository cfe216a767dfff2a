package record

import (
	"context"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// specsKept bounds the copies of specs. A spec never changes and an operation's
// id is never used again, so that a copy is as good as the item. Callers share it
// and must not write to it.
const specsKept = 8192

// decodeSpec reads a spec's item and keeps a copy.
func (st *Store) decodeSpec(id string, it ledger.Item) (operation.Spec, error) {
	s, err := Decode[operation.Spec](it)
	if err == nil {
		st.specs().put(id, s)
	}
	return s, err
}

// Specs reads the specs of those operations that exist. One that cannot be read is
// as one that is missing, so that it holds up no other, unless a later version wrote
// it (ErrNewer).
func (st *Store) Specs(ctx context.Context, ids []string) (map[string]operation.Spec, error) {
	out := make(map[string]operation.Spec, len(ids))
	var missing []string
	for _, id := range ids {
		if s, ok := st.specs().get(id); ok {
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
			spec, err := st.decodeSpec(id, it)
			if errors.Is(err, ErrNewer) {
				return nil, err
			}
			if err == nil {
				out[id] = spec
			}
		}
	}
	return out, nil
}
