// Package control is what people and programs do to what is there already:
// cancel, retry and resolve operations, record repairs made by hand, and send
// dead letters again. Admission makes operations; this package never does.
//
// Each call is one commit: the change, its journal entries, its audit record
// and its idempotency key. A refusal is an *operation.Refusal, whose code
// package problem maps to HTTP.
package control

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Limits of texts, in bytes.
const (
	MaxReasonBytes   = admission.MaxReasonBytes
	MaxEvidenceBytes = 4096
	MaxRunbookBytes  = 2048
)

// Service carries the calls out. It holds no state of its own.
type Service struct {
	Store *record.Store
}

// audit is the record of an accepted call.
func (s *Service) audit(call admission.Call, action, resource string, status int, reason string) ledger.Write {
	return record.AuditWrite(record.Audit{At: s.Store.Now().UTC(), Actor: call.Caller.Actor, Method: call.Method, Path: call.Path,
		Action: action, Resource: resource, Status: status, Reason: reason, CorrelationID: call.CorrelationID, RemoteAddr: call.RemoteAddr})
}

// visible refuses what belongs to a cluster that the caller is not to see, as
// if it were not there.
func visible(call admission.Call, cluster, what, name string) error {
	if call.Caller.May(cluster) {
		return nil
	}
	return operation.Refuse("not_found", "there is no %s %s", what, name)
}

// missing turns a store's "not found" into the refusal.
func missing(err error, what, name string) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return operation.Refuse("not_found", "there is no %s %s", what, name)
	}
	return err
}

// conflict is the refusal that names who holds a resource.
func (s *Service) conflict(ctx context.Context, locked *operation.LockedError) error {
	h := locked.Holder
	r := operation.Refuse("operation_conflict", "%s is held by %s %s of %s", locked.Resource, h.Type, h.Operation, h.Actor.ID)
	r.OperationID = h.Operation
	holder := map[string]any{"operation_id": h.Operation, "type": h.Type, "actor": h.Actor, "resource": locked.Resource,
		"mode": h.Mode, "since": h.Since, "link": "/v1/operations/" + h.Operation}
	if op, err := s.Store.Load(ctx, h.Operation); err == nil {
		holder["phase"] = op.State.Phase
	}
	return r.With("holder", holder)
}

// text checks one text of a request.
func text(errs []operation.FieldError, name, v string, required bool, limit int) []operation.FieldError {
	fail := func(code, format string, args ...any) []operation.FieldError {
		return append(errs, operation.FieldError{Pointer: "/" + name, Code: code, Detail: fmt.Sprintf(format, args...)})
	}
	switch {
	case strings.TrimSpace(v) == "" && required:
		return fail("required", "is required")
	case len(v) > limit:
		return fail("max_length", "has %d bytes, the limit is %d", len(v), limit)
	case !operation.CleanText(v):
		return fail("characters", "must not hold control characters")
	case operation.SecretShaped(v):
		return fail("secret_in_request", "looks like a credential; name a secret, never its value")
	}
	return errs
}

// invalid turns faults into the refusal that names them all, or nil.
func invalid(errs []operation.FieldError) error {
	if len(errs) == 0 {
		return nil
	}
	r := operation.Invalid(errs...)
	for _, e := range errs {
		if e.Code == "secret_in_request" {
			r.ErrorCode = "secret_in_request"
		}
	}
	return r
}
