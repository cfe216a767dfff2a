package admission

import (
	"context"
	"errors"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Blockers is what an operation would meet.
type Blockers struct {
	// Status is "live" when an agent has just looked, else "unknown": Items are
	// then what the inventory said at ObservedAt.
	Status     string             `json:"status"`
	ObservedAt *time.Time         `json:"observed_at"`
	Items      []protocol.Blocker `json:"items"`
}

// Blockers' statuses.
const (
	BlockersLive    = "live"
	BlockersUnknown = "unknown"
)

// blockers gathers what a dry run shows: who holds the resources, what the last
// inventory says, and what an agent finds now.
func (s *Service) blockers(ctx context.Context, spec *operation.Spec) (Blockers, error) {
	b := Blockers{Status: BlockersUnknown, Items: []protocol.Blocker{}}
	_, _, err := s.Store.AcquireLocks(ctx, spec, s.Store.Now())
	var locked *operation.LockedError
	switch {
	case errors.As(err, &locked):
		b.Items = append(b.Items, protocol.Blocker{Code: "operation_conflict", Resource: locked.Resource,
			Rule: "one live operation holds a resource", Detail: locked.Error()})
	case err != nil:
		return b, err
	}
	if spec.Cluster == "" || spec.PlaneLocal {
		return b, nil
	}
	w, err := s.Store.Availability(ctx, spec.Cluster, spec.Steps)
	if err != nil {
		return b, err
	}
	if w != nil {
		b.Items = append(b.Items, protocol.Blocker{Code: w.Code, Resource: spec.Cluster, Rule: w.Need, Detail: w.Detail})
	} else if s.Preview != nil {
		live, err := s.Preview(ctx, spec)
		if err == nil {
			live.Items = append(b.Items, live.Items...)
			return live, nil
		}
		if ctx.Err() != nil {
			return b, ctx.Err()
		}
	}
	o, _, err := s.Store.Object(ctx, spec.TargetID)
	if errors.Is(err, ledger.ErrNotFound) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	if o.Node != nil {
		at := o.ObservedAt
		b.ObservedAt = &at
		b.Items = append(b.Items, o.Node.Blockers...)
	}
	return b, nil
}
