// Function relay follows the table's stream: it dispatches, rings the clusters' queues, and
// publishes.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/cloud/outward"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
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

func handler(ctx context.Context) (*worker.Relay, error) {
	p, err := cloud.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &worker.Relay{Relay: p.Relay(outward.Bus(p)), Decode: dynamo.DecodeChange, Logger: p.Log, Metrics: p.Metrics}, nil
}
