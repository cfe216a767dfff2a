// Command agentapi is the function behind the HTTP API's routes for agents,
// /v1/agent/*: heartbeats, claims, renewals, reports, inventory, events and
// previews. Agents poll their cluster's queue on SQS by themselves; each
// heartbeat's answer says where.
//
// It takes which agent calls from the gateway's authorizer.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/gateway"
	"github.com/opsplane/opsplane/shared/httpapi"
	"github.com/opsplane/opsplane/shared/version"
)

func main() {
	server, err := newServer(context.Background())
	if err != nil {
		slog.Error("cannot start", "err", err)
		os.Exit(1)
	}
	lambda.StartHandlerFunc(server.Serve) // its context is not ended by a signal: an invocation under way is finished
}

func newServer(ctx context.Context) (*gateway.Server, error) {
	p, err := cloud.Open(ctx, gateway.LogAttr)
	if err != nil {
		return nil, err
	}
	api, err := httpapi.NewForAgents(httpapi.Config{
		Store: p.Store, Agent: p.Agents(), Auth: gateway.Principals{}, Ready: p.Ready,
		Version: version.Version, MaxWait: gateway.MaxWait, AuditFirst: true, Logger: p.Log,
	})
	if err != nil {
		return nil, err
	}
	return &gateway.Server{Handler: api, Logger: p.Log}, nil
}
