package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/opsplane/opsplane/shared/queue"
)

// ErrRefused: AWS does not accept the credentials, or not for this queue: those
// of another cluster's agent, expired ones, none. Trying again does not help.
var ErrRefused = errors.New("AWS credentials refused")

// RefusedError says whose credentials were refused what. errors.Is tells it as
// ErrRefused.
type RefusedError struct {
	Action string // such as "sqs:ReceiveMessage"
	Queue  string // the queue's name or URL
	// Principal is who asked: the ARN that AWS names, else the access key's id
	// but for its middle, else empty.
	Principal string
	Code      string // AWS's error code
	Err       error
}

func (e *RefusedError) Error() string {
	who := e.Principal
	if who == "" {
		who = "nobody (no credentials found)"
	}
	return fmt.Sprintf("%s: %s is not allowed %s on %s: are these the credentials for this cluster's queue? %v", e.Code, who, e.Action, e.Queue, e.Err)
}

// Unwrap gives ErrRefused and AWS's own error.
func (e *RefusedError) Unwrap() []error { return []error{ErrRefused, e.Err} }

// EntryError is what SQS says of one entry of a batch.
type EntryError struct {
	Code, Message string
	// Sender: the entry itself is at fault, so that sending it again is of no
	// use.
	Sender bool
}

func (e *EntryError) Error() string { return "entry refused: " + e.Code + ": " + e.Message }

// queryPrefix is how error codes begin that come from the query protocol's
// days; the SDK shows a code with or without it.
const queryPrefix = "AWS.SimpleQueueService."

func codeOf(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return strings.TrimPrefix(api.ErrorCode(), queryPrefix)
	}
	return ""
}

// staleCode tells the codes of a receipt that is good no more. AWS has three
// for it: which one depends on what became of the message (Amazon SQS API
// Reference, ChangeMessageVisibility and DeleteMessage).
func staleCode(code string) bool {
	return slices.Contains([]string{"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"}, strings.TrimPrefix(code, queryPrefix))
}

var (
	noQueueCodes = []string{"QueueDoesNotExist", "NonExistentQueue", "InvalidAddress"}
	refusedCodes = []string{
		"AccessDenied", "AccessDeniedException", "KmsAccessDenied", "KMS.AccessDeniedException", "InvalidSecurity",
		"UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch", "IncompleteSignature",
		"ExpiredToken", "ExpiredTokenException", "MissingAuthenticationToken", "OptInRequired", "NotAuthorized",
	}
	invalidCodes = []string{
		"InvalidMessageContents", "InvalidParameterValue", "InvalidParameterCombination", "InvalidAttributeName", "InvalidAttributeValue",
		"MissingParameter", "ValidationError", "BatchRequestTooLong", "TooManyEntriesInBatchRequest", "EmptyBatchRequest", "UnsupportedOperation",
	}
	throttleCodes = []string{"RequestThrottled", "Throttling", "ThrottlingException", "OverLimit", "KmsThrottled", "KMS.ThrottlingException"}
)

// failure types an error of the SDK: queue.ErrNoQueue, queue.ErrStaleReceipt,
// queue.ErrInvalid, ErrRefused, else queue.ErrUnavailable: throttled, an error
// of the service, or no answer at all. A caller that went away gets the error of
// its context.
func (c caller) failure(ctx context.Context, action, name string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("sqs %s %s: %w", action, name, ctx.Err())
	}
	code := codeOf(err)
	kind := queue.ErrUnavailable
	entry, isEntry := errors.AsType[*EntryError](err)
	switch {
	case errors.Is(err, queue.ErrStaleReceipt):
		return fmt.Errorf("sqs %s %s: %w", action, name, err)
	case slices.Contains(noQueueCodes, code):
		kind = queue.ErrNoQueue
	case slices.Contains(throttleCodes, code):
	case slices.Contains(refusedCodes, code), statusOf(err) == http.StatusForbidden, statusOf(err) == http.StatusUnauthorized:
		return c.refused(ctx, action, name, code, err)
	case slices.Contains(invalidCodes, code), isEntry && entry.Sender:
		kind = queue.ErrInvalid
	}
	return fmt.Errorf("sqs %s %s: %w: %w", action, name, kind, err)
}

func statusOf(err error) int {
	if r, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		return r.HTTPStatusCode()
	}
	return 0
}

// refused finds out who asked. AWS names the principal in its text ("User: ARN
// is not authorized to ..."); what is read out of it is shown and decides
// nothing.
func (c caller) refused(ctx context.Context, action, name, code string, err error) error {
	e := &RefusedError{Action: "sqs:" + action, Queue: name, Code: code, Err: err}
	if _, rest, ok := strings.Cut(err.Error(), "User: "); ok {
		e.Principal, _, _ = strings.Cut(rest, " ")
	}
	if p := c.client.Options().Credentials; e.Principal == "" && p != nil {
		if creds, err := p.Retrieve(ctx); err == nil {
			e.Principal = "access key " + masked(creds.AccessKeyID)
		}
	}
	return e
}

// masked keeps the ends of an access key's id: enough to know it by.
func masked(id string) string {
	if len(id) < 12 {
		return "…"
	}
	return id[:4] + "…" + id[len(id)-4:]
}
