package inproc

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/aws/aws-lambda-go/events"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/infra/awstest/bill"
	"github.com/opsplane/opsplane/shared/cloud/outward"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
	"github.com/opsplane/opsplane/shared/worker"
)

const (
	streamBatch = 100
	queueBatch  = 10
	visibility  = 60 * time.Second
)

// streamHandler is a function behind the table's stream.
type streamHandler func(context.Context, worker.StreamEvent) (events.DynamoDBEventResponse, error)

// relay is the function relay; it takes what asked for the feed, less the deletes,
// which never do.
func (d *Deployment) relay() func(context.Context) {
	p := d.function("relay", d.Operations)
	h := &worker.Relay{Relay: p.Relay(outward.Bus(p)), Decode: dynamo.DecodeChange, Logger: p.Log, Metrics: p.Metrics}
	return d.stream(d.Operations, h.Handle, func(c ledger.Change) bool { return !c.Deleted })
}

// react is the function react; it takes the heads of streams, the mark of the rules
// and the ends of clusters.
func (d *Deployment) react() func(context.Context) {
	p := d.function("react", d.Alerts)
	r := &react.Reactor{Store: p.Store, Logger: p.Log}
	n := &notify.Service{Store: p.Store, Logger: p.Log}
	h := &worker.React{Store: p.Store, Follow: worker.Telling(r.Follow, n.Follow), Decode: dynamo.DecodeChange, Logger: p.Log, Metrics: p.Metrics}
	return d.stream(d.Alerts, h.Handle, func(c ledger.Change) bool {
		streams, all := record.Wakes([]ledger.Change{c})
		return !c.Deleted && (all || len(streams) > 0)
	})
}

// stream is a mapping from the table's stream to a function, with its filter.
func (d *Deployment) stream(m *bill.Meter, handle streamHandler, filter func(ledger.Change) bool) func(context.Context) {
	feed := d.streamFeed()
	var sequence atomic.Int64
	return func(ctx context.Context) {
		at := ""
		for ctx.Err() == nil {
			changes, next, err := feed.Changes(ctx, at, streamBatch, 5*time.Second)
			if err != nil {
				wait(ctx, 200*time.Millisecond)
				continue
			}
			at = next
			changes = slices.DeleteFunc(changes, func(c ledger.Change) bool { return !filter(c) })
			if len(changes) == 0 {
				continue
			}
			for _, batch := range d.opts.Faults.batches(changes) {
				d.deliver(ctx, m, handle, batch, &sequence)
			}
		}
	}
}

// deliver gives a function a batch until it takes it, from the record that it names.
func (d *Deployment) deliver(ctx context.Context, m *bill.Meter, handle streamHandler, changes []ledger.Change, sequence *atomic.Int64) {
	records := make([]json.RawMessage, len(changes))
	for i, c := range changes {
		records[i] = streamRecord(c, sequence.Add(1))
	}
	records = d.opts.Faults.spoiled(records)
	for len(records) > 0 && ctx.Err() == nil {
		var res events.DynamoDBEventResponse
		var err error
		m.Invoke(ctx, func(ctx context.Context) {
			d.opts.Faults.invoke(ctx, func(ctx context.Context) { res, err = handle(ctx, worker.StreamEvent{Records: records}) })
		})
		switch {
		case err == nil && len(res.BatchItemFailures) == 0:
			return
		case err == nil:
			from := slices.IndexFunc(records, func(r json.RawMessage) bool { return sequenceOf(r) == res.BatchItemFailures[0].ItemIdentifier })
			records = records[max(from, 0):]
		}
		d.Redelivered.Add(1)
		wait(ctx, 100*time.Millisecond)
	}
}

func streamRecord(c ledger.Change, sequence int64) json.RawMessage {
	b, err := json.Marshal(map[string]any{"eventID": fmt.Sprint(sequence), "eventName": "MODIFY", "eventSource": "aws:dynamodb", "eventVersion": "1.1",
		"dynamodb": map[string]any{"SequenceNumber": strconv.FormatInt(sequence, 10),
			"Keys":     map[string]any{"pk": map[string]string{"S": c.PK}, "sk": map[string]string{"S": c.SK}},
			"NewImage": map[string]any{"pk": map[string]string{"S": c.PK}, "sk": map[string]string{"S": c.SK}, "v": map[string]string{"N": strconv.FormatInt(c.Version, 10)}}}})
	if err != nil {
		panic(err) // it is made of strings
	}
	return b
}

