package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
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

// answer names the record from which the batch must come again, if any must.
func (b *batch) answer(records []json.RawMessage) (events.DynamoDBEventResponse, error) {
	res := events.DynamoDBEventResponse{BatchItemFailures: []events.DynamoDBBatchItemFailure{}}
	if b.first == len(records) {
		return res, nil
	}
	seq := identify(records[b.first]).sequence
	if seq == "" { // nothing to go on from: the whole batch
		return res, fmt.Errorf("record %d of %d failed and has no sequence number", b.first+1, len(records))
	}
	res.BatchItemFailures = append(res.BatchItemFailures, events.DynamoDBBatchItemFailure{ItemIdentifier: seq})
	return res, nil
}

// reader reads records of the table's stream.
type reader struct {
	store  *record.Store
	known  func(events.DynamoDBEventRecord) (ledger.Change, error)
	logger *slog.Logger
}

// read reads the records, and keeps those that cannot be read.
func (r reader) read(ctx context.Context, records []json.RawMessage) batch {
	b := batch{at: map[ledger.Key]int{}, first: len(records)}
	for i, raw := range records {
		c, err := r.decode(raw)
		if err != nil {
			b.unreadable++
			r.logger.ErrorContext(ctx, "a stream record cannot be read", "sequence", identify(raw).sequence, "err", err)
			if err := r.keep(ctx, raw, err); err != nil {
				r.logger.ErrorContext(ctx, "it cannot be kept either, and must come again", "sequence", identify(raw).sequence, "err", err)
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
func (r reader) decode(raw json.RawMessage) (c ledger.Change, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decode record: %v", p)
		}
	}()
	var rec events.DynamoDBEventRecord
	if err := json.Unmarshal(raw, &rec); err != nil {
		return c, fmt.Errorf("decode record: %w", err)
	}
	if rec.EventSource != sourceStream {
		return c, fmt.Errorf("decode record: its source is %.64q", rec.EventSource)
	}
	return r.known(rec)
}

// keep keeps an unreadable record where people look for dead letters, once.
func (r reader) keep(ctx context.Context, raw json.RawMessage, why error) error {
	reason := fmt.Sprintf("%.500s", why)
	if !operation.CleanText(reason) {
		reason = fmt.Sprintf("%.500q", reason)
	}
	return sweep.Keep(ctx, r.store, queue.DeadLetter{ID: identify(raw).unique(raw), Queue: StreamQueue, Body: describe(raw),
		Reason: "unreadable: " + reason, At: r.store.Now()})
}
