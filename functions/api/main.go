// Command api is the function behind every route of the HTTP API but the
// agents': operations, clusters, tokens, events and the rest of /v1, health and
// the API's documentation.
//
// It takes who calls from the gateway's authorizer and decides itself what they
// may. Limits of requests a principal are kept in memory, so that each instance
// has its own; the gateway's throttle bounds them all.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/gateway"
	"github.com/opsplane/opsplane/shared/httpapi"
	"github.com/opsplane/opsplane/shared/notify"
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
	api, err := httpapi.New(httpapi.Config{
		Store: p.Store, Admission: p.Admission(), Control: p.Control(), Registry: p.Registry(), Auth: gateway.Principals{},
		Receivers:   &notify.Service{Store: p.Store, Logger: p.Log, Allow: p.Config.WebhookAllow, Base: p.Config.PublicURL},
		QueueAccess: queueAccess(p), HistoryBegins: p.HistoryBegins, Ready: p.Ready,
		Version: version.Version, MaxWait: gateway.MaxWait, AuditFirst: true, Logger: p.Log,
	})
	if err != nil {
		return nil, err
	}
	return &gateway.Server{Handler: api, Logger: p.Log}, nil
}

func queueAccess(p *cloud.Plane) func(context.Context, string) (httpapi.QueueAccess, error) {
	return func(ctx context.Context, queue string) (httpapi.QueueAccess, error) {
		url, arn, policy, err := p.QueueAccess(ctx, queue)
		return httpapi.QueueAccess{URL: url, ARN: arn, Policy: policy}, err
	}
}
