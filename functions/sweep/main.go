// Function sweep looks after time: each minute, and at wake-ups between.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/worker"
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
	return &worker.Sweep{Sweep: p.Sweep(p.Relay()), GivenUp: p.Queue, Retention: retention.Default, Logger: p.Log, Metrics: p.Metrics}, nil
}
