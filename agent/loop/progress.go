package loop

import (
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// progressed changes what is known of a step's progress and tells it, unless
// nothing changed. Another step begins anew.
func (r *run) progressed(step string, change func(p *operation.Progress)) {
	r.mu.Lock()
	next := r.progress
	if next.Step != step {
		next = operation.Progress{Step: step}
	}
	change(&next)
	same := next.Equal(&r.progress)
	r.progress = next
	r.mu.Unlock()
	if !same {
		r.out.tell(next)
	}
}

// sinceWhen bounds and cleans what stands in the way now and keeps, for what did so
// before, the time when that began.
func sinceWhen(now time.Time, before, blockers []protocol.Blocker) []protocol.Blocker {
	out := make([]protocol.Blocker, 0, min(len(blockers), operation.MaxProgressBlockers))
	for _, b := range blockers[:min(len(blockers), operation.MaxProgressBlockers)] {
		b.Code, b.Resource, b.Rule, b.Detail = cut(clean(b.Code), 128), redact(b.Resource, 512), redact(b.Rule, 512), redact(b.Detail, 512)
		at := now
		if i := slices.IndexFunc(before, func(o protocol.Blocker) bool {
			return o.Code == b.Code && o.Resource == b.Resource && o.Rule == b.Rule
		}); i >= 0 && before[i].Since != nil {
			at = *before[i].Since
		}
		b.Since = &at
		out = append(out, b)
	}
	return out
}
