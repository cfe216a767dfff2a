package react

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// TypeAcknowledged is the event that a person took an alert on.
const TypeAcknowledged = "alert.acknowledged"

const (
	maxNote  = 1 << 10 // of a note, in bytes
	keptAcks = 20      // before the last one
)

// acks is the data of an alert's acknowledgements: the last one, and those before.
type acks struct {
	alert.Ack
	Earlier []alert.Ack `json:"earlier,omitempty"`
}

// show brings the acknowledgements into the alert, and its history.
func (x *acks) show(a *alert.Alert) {
	a.Acked = &x.Ack
	own := a.History
	for _, k := range append(slices.Clone(x.Earlier), x.Ack) {
		state := a.State
		for i := range own { // in which state it was then
			if h := &own[i]; !h.At.After(k.At) {
				state = h.State
			}
		}
		a.History = append(a.History, alert.Step{At: k.At, State: state, Reason: alert.ReasonAcked, By: &k.By, Note: k.Note})
	}
	slices.SortStableFunc(a.History, func(x, y alert.Step) int { return cmp.Or(x.At.Compare(y.At)) })
}

// Acknowledge keeps that a person took an alert on, with a note; nil leaves the note
// of who did so before. Those before are in the alert's history. Errors:
// alert.Faults, not_found, alert_resolved.
func (s *Service) Acknowledge(ctx context.Context, call admission.Call, alertID string, note *string) (alert.Alert, error) {
	if note != nil && (len(*note) > maxNote || !operation.CleanText(*note)) {
		return alert.Alert{}, alert.Faults{{Pointer: "/note", Code: alert.CodeRange, Detail: fmt.Sprintf("must have at most %d bytes and no control characters", maxNote)}}
	}
	if note != nil { // that of before may stay as it is
		if err := alert.CheckSecret("/note", *note); err != nil {
			return alert.Alert{}, err
		}
	}
	err := record.Again(ctx, func() error { return s.acknowledge(ctx, call, alertID, note) })
	if err != nil {
		return alert.Alert{}, fmt.Errorf("acknowledge alert %.64s: %w", alertID, err)
	}
	return s.Alert(ctx, alertID)
}

func (s *Service) acknowledge(ctx context.Context, call admission.Call, alertID string, note *string) error {
	items, err := s.Store.Ledger.GetMany(ctx, []ledger.Key{record.AlertKey(alertID), record.AckKey(alertID)})
	if err != nil {
		return fmt.Errorf("read alert: %w", err)
	}
	it, ok := items[record.AlertKey(alertID)]
	if !ok {
		return operation.Refuse("not_found", "there is no alert %.128s", alertID)
	}
	a, err := record.Decode[alert.Alert](it)
	if err != nil {
		return err
	}
	if a.State == alert.Resolved {
		return operation.Refuse("alert_resolved", "alert %s is resolved: there is nothing to take on", a.ID)
	}
	now := s.now()
	next := acks{Ack: alert.Ack{By: call.Caller.Actor, At: now}}
	was, acked := items[record.AckKey(alertID)]
	if acked {
		before, err := record.Decode[acks](was)
		if err == nil { // what cannot be read is replaced
			next.Note = before.Note
			next.Earlier = append(before.Earlier, before.Ack)
			next.Earlier = next.Earlier[max(len(next.Earlier)-keptAcks, 0):]
		}
	}
	if note != nil {
		next.Note = *note
	}
	e, err := event.New(TypeAcknowledged, a.Cluster, a.Subject, now, call.Caller.Actor,
		event.AlertAcknowledgedDetail{ID: a.ID, Rule: a.Rule, Group: a.Group, Note: next.Note}, a.ID, call.Caller.Actor.ID, fmt.Sprint(now.UnixMilli(), was.Version))
	if err != nil {
		return err
	}
	e.OperationID, e.CorrelationID = a.Operation, call.CorrelationID
	_, err = event.Append(ctx, s.Store.Ledger, event.StreamOf(a.Cluster), []event.Event{e}, func() ([]ledger.Write, error) {
		return []ledger.Write{
			{Kind: ledger.Check, Expect: it.Version, Item: ledger.Item{Key: it.Key}}, // it does not resolve meanwhile
			{Expect: was.Version, Item: ledger.Item{Key: record.AckKey(a.ID), Data: record.Encode(next), Expires: now.Add(4 * AlertKept)}},
			s.audit(call, "alert.acknowledge", a.ID, http.StatusOK, next.Note),
		}, nil
	})
	return err
}
