package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/cloud/outward"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/sweep"
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
	judge := &react.Reactor{Store: p.Store, Logger: p.Log}
	tell := &notify.Service{Store: p.Store, Logger: p.Log}
	wg.Go(func() {
		for at := ""; ctx.Err() == nil; {
			changes, next, err := feed.Changes(ctx, at, 100, time.Second)
			if err == nil {
				_, derr := ring.DispatchFeed(ctx, changes)
				_, perr := ring.PublishFeed(ctx, changes)
				_, jerr := judge.Take(ctx, changes)
				streams, _ := record.Wakes(changes)
				_, terr := tell.Each(ctx, streams)
				err = errors.Join(derr, perr, ring.BusFeed(ctx, changes), jerr, terr)
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
		due.React, due.Notify = judge.Follow, tell.Deliver
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
