// Function sweep looks after time: each minute, and at wake-ups between.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/cloud/outward"
	"github.com/opsplane/opsplane/shared/notify"
	"github.com/opsplane/opsplane/shared/react"
	"github.com/opsplane/opsplane/shared/worker"
	"github.com/opsplane/opsplane/shared/worker/judging"
)

func main() {
	h, err := handler(context.Background())
	if err != nil {
		slog.Error("cannot start", "err", err)
		os.Exit(1)
	}
	lambda.Start(h.Handle)
}

func handler(ctx context.Context) (*worker.Sweep, error) {
	p, err := cloud.Open(ctx)
	if err != nil {
		return nil, err
	}
	r := &react.Reactor{Store: p.Store, Logger: p.Log}
	s := p.Sweep(p.Relay(outward.Bus(p)))
	n := &notify.Service{Store: p.Store, Logger: p.Log, Allow: p.Config.WebhookAllow, Base: p.Config.PublicURL}
	follow := worker.Telling(r.Follow, n.Follow)
	lanes := &worker.Lanes{Deliver: n.Deliver, Logger: p.Log}
	s.React, s.Notify = worker.Timers(follow), lanes.Found
	return &worker.Sweep{Sweep: s, GivenUp: p.Queue, Judge: follow, Counts: judging.Counts(r), Lanes: lanes,
		Retention: p.Config.Retention, Logger: p.Log, Metrics: p.Metrics}, nil
}
