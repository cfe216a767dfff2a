// Function react follows the table's stream beside relay: it judges streams of
// events by the alert rules.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
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

func handler(ctx context.Context) (*worker.React, error) {
	p, err := cloud.Open(ctx)
	if err != nil {
		return nil, err
	}
	r := &react.Reactor{Store: p.Store, Logger: p.Log}
	n := &notify.Service{Store: p.Store, Logger: p.Log, Allow: p.Config.WebhookAllow, Base: p.Config.PublicURL}
	return &worker.React{Store: p.Store, Follow: worker.Telling(r.Follow, n.Follow), Counts: judging.Counts(r),
		Decode: dynamo.DecodeChange, Logger: p.Log, Metrics: p.Metrics}, nil
}
