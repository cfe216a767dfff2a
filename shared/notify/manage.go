package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Receivers returns all receivers, by name, without their secrets.
func (s *Service) Receivers(ctx context.Context) ([]Receiver, error) {
	all, err := s.loadReceivers(ctx)
	slices.SortFunc(all, func(a, b Receiver) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// Receiver finds a receiver by id or name; not_found.
func (s *Service) Receiver(ctx context.Context, ref string) (Receiver, error) {
	all, err := s.loadReceivers(ctx)
	if err != nil {
		return Receiver{}, err
	}
	i, err := find(all, ref)
	if err != nil {
		return Receiver{}, err
	}
	return all[i], nil
}

func find(all []Receiver, ref string) (int, error) {
	for i := range all {
		if all[i].ID == ref || all[i].Name == ref {
			return i, nil
		}
	}
	return 0, operation.Refuse("not_found", "there is no receiver %.128s", ref)
}

func receiverItem(r *Receiver) ledger.Item {
	return ledger.Item{Key: record.ReceiverKey(r.ID), Data: record.Encode(r)}
}

func nameTaken(all []Receiver, name, but string) error {
	for i := range all {
		if all[i].Name == name && all[i].ID != but {
			return operation.Refuse("name_taken", "there is a receiver %s", name)
		}
	}
	return nil
}

func nameWrite(r *Receiver) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: record.ReceiverNameKey(r.Name), Data: record.Encode(map[string]string{"receiver": r.ID})}}
}

// Create keeps a new receiver, which is told from then on; an Alertmanager of what fires
// already, too. Of a webhook it returns the secret, the given one or one that it makes;
// but for Made nothing shows it again. Errors: alert.Faults, name_taken, an
// *admission.EarlierError for a call that is a repeat.
func (s *Service) Create(ctx context.Context, call admission.Call, sp Spec) (Receiver, string, error) {
	now, secret := s.now(), sp.Secret
	sp.Secret = ""
	r := Receiver{ID: id.New(id.Receiver, now), Spec: sp, CreatedAt: now, CreatedBy: call.Caller.Actor, UpdatedAt: now, UpdatedBy: call.Caller.Actor}
	if err := s.check(&sp); err != nil {
		return r, "", err
	}
	var kept *secrets
	switch {
	case sp.Kind == KindWebhook:
		key, err := parseSecret(secret)
		if err != nil {
			return r, "", err
		}
		secret = secretText(key)
		kept = &secrets{Keys: []signing{{Key: key, CreatedAt: now}}}
		r.Secrets = kept.fingerprints()
	case secret != "":
		return r, "", alert.Faults{{Pointer: "/secret", Code: alert.CodeConflict, Detail: "is for kind " + KindWebhook}}
	}
	err := s.change(ctx, func(all []Receiver) ([]Receiver, []ledger.Write, []event.Event, error) {
		once, err := admission.Once(ctx, s.Store, call, r.ID)
		if err != nil {
			return nil, nil, nil, err
		}
		if n := len(all); n >= MaxReceivers {
			return nil, nil, nil, alert.Faults{{Code: alert.CodeRange, Detail: fmt.Sprintf("there are %d receivers, the limit is %d", n, MaxReceivers)}}
		}
		if err := nameTaken(all, r.Name, r.ID); err != nil {
			return nil, nil, nil, err
		}
		writes := append(once,
			ledger.Write{Item: receiverItem(&r)}, nameWrite(&r),
			ledger.Write{Item: ledger.Item{Key: record.LaneKey(r.ID), Data: record.Encode(lane{}), Due: s.standingDue(&r, &standing{}, now)}},
			s.audit(call, "receiver.create", r.ID, http.StatusCreated, r.Name),
		)
		if kept != nil {
			writes = append(writes, ledger.Write{Item: ledger.Item{Key: record.ReceiverSecretsKey(r.ID), Data: record.Encode(kept)}})
		}
		return append(all, r), writes, nil, nil
	})
	if err != nil {
		return r, "", fmt.Errorf("create receiver: %w", err)
	}
	r.Revision = 1
	return r, secret, nil
}

