// Command authorizer is the HTTP API's Lambda authorizer: it says who makes a
// request, by an API token or a token of the configured OpenID Connect issuer.
// What they may do is decided behind it.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/opsplane/opsplane/shared/cloud"
	"github.com/opsplane/opsplane/shared/gateway"
)

func main() {
	authorizer, err := newAuthorizer(context.Background())
	if err != nil {
		slog.Error("cannot start", "err", err)
		os.Exit(1)
	}
	lambda.StartHandlerFunc(authorizer.Authorize)
}

func newAuthorizer(ctx context.Context) (*gateway.Authorizer, error) {
	p, err := cloud.Open(ctx)
	if err != nil {
		return nil, err
	}
	authn, err := p.Authenticator()
	if err != nil {
		return nil, err
	}
	return &gateway.Authorizer{Auth: authn, Logger: p.Log}, nil
}
