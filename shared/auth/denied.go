package auth

import (
	"context"
	"errors"
	"strings"
)

// Reason is why a credential was not accepted. It is for the log and the audit
// record; outside, all reasons look the same.
type Reason string

// The reasons.
const (
	ReasonMissing     Reason = "missing"      // no credential
	ReasonMalformed   Reason = "malformed"    // not a credential of any kind known here
	ReasonUnknown     Reason = "unknown"      // no such token, or a key that the issuer does not have
	ReasonWrongSecret Reason = "wrong_secret" // the token exists, the secret is not its own
	ReasonRevoked     Reason = "revoked"
	ReasonExpired     Reason = "expired"
	ReasonIssuer      Reason = "wrong_issuer"
	ReasonAudience    Reason = "wrong_audience"
)

// Errors; match with errors.Is.
var (
	// ErrDenied: the credential was not accepted (401). See DeniedError.
	ErrDenied = errors.New("the credential was not accepted")
	// ErrUnavailable: it cannot be told now whether the credential is good (503).
	ErrUnavailable = errors.New("credentials cannot be checked now")
	// ErrNoToken: there is no token with the id.
	ErrNoToken = errors.New("no such token")
)

// DeniedError is a credential that was not accepted. Its text is the same for
// all reasons.
type DeniedError struct {
	Reason Reason
	Token  string // the id it named, if it named one that exists
}

func (e *DeniedError) Error() string { return ErrDenied.Error() }

// Is makes errors.Is(err, ErrDenied) true.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// Code is the error code of package problem.
func (e *DeniedError) Code() string { return "unauthenticated" }

// unavailableError keeps its cause inside.
type unavailableError struct{ cause error }

func (e *unavailableError) Error() string        { return ErrUnavailable.Error() }
func (e *unavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailableError) Unwrap() error        { return e.cause }
func (e *unavailableError) Code() string         { return "unavailable" }

// noTokenError names the id.
type noTokenError struct{ id string }

func (e *noTokenError) Error() string        { return "no token " + e.id }
func (e *noTokenError) Is(target error) bool { return target == ErrNoToken }
func (e *noTokenError) Code() string         { return "not_found" }

// InvalidError is one fault of a token's specification.
type InvalidError struct {
	Field  string // JSON pointer, RFC 6901
	Detail string
}

func (e *InvalidError) Error() string { return strings.TrimPrefix(e.Field, "/") + ": " + e.Detail }

// Code is the error code of package problem.
func (e *InvalidError) Code() string { return "invalid" }

// Pointer is the field, for package problem.
func (e *InvalidError) Pointer() string { return e.Field }

// Authenticator accepts every kind of bearer credential.
type Authenticator struct {
	Tokens *Store
	OIDC   *Verifier // nil: none is accepted
}

// Authenticate tells whose credential it is. The error matches ErrDenied or
// ErrUnavailable.
func (a *Authenticator) Authenticate(ctx context.Context, bearer string) (Principal, error) {
	switch {
	case bearer == "":
		return Principal{}, &DeniedError{Reason: ReasonMissing}
	case strings.HasPrefix(bearer, tokenPrefix):
		return a.Tokens.Authenticate(ctx, bearer)
	case a.OIDC != nil:
		return a.OIDC.Verify(ctx, bearer)
	}
	return Principal{}, &DeniedError{Reason: ReasonMalformed}
}