// Made returns what Create returned, with the receiver as it is now, for a repeat
// of the call: who lost the answer has no other way to the secret. One that was
// rotated since is not shown. Errors: not_found.
func (s *Service) Made(ctx context.Context, receiverID string) (Receiver, string, error) {
	r, err := s.Receiver(ctx, receiverID)
	if err != nil {
		return r, "", err
	}
	kept, _, err := s.loadSecrets(ctx, r.ID)
	if err != nil || len(kept.Keys) == 0 || !kept.Keys[0].CreatedAt.Equal(r.CreatedAt) {
		return r, "", err
	}
	return r, secretText(kept.Keys[0].Key), nil
}

func stale(r *Receiver, revision int64) error {
	return operation.Refuse("precondition_failed", "receiver %s is at revision %d, not %d", r.Name, r.Revision, revision).With("revision", r.Revision)
}

// Update replaces what is said of a receiver, if it is at the revision (0:
// whichever it is at). Its kind stays. One that is enabled by it is told again, of
// what happens from then on, and of what was left to send. An Alertmanager is told of
// all that fires, by what is said now. What is said already changes nothing, and makes
// nothing due. Errors: alert.Faults, not_found, name_taken, precondition_failed.
func (s *Service) Update(ctx context.Context, call admission.Call, ref string, revision int64, sp Spec) (Receiver, error) {
	var out Receiver
	if sp.Secret != "" {
		return out, alert.Faults{{Pointer: "/secret", Code: alert.CodeConflict, Detail: "is changed by rotate alone"}}
	}
	if err := s.check(&sp); err != nil {
		return out, err
	}
	same := false
	err := s.change(ctx, func(all []Receiver) ([]Receiver, []ledger.Write, []event.Event, error) {
		i, err := find(all, ref)
		if err != nil {
			return nil, nil, nil, err
		}
		was := all[i]
		switch {
		case revision != 0 && revision != was.Revision:
			return nil, nil, nil, stale(&was, revision)
		case sp.Kind != was.Kind && !was.broken:
			return nil, nil, nil, alert.Faults{{Pointer: "/kind", Code: alert.CodeConflict, Detail: "stays what it is: " + was.Kind}}
		}
		if err := nameTaken(all, sp.Name, was.ID); err != nil {
			return nil, nil, nil, err
		}
		r := was
		r.Spec, r.UpdatedAt, r.UpdatedBy = sp, s.now(), call.Caller.Actor
		r.broken = false
		if was.broken || sp.Enabled == nil || *sp.Enabled {
			r.Disabled = nil
		}
		if same = !was.broken && r.Disabled == was.Disabled && bytes.Equal(sp.said(), was.said()); same {
			out = was
			return nil, nil, nil, nil
		}
		if r.Active() && !was.Active() {
			r.EnabledAt = r.UpdatedAt
		}
		writes := []ledger.Write{{Expect: was.Revision, Item: receiverItem(&r)}, s.audit(call, "receiver.update", r.ID, http.StatusOK, r.Name)}
		if r.Name != was.Name {
			named := nameWrite(&r)
			if was.broken { // the name that it had, which may not be known, may be this one
				named.Expect = ledger.AnyVersion
			}
			writes = append(writes, named, ledger.Write{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.ReceiverNameKey(was.Name)}})
		}
		wake, err := s.wake(ctx, r.ID)
		if err != nil {
			return nil, nil, nil, err
		}
		r.Revision++
		all[i], out = r, r
		return all, append(writes, wake...), nil, nil
	})
	if err == nil && same {
		err = s.Store.Ledger.Commit(ctx, s.audit(call, "receiver.update", out.ID, http.StatusOK, out.Name))
	}
	if err != nil {
		return out, fmt.Errorf("update receiver: %w", err)
	}
	return out, nil
}

