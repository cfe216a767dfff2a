package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
)

// StreamQueue is the queue that dead letters of the table's stream name as
// theirs.
const StreamQueue = "stream"

// StreamEvent is a batch of records of the table's stream. They are taken apart
// one by one, so that one that cannot be read spoils no other.
type StreamEvent struct {
	Records []json.RawMessage `json:"Records"`
}

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
	res := events.DynamoDBEventResponse{BatchItemFailures: []events.DynamoDBBatchItemFailure{}}
	if len(e.Records) == 0 {
		return res, fmt.Errorf("%w: no records", ErrUnknownEvent)
	}
	ctx, cancel := within(ctx)
	defer cancel()
	b := h.read(ctx, e.Records)
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
	if b.first == len(e.Records) {
		return res, nil
	}
	seq := identify(e.Records[b.first]).sequence
	if seq == "" { // nothing to go on from: the whole batch
		return res, fmt.Errorf("record %d of %d failed and has no sequence number", b.first+1, len(e.Records))
	}
	res.BatchItemFailures = append(res.BatchItemFailures, events.DynamoDBBatchItemFailure{ItemIdentifier: seq})
	return res, nil
}

// batch is what a batch of records tells of.
type batch struct {
	changes    []ledger.Change
	at         map[ledger.Key]int // the first record about each item
	first      int                // the first record that must come again
	unreadable int
}

// repeat has a batch come again from the first record about the items.
func (b *batch) repeat(changes []ledger.Change) {
	for _, c := range changes {
		b.first = min(b.first, b.at[c.Key])
	}
}

// read reads the records, and keeps those that cannot be read.
func (h *Relay) read(ctx context.Context, records []json.RawMessage) batch {
	b := batch{at: map[ledger.Key]int{}, first: len(records)}
	for i, raw := range records {
		c, err := h.decode(raw)
		if err != nil {
			b.unreadable++
			h.Logger.ErrorContext(ctx, "a stream record cannot be read", "sequence", identify(raw).sequence, "err", err)
			if err := h.keep(ctx, raw, err); err != nil {
				h.Logger.ErrorContext(ctx, "it cannot be kept either, and must come again", "sequence", identify(raw).sequence, "err", err)
				b.first = min(b.first, i)
			}
			continue
		}
		if _, ok := b.at[c.Key]; !ok {
			b.at[c.Key] = i
		}
		b.changes = append(b.changes, c)
	}
	return b
}

// decode reads one record. The library panics on some that are malformed, such
// as a binary set of something else than strings.
func (h *Relay) decode(raw json.RawMessage) (c ledger.Change, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decode record: %v", p)
		}
	}()
	var r events.DynamoDBEventRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return c, fmt.Errorf("decode record: %w", err)
	}
	if r.EventSource != sourceStream {
		return c, fmt.Errorf("decode record: its source is %.64q", r.EventSource)
	}
	return h.Decode(r)
}

// keep keeps an unreadable record where people look for dead letters, once.
func (h *Relay) keep(ctx context.Context, raw json.RawMessage, why error) error {
	reason := fmt.Sprintf("%.500s", why)
	if !operation.CleanText(reason) {
		reason = fmt.Sprintf("%.500q", reason)
	}
	return sweep.Keep(ctx, h.Relay.Store, queue.DeadLetter{ID: identify(raw).unique(raw), Queue: StreamQueue, Body: describe(raw),
		Reason: "unreadable: " + reason, At: h.Relay.Store.Now()})
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
