package admission

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// Fingerprint is the same for requests that say the same; in is what was read of
// the request.
func Fingerprint(in any) (string, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return "", fmt.Errorf("fingerprint request: %w", err)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:]), nil
}

// Earlier looks the call's idempotency key up: the resource of an earlier call
// with the same fingerprint, "" when there was none or the call has no key. An
// earlier call with another one is refused (idempotency_key_reused).
func Earlier(ctx context.Context, st *record.Store, call Call, fingerprint string) (resource string, err error) {
	if call.IdempotencyKey == "" {
		return "", nil
	}
	rec, err := st.Idempotency(ctx, call.Caller.Actor.ID, call.Method, call.Path, call.IdempotencyKey)
	if errors.Is(err, ledger.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look up idempotency key: %w", err)
	}
	if rec.Fingerprint != fingerprint {
		r := operation.Refuse("idempotency_key_reused", "the Idempotency-Key was used for another request")
		if id.Valid(id.Operation, rec.Resource) {
			r.OperationID = rec.Resource
		}
		return "", r
	}
	return rec.Resource, nil
}

// Keep returns the write that keeps the call's idempotency key for what it makes
// or does, if it has one. It belongs into the commit of that, which conflicts when
// another call with the key was faster.
func Keep(st *record.Store, call Call, fingerprint, resource string) []ledger.Write {
	if call.IdempotencyKey == "" {
		return nil
	}
	return []ledger.Write{st.IdempotencyWrite(call.Caller.Actor.ID, call.Method, call.Path, call.IdempotencyKey,
		record.Idempotency{Fingerprint: fingerprint, Resource: resource, At: st.Now().UTC()})}
}

// EarlierError says that nothing was made: an earlier call with the same
// idempotency key, which asked for the same, made the resource.
type EarlierError struct{ Resource string }

func (e *EarlierError) Error() string { return "an earlier call with the key made " + e.Resource }

// Once is Keep for a call that carries its fingerprint, after a look at the key:
// an *EarlierError when it was used for the same before. Each try of a commit asks
// anew.
func Once(ctx context.Context, st *record.Store, call Call, resource string) ([]ledger.Write, error) {
	if call.IdempotencyKey != "" && call.Fingerprint == "" {
		return nil, errors.New("keep idempotency key: the call has no fingerprint")
	}
	earlier, err := Earlier(ctx, st, call, call.Fingerprint)
	if err != nil {
		return nil, err
	}
	if earlier != "" {
		return nil, &EarlierError{earlier}
	}
	return Keep(st, call, call.Fingerprint, resource), nil
}