// Delete deletes a receiver; what was to be sent to it goes with it. Errors:
// not_found, precondition_failed.
func (s *Service) Delete(ctx context.Context, call admission.Call, ref string, revision int64) error {
	err := s.change(ctx, func(all []Receiver) ([]Receiver, []ledger.Write, []event.Event, error) {
		i, err := find(all, ref)
		if err != nil {
			return nil, nil, nil, err
		}
		was := all[i]
		if revision != 0 && revision != was.Revision {
			return nil, nil, nil, stale(&was, revision)
		}
		wake, err := s.wake(ctx, was.ID) // whoever takes the lane empties the outbox
		if err != nil {
			return nil, nil, nil, err
		}
		writes := append([]ledger.Write{
			{Kind: ledger.Delete, Expect: was.Revision, Item: ledger.Item{Key: record.ReceiverKey(was.ID)}},
			{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.ReceiverNameKey(was.Name)}},
			{Kind: ledger.Delete, Expect: ledger.AnyVersion, Item: ledger.Item{Key: record.ReceiverSecretsKey(was.ID)}},
			s.audit(call, "receiver.delete", was.ID, http.StatusNoContent, was.Name),
		}, wake...)
		return slices.Delete(all, i, i+1), writes, nil, nil
	})
	if err != nil {
		return fmt.Errorf("delete receiver: %w", err)
	}
	return nil
}

// Rotate gives a webhook another secret, the given one or one that it makes, and
// returns it; nothing shows it again. The one in force before signs, too, for the
// time of overlap (0: no longer). Two are kept: what signed before those does not.
// Errors: alert.Faults, not_found.
func (s *Service) Rotate(ctx context.Context, call admission.Call, ref, secret string, overlap time.Duration) (Receiver, string, error) {
	var out Receiver
	if overlap < 0 || overlap > MaxOverlap {
		return out, "", alert.Faults{{Pointer: "/overlap", Code: alert.CodeRange, Detail: fmt.Sprintf("must be 0s to %s", alert.Duration(MaxOverlap))}}
	}
	key, err := parseSecret(secret)
	if err != nil {
		return out, "", err
	}
	err = s.change(ctx, func(all []Receiver) ([]Receiver, []ledger.Write, []event.Event, error) {
		i, err := find(all, ref)
		if err != nil {
			return nil, nil, nil, err
		}
		r := all[i]
		if r.Kind != KindWebhook {
			return nil, nil, nil, alert.Faults{{Code: alert.CodeConflict, Detail: "only a webhook has a secret"}}
		}
		if r.broken {
			return nil, nil, nil, operation.Refuse("precondition_failed", "receiver %s cannot be read: replace it first", r.ID)
		}
		kept, version, err := s.loadSecrets(ctx, r.ID)
		if err != nil && !errors.Is(err, errUnreadable) { // of those, nothing is left to sign with
			return nil, nil, nil, err
		}
		wake, err := s.wake(ctx, r.ID)
		if err != nil {
			return nil, nil, nil, err
		}
		now := s.now()
		next := secrets{Keys: []signing{{Key: key, CreatedAt: now}}}
		if len(kept.Keys) > 0 && overlap > 0 {
			old, until := kept.Keys[0], now.Add(overlap)
			old.ExpiresAt = &until
			next.Keys = append(next.Keys, old)
		}
		r.Secrets, r.UpdatedAt, r.UpdatedBy = next.fingerprints(), now, call.Caller.Actor
		writes := []ledger.Write{
			{Expect: r.Revision, Item: receiverItem(&r)},
			{Expect: version, Item: ledger.Item{Key: record.ReceiverSecretsKey(r.ID), Data: record.Encode(next)}},
			s.audit(call, "receiver.rotate", r.ID, http.StatusOK, r.Name),
		}
		r.Revision++
		all[i], out = r, r
		return all, append(writes, wake...), nil, nil
	})
	if err != nil {
		return out, "", fmt.Errorf("rotate secret of receiver: %w", err)
	}
	return out, secretText(key), nil
}
