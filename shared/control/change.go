package control

import (
	"context"
	"fmt"
	"strings"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// ChangeInput records a repair made by hand.
type ChangeInput struct {
	Target  string `json:"target"`
	Cluster string `json:"cluster,omitempty"` // narrows the target
	Reason  string `json:"reason"`
	Runbook string `json:"runbook,omitempty"` // what was followed: a link or a name
}

// changeTargets are the kinds that a person repairs.
var changeTargets = []string{operation.KindCluster, operation.KindNode, operation.KindDevice, operation.KindDeployment, operation.KindComponent, operation.KindFleet}

// RecordChange keeps a repair made by hand, tells it as an event, and asks the
// cluster for fresh inventory.
func (s *Service) RecordChange(ctx context.Context, call admission.Call, in ChangeInput) (c record.ManualChange, replayed bool, err error) {
	fp, err := admission.Fingerprint(in)
	if err != nil {
		return c, false, err
	}
	err = record.Again(ctx, func() error {
		earlier, err := admission.Earlier(ctx, s.Store, call, fp)
		if err != nil {
			return err
		}
		if earlier != "" {
			replayed = true
			c, err = s.Store.ManualChange(ctx, earlier)
			return missing(err, "manual change", earlier)
		}
		c, err = s.recordChange(ctx, call, in, fp)
		return err
	})
	return c, replayed, err
}

func (s *Service) recordChange(ctx context.Context, call admission.Call, in ChangeInput, fp string) (record.ManualChange, error) {
	errs := text(nil, "target", in.Target, true, admission.MaxTargetBytes)
	errs = text(errs, "cluster", in.Cluster, false, admission.MaxTargetBytes)
	errs = text(errs, "reason", in.Reason, true, MaxReasonBytes)
	errs = text(errs, "runbook", in.Runbook, false, MaxRunbookBytes)
	if err := invalid(errs); err != nil {
		return record.ManualChange{}, err
	}
	t, err := admission.Resolve(ctx, s.Store, call.Caller, "", "a manual change", changeTargets, in.Target, in.Cluster)
	if err != nil {
		return record.ManualChange{}, err
	}
	now := s.Store.Now().UTC()
	c := record.ManualChange{
		ID: id.New(id.Change, now), TargetID: t.ID, TargetName: strings.TrimPrefix(t.Kind+":"+t.Name, "fleet:"), Cluster: t.Cluster,
		Reason: in.Reason, Runbook: in.Runbook, Actor: call.Caller.Actor, At: now, CorrelationID: call.CorrelationID,
	}
	e, err := event.New(event.TypeManualChange, t.Cluster, event.Subject{Kind: t.Kind, ID: t.ID, Name: t.Name}, now, call.Caller.Actor,
		map[string]any{"change": c.ID, "target": c.TargetID, "target_name": c.TargetName, "reason": c.Reason, "runbook": c.Runbook}, c.ID)
	if err != nil {
		return record.ManualChange{}, err
	}
	e.CorrelationID = call.CorrelationID
	_, err = event.Append(ctx, s.Store.Ledger, event.StreamOf(t.Cluster), []event.Event{e}, func() ([]ledger.Write, error) {
		writes := append(record.ChangeWrites(c), admission.Keep(s.Store, call, fp, c.ID)...)
		writes = append(writes, s.audit(call, "manual_change.create", c.TargetID, 201, c.Reason))
		ask, err := s.Store.AskInventory(ctx, t.Cluster)
		return append(writes, ask...), err
	})
	if err != nil {
		return record.ManualChange{}, fmt.Errorf("record manual change: %w", err)
	}
	return c, nil
}
