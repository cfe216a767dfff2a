package eventbridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/smithy-go"

	"github.com/opsplane/opsplane/shared/bus"
)

// ErrRefused: AWS does not accept the credentials, or not for this bus. Trying
// again does not help.
var ErrRefused = errors.New("AWS credentials refused")

// EntryError is what EventBridge says of one entry in an answer that is
// otherwise a success. errors.Is tells its kind: bus.ErrInvalid, ErrRefused,
// else bus.ErrUnavailable.
type EntryError struct {
	Code, Message string // Amazon EventBridge API Reference, PutEventsResultEntry
}

func (e *EntryError) Error() string { return "entry not accepted: " + e.Code + ": " + e.Message }

// Unwrap gives the kind.
func (e *EntryError) Unwrap() error { return kindOf(e.Code) }

// retryable: whatever is not told to be the entry's or the caller's fault. The
// reference names InternalFailure and ThrottlingException.
func (e *EntryError) retryable() bool { return kindOf(e.Code) == bus.ErrUnavailable }

var (
	invalidCodes = []string{"InvalidArgument", "MalformedDetail", "ValidationException", "ValidationError", "RedactionFailure"}
	largeCodes   = []string{"RequestEntityTooLarge", "RequestEntityTooLargeException", "PayloadTooLarge"}
	refusedCodes = []string{
		"AccessDenied", "AccessDeniedException", "InvalidAccountIdException", "NotAuthorizedForSourceException", "NotAuthorizedForDetailTypeException",
		"UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignature",
		"ExpiredToken", "ExpiredTokenException", "MissingAuthenticationToken", "MissingAuthenticationTokenException", "NotAuthorized", "OptInRequired",
	}
)

func kindOf(code string) error {
	switch {
	case slices.Contains(invalidCodes, code):
		return bus.ErrInvalid
	case slices.Contains(largeCodes, code):
		return bus.ErrTooLarge
	case slices.Contains(refusedCodes, code):
		return ErrRefused
	}
	return bus.ErrUnavailable
}

// failure types the error of a whole request; see Publish. A context that ended
// is bus.ErrUnavailable and its own error, as on every engine.
func failure(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("put events on %s: %w: %w", name, bus.ErrUnavailable, ctx.Err())
	}
	kind := bus.ErrUnavailable
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		kind = kindOf(api.ErrorCode())
	}
	return fmt.Errorf("put events on %s: %w: %w", name, kind, err)
}
