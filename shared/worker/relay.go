package worker

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/relay"
)

// Relay deals with the table's stream.
type Relay struct {
	Relay *relay.Relay
	// Decode reads a record.
	Decode  func(events.DynamoDBEventRecord) (ledger.Change, error)
	Logger  *slog.Logger
	Metrics *cloud.Metrics // nil: none
}

// Handle deals with one batch: operations are dispatched, journals published,
// streams put on the bus. A record that cannot be read is kept as a dead letter
// and passed over.
//
// It answers the first record from which the batch must come again, when the
// ledger was unavailable or time ran out: Lambda goes on from there, and an
// item's records stay in order (AWS Lambda Developer Guide, "Configuring partial
// batch response with DynamoDB and Lambda"). What is repeated finds itself done.
// A bus that is unavailable holds nothing up: the sweep mends it.
func (h *Relay) Handle(ctx context.Context, e StreamEvent) (events.DynamoDBEventResponse, error) {
	if len(e.Records) == 0 {
		return events.DynamoDBEventResponse{}, fmt.Errorf("%w: no records", ErrUnknownEvent)
	}
	ctx, cancel := within(ctx)
	defer cancel()
	b := reader{h.Relay.Store, h.Decode, h.Logger}.read(ctx, e.Records)
	again, err := h.Relay.Follow(ctx, b.changes)
	b.repeat(again)
	if err != nil {
		h.Logger.WarnContext(ctx, "a batch is not dealt with to its end", "records", len(e.Records), "err", err)
	}
	late := 0
	if err := h.Relay.BusFeed(ctx, b.changes); err != nil {
		late = 1
		h.Logger.WarnContext(ctx, "a stream is not on the bus: the sweep puts it there", "err", err)
	}
	h.measure(ctx, &b, late)
	return b.answer(e.Records)
}

func (h *Relay) measure(ctx context.Context, b *batch, late int) {
	var ms []cloud.Metric
	if b.unreadable > 0 {
		ms = append(ms, count("StreamUnreadable", b.unreadable))
	}
	if late > 0 {
		ms = append(ms, count("BusLate", late))
	}
	if err := h.Metrics.Put(ms...); err != nil {
		h.Logger.WarnContext(ctx, "metrics not written", "err", err)
	}
}
