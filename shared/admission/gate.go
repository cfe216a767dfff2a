package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// component resolves the component that a payload names.
func (s *Service) component(ctx context.Context, at string, p parsed, t *operation.Target) error {
	if p.def.Type != "component.upgrade" {
		return nil
	}
	var c struct {
		Component string `json:"component"`
	}
	if err := json.Unmarshal(p.request.Payload, &c); err != nil {
		return fmt.Errorf("read component: %w", err)
	}
	known, err := s.Store.Components(ctx, t.ID)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(known, func(k record.NamedID) bool { return k.Name == c.Component })
	if i < 0 {
		names := make([]string, len(known))
		for i, k := range known {
			names[i] = k.Name
		}
		r := operation.Invalid(operation.FieldError{Pointer: at + "/payload/component", Code: "not_found",
			Detail: fmt.Sprintf("the cluster reports no component %q", c.Component)})
		return r.With("candidates", names)
	}
	t.Component = known[i].ID
	return nil
}

// revision refuses a request that was made for an older state of its target.
func (s *Service) revision(ctx context.Context, p parsed, t operation.Target) error {
	if p.request.RequestedRevision == nil {
		return nil
	}
	o, _, err := s.Store.Object(ctx, t.ID)
	if errors.Is(err, ledger.ErrNotFound) {
		return operation.Invalid(operation.FieldError{Pointer: "/requested_revision", Code: "conflict", Detail: "does not go with this target"})
	}
	if err != nil {
		return err
	}
	if o.Revision != *p.request.RequestedRevision {
		return operation.Refuse("stale_revision", "the target is at revision %d, the request is for %d", o.Revision, *p.request.RequestedRevision).
			With("current_revision", o.Revision)
	}
	return nil
}

// cordonOwned refuses to lift a cordon that Opsplane did not place, as the last
// inventory has it, unless that is asked for. The agent judges again by the node
// itself.
func (s *Service) cordonOwned(ctx context.Context, p parsed, t operation.Target) error {
	if p.def.Type != "node.uncordon" {
		return nil
	}
	var u struct {
		TakeOver bool `json:"take_over"`
	}
	if err := json.Unmarshal(p.request.Payload, &u); err != nil {
		return fmt.Errorf("read uncordon: %w", err)
	}
	o, _, err := s.Store.Object(ctx, t.ID)
	if errors.Is(err, ledger.ErrNotFound) || u.TakeOver {
		return nil
	}
	if err != nil {
		return err
	}
	if o.Node == nil || o.Node.Cordon == nil || o.Node.Cordon.Owner != "external" {
		return nil
	}
	return operation.Refuse("cordon_not_owned", "the node was cordoned outside Opsplane (%s); ask with take_over: true to lift it", o.Node.Cordon.By).
		With("cordon", o.Node.Cordon)
}

func targetName(t operation.Target) string {
	if t.Kind == operation.KindFleet {
		return t.Kind
	}
	return t.Kind + ":" + t.Name
}
