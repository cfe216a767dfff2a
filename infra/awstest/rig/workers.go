package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/cloud/outward"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
	"github.com/opsplane/opsplane/shared/worker"
)

// Provision makes a table, queues and a bus by the SDK, for a local AWS that
// cannot deploy the template.
func Provision(ctx context.Context, endpoint, stage string) (Stack, error) {
	name := "opsplane-" + stage
	s := Stack{Endpoint: endpoint, Stage: stage, Table: name, Bus: name, Prefix: name + "-"}
	c, err := Configuration(ctx, endpoint)
	if err != nil {
		return s, err
	}
	if err := dynamo.Create(ctx, dynamodb.NewFromConfig(c), s.Table); err != nil {
		return s, err
	}
	if _, err := eventbridge.NewFromConfig(c).CreateEventBus(ctx, &eventbridge.CreateEventBusInput{Name: &s.Bus}); err != nil {
		return s, fmt.Errorf("create bus %s: %w", s.Bus, err)
	}
	p, err := s.plane(c)
	if err != nil {
		return s, err
	}
	for _, q := range []string{sqs.Dead, relay.PlaneQueue, sweep.WakeQueue} {
		if err := p.Queue.Ensure(ctx, q); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s Stack) plane(c aws.Config) (*cloud.Plane, error) {
	return cloud.New(cloud.Config{Stage: s.Stage, Table: s.Table, QueuePrefix: s.Prefix, Bus: s.Bus, Logger: slog.New(slog.NewJSONHandler(io.Discard, nil))}, c)
}

// Workers does in this process what the stream, the schedule and the queues have
// functions do, until ctx ends: for a local AWS that runs none. What fails comes
// again, as it would there.
func (s Stack) Workers(ctx context.Context) (wait func(), err error) {
	c, err := Configuration(ctx, s.Endpoint)
	if err != nil {
		return nil, err
	}
	p, err := s.plane(c)
	if err != nil {
		return nil, err
	}
	feed, err := dynamo.NewFeed(dynamo.FeedOptions{Client: dynamodb.NewFromConfig(c), Streams: dynamodbstreams.NewFromConfig(c), Table: s.Table})
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	ring := p.Relay(outward.Bus(p))
	reactor, tell := &react.Reactor{Store: p.Store, Logger: p.Log}, &notify.Service{Store: p.Store, Logger: p.Log}
	follow := worker.Telling(reactor.Follow, tell.Follow)
	judge := &worker.React{Store: p.Store, Follow: follow, Logger: p.Log}
	wg.Go(func() {
		for at := ""; ctx.Err() == nil; {
			changes, next, err := feed.Changes(ctx, at, 100, time.Second)
			if err == nil {
				_, derr := ring.DispatchFeed(ctx, changes)
				_, perr := ring.PublishFeed(ctx, changes)
				err = errors.Join(derr, perr, ring.BusFeed(ctx, changes), feedReact(ctx, judge, changes))
			}
			if err != nil {
				pause(ctx, 200*time.Millisecond)
				continue
			}
			at = next
		}
	})
	wg.Go(func() {
		due := p.Sweep(ring)
		due.React, due.Notify = worker.Timers(follow), tell.Deliver
		for pause(ctx, 500*time.Millisecond) {
			_, _ = due.Run(ctx)         // what failed is due again
			_, _ = due.DeadLetters(ctx) // likewise
		}
	})
	wg.Go(func() {
		for plans := p.Plans(); ctx.Err() == nil; {
			ms, err := p.Queue.Receive(ctx, relay.PlaneQueue, queue.MaxBatch, 5*time.Second, time.Minute)
			for _, m := range ms {
				if plans.Take(ctx, p.Queue, m) == nil {
					_ = p.Queue.Delete(ctx, relay.PlaneQueue, m.Receipt) // it comes again and finds itself done
				}
			}
			if err != nil {
				pause(ctx, time.Second)
			}
		}
	})
	return wg.Wait, nil
}

// feedReact has function react's handler deal with records that the feed has read. It
// is given them in Lambda's form, with their places by which it finds them again. The
// error says that some must come again.
func feedReact(ctx context.Context, h *worker.React, changes []ledger.Change) error {
	if len(changes) == 0 {
		return nil
	}
	h.Decode = func(r events.DynamoDBEventRecord) (ledger.Change, error) {
		i, err := strconv.Atoi(r.Change.SequenceNumber)
		if err != nil || i >= len(changes) {
			return ledger.Change{}, fmt.Errorf("record %q is none of %d", r.Change.SequenceNumber, len(changes))
		}
		return changes[i], nil
	}
	var batch worker.StreamEvent
	for i := range changes {
		batch.Records = append(batch.Records, fmt.Appendf(nil, `{"eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"%d"}}`, i))
	}
	answer, err := h.Handle(ctx, batch)
	if err != nil {
		return err
	}
	if again := answer.BatchItemFailures; len(again) > 0 {
		return fmt.Errorf("records come again from number %s of %d", again[0].ItemIdentifier, len(changes))
	}
	return nil
}

// pause waits for d, and tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
