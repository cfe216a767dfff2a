package operation

import (
	"slices"
	"time"
)

// Progress is how far the current step is.
type Progress struct {
	Step    string `json:"step"`
	Done    int    `json:"done"`
	Total   int    `json:"total"`
	Unit    string `json:"unit"`
	Message string `json:"message"`
	// Blockers are what stands in the way now, the worst first: at most
	// MaxProgressBlockers.
	Blockers []Blocker `json:"blockers,omitempty"`
}

// MaxProgressBlockers bounds how many blockers an operation shows.
const MaxProgressBlockers = 10

// Equal tells whether two of them say the same.
func (p *Progress) Equal(o *Progress) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.Step == o.Step && p.Done == o.Done && p.Total == o.Total && p.Unit == o.Unit && p.Message == o.Message &&
		slices.EqualFunc(p.Blockers, o.Blockers, Blocker.Equal)
}

// Blocker is something that stands in the way of an operation.
type Blocker struct {
	Code     string `json:"code"`     // pdb, unmanaged_pod, local_data, finalizer, node_unreachable, holder, ...
	Resource string `json:"resource"` // what it is about, such as pod/default/web-0
	Rule     string `json:"rule"`     // by which it blocks, such as pdb/default/web
	Detail   string `json:"detail"`
	// Since is when it began to stand in the way of this operation, by the
	// agent's clock.
	Since *time.Time `json:"since,omitempty"`
}

// Equal tells whether two of them say the same.
func (b Blocker) Equal(o Blocker) bool {
	same := b.Since == nil && o.Since == nil || b.Since != nil && o.Since != nil && b.Since.Equal(*o.Since)
	return same && b.Code == o.Code && b.Resource == o.Resource && b.Rule == o.Rule && b.Detail == o.Detail
}
