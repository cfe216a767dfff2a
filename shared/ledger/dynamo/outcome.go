package dynamo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/opsplane/opsplane/shared/ledger"
)

// verdict is what one attempt of a commit came to.
type verdict int

const (
	applied    verdict = iota
	refused            // a condition did not hold; nothing was written
	contended          // another transaction was at one of the items; nothing was written
	throttled          // turned away, or never sent; nothing was written
	forbidden          // will be turned away again: no such table, no right; nothing was written
	invalid            // over a limit of DynamoDB; nothing was written
	unanswered         // it may have been applied, or may still be
)

// outcome is a verdict with what it rests on.
type outcome struct {
	verdict verdict
	err     error
	// failed has, when refused, the item that each failed condition met, by the
	// place of its action; an item that does not exist is empty.
	failed map[int]attributes
}

// judge reads the answer of an attempt. sent says whether the request reached
// the HTTP client. Codes are those of AWS: "Error handling with DynamoDB" and
// the errors of UpdateItem and TransactWriteItems.
func judge(err error, sent bool) outcome {
	if err == nil {
		return outcome{verdict: applied}
	}
	var single *types.ConditionalCheckFailedException
	if errors.As(err, &single) {
		return outcome{refused, err, map[int]attributes{0: single.Item}}
	}
	var cancelled *types.TransactionCanceledException
	if errors.As(err, &cancelled) {
		return judgeReasons(err, cancelled.CancellationReasons)
	}
	var dial *net.OpError
	if !sent || errors.As(err, &dial) && dial.Op == "dial" {
		return outcome{verdict: throttled, err: err}
	}
	var api smithy.APIError
	if !errors.As(err, &api) {
		return outcome{verdict: unanswered, err: err}
	}
	switch api.ErrorCode() {
	case "TransactionConflictException":
		return outcome{verdict: contended, err: err}
	case "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "RequestLimitExceeded", "LimitExceededException":
		return outcome{verdict: throttled, err: err}
	case "ValidationException", "ItemCollectionSizeLimitExceededException":
		return outcome{verdict: invalid, err: err}
	case "TransactionInProgressException": // the same token's earlier request
		return outcome{verdict: unanswered, err: err}
	}
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) && response.HTTPStatusCode() >= 400 && response.HTTPStatusCode() < 500 {
		return outcome{verdict: forbidden, err: err}
	}
	return outcome{verdict: unanswered, err: err}
}

// judgeReasons reads why a transaction was cancelled. A failed condition
// decides whatever else there is: trying again would not make it hold. Then a
// limit, then throttling, which wants a longer wait than contention.
func judgeReasons(err error, reasons []types.CancellationReason) outcome {
	out := outcome{verdict: throttled, err: err}
	codes := make([]string, len(reasons))
	for i, r := range reasons {
		if r.Code != nil {
			codes[i] = *r.Code
		}
		if codes[i] == string(types.BatchStatementErrorCodeEnumConditionalCheckFailed) {
			if out.failed == nil {
				out.failed = map[int]attributes{}
			}
			out.failed[i] = r.Item
		}
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(codes, func(c string) bool { return slices.Contains(names, c) })
	}
	switch {
	case out.failed != nil:
		out.verdict = refused
	case has("ValidationError", "ItemCollectionSizeLimitExceeded"):
		out.verdict = invalid
	case has("ThrottlingError", "ProvisionedThroughputExceeded"):
	case has("TransactionConflict"):
		out.verdict = contended
	}
	return out
}

// readFailure is what a caller sees of a failed read.
func readFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errGarbled) || errors.Is(err, ledger.ErrUnavailable) {
		return err
	}
	var api smithy.APIError
	if errors.As(err, &api) && api.ErrorCode() == "ValidationException" {
		return fmt.Errorf("%w: %w", ledger.ErrInvalid, err)
	}
	return fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
}
