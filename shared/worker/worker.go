// Package worker is what the event-driven functions do with their events: relay
// with the table's stream, sweep with ticks and wake-ups, plane with its queue.
// A function's main makes a handler and starts it; the handlers say which record
// or message must come again, and leave everything else to the domain.
//
// Each event comes at least once, some late and some never: the domain's commits
// are conditional, so that a handler may be ended at any point and begin again.
package worker

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/cloud"
)

// ErrUnknownEvent: the event is of no shape that the function is wired to.
var ErrUnknownEvent = errors.New("unknown event")

// Sources of events, as they name themselves.
const (
	sourceStream = "aws:dynamodb"
	sourceQueue  = "aws:sqs"
)

// spare is how long before the function is stopped a handler ends by itself, to
// answer what it did not get done.
const spare = 2 * time.Second

// within is the invocation's context, ending a little before Lambda ends it.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	if at, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, at.Add(-spare))
	}
	return context.WithCancel(ctx)
}

// fromQueue tells whether every message came from SQS.
func fromQueue(ms []events.SQSMessage) bool {
	for _, m := range ms {
		if m.EventSource != sourceQueue {
			return false
		}
	}
	return len(ms) > 0
}

// answer names the messages that must come again. Lambda takes null, where an
// empty list is meant, for a failure of the whole batch (AWS Lambda Developer
// Guide, "Implementing partial batch responses" for SQS).
func answer(failed []string) events.SQSEventResponse {
	res := events.SQSEventResponse{BatchItemFailures: make([]events.SQSBatchItemFailure, len(failed))}
	for i, id := range failed {
		res.BatchItemFailures[i].ItemIdentifier = id
	}
	return res
}

// count is a metric that counts.
func count(name string, n int) cloud.Metric {
	return cloud.Metric{Name: name, Unit: cloud.Count, Value: float64(n)}
}
