// Function plane runs what never reaches a cluster.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
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

func handler(ctx context.Context) (*worker.Plane, error) {
	p, err := cloud.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &worker.Plane{Plans: p.Plans(), Queue: p.Queue, Logger: p.Log}, nil
}