func sequenceOf(r json.RawMessage) string {
	var v struct {
		Dynamodb struct{ SequenceNumber string } `json:"dynamodb"`
	}
	_ = json.Unmarshal(r, &v) // made by streamRecord
	return v.Dynamodb.SequenceNumber
}

// wakes is the scheduled rule and the mapping from the queue of wake-ups to
// sweep.
func (d *Deployment) wakes() func(context.Context) {
	make := func(m *bill.Meter) *worker.Sweep {
		p := d.function("sweep", m)
		r := &react.Reactor{Store: p.Store, Logger: p.Log}
		n := &notify.Service{Store: p.Store, Logger: p.Log}
		follow, lanes := worker.Telling(r.Follow, n.Follow), &worker.Lanes{Deliver: n.Deliver, Logger: p.Log}
		s := p.Sweep(p.Relay(outward.Bus(p)))
		s.React, s.Notify = worker.Timers(follow), lanes.Found
		return &worker.Sweep{Sweep: s, Judge: follow, Lanes: lanes, Logger: p.Log, Metrics: p.Metrics}
	}
	onWake, onTick := make(d.Operations), make(d.Idle)
	return func(ctx context.Context) {
		go d.poll(ctx, sweep.WakeQueue, func(ctx context.Context, e events.SQSEvent) (events.SQSEventResponse, error) {
			raw, err := json.Marshal(e)
			if err != nil {
				return events.SQSEventResponse{}, err
			}
			res, err := onWake.Handle(ctx, raw)
			if out, ok := res.(events.SQSEventResponse); ok {
				return out, err
			}
			return events.SQSEventResponse{}, err
		})
		for wait(ctx, d.opts.Tick) {
			raw, err := json.Marshal(events.CloudWatchEvent{Source: "aws.events", DetailType: "Scheduled Event", Time: time.Now().UTC(), Detail: json.RawMessage("{}")})
			if err != nil {
				panic(err)
			}
			d.Idle.Invoke(ctx, func(ctx context.Context) { _, _ = onTick.Handle(ctx, raw) }) // the next tick takes up what failed
		}
	}
}

// plans is the mapping from the plane's queue to plane.
func (d *Deployment) plans() func(context.Context) {
	p := d.function("plane", d.Operations)
	h := &worker.Plane{Plans: p.Plans(), Queue: p.Queue, Logger: p.Log}
	return func(ctx context.Context) { d.poll(ctx, relay.PlaneQueue, h.Handle) }
}

// poll is Lambda's poller of a queue: a batch is deleted but for the messages
// that its function names.
func (d *Deployment) poll(ctx context.Context, name string, handle func(context.Context, events.SQSEvent) (events.SQSEventResponse, error)) {
	q := sqs.New(sqs.Options{Client: awssqs.NewFromConfig(d.plain), Prefix: d.name + "-", Logger: d.Plane.Log}) // Lambda's own calls are added here
	for ctx.Err() == nil {
		got, err := q.Receive(ctx, name, queueBatch, 2*time.Second, visibility)
		if err != nil {
			wait(ctx, 200*time.Millisecond)
			continue
		}
		if len(got) == 0 {
			continue
		}
		d.Operations.Add(bill.SQSRequest, 1)
		ms := d.opts.Faults.messages(name, got)
		e, receipts := events.SQSEvent{}, map[string]string{}
		for _, m := range got {
			receipts[m.ID] = m.Receipt
		}
		for _, m := range ms {
			e.Records = append(e.Records, events.SQSMessage{MessageId: m.ID, ReceiptHandle: m.Receipt, Body: string(m.Body), EventSource: "aws:sqs",
				Attributes: map[string]string{"ApproximateReceiveCount": strconv.Itoa(m.Receives)}})
		}
		if len(ms) > 0 {
			var res events.SQSEventResponse
			d.Operations.Invoke(ctx, func(ctx context.Context) {
				d.opts.Faults.invoke(ctx, func(ctx context.Context) { res, err = handle(ctx, e) })
			})
			for _, f := range res.BatchItemFailures {
				delete(receipts, f.ItemIdentifier)
			}
		}
		if err == nil && len(receipts) > 0 {
			d.Operations.Add(bill.SQSRequest, 1)
			_ = q.Delete(context.WithoutCancel(ctx), name, slices.Collect(maps.Values(receipts))...) // what is left comes again
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
