package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/aws/aws-lambda-go/events"

	"github.com/opsplane/opsplane/shared/auth"
)

// Authenticator tells whose credential it is; *auth.Authenticator does. Its
// error matches auth.ErrDenied when the credential is no good.
type Authenticator interface {
	Authenticate(ctx context.Context, bearer string) (auth.Principal, error)
}

// Authorizer answers the HTTP API's question who makes a request (REQUEST
// authorizer, payload format 2.0, simple responses; API Gateway Developer Guide,
// "Control access to HTTP APIs with AWS Lambda authorizers").
//
// It only says who: one answer is kept for all routes, since the credential
// alone is the cache's key. What they may do is decided behind it.
type Authorizer struct {
	Auth   Authenticator
	Logger *slog.Logger
}

// Authorize answers one request. A credential that is not good is not
// authorized, for whatever reason: that is in the log alone. When it cannot be
// told (the ledger or the issuer is away) the answer is an error: the gateway
// then says 500 to this request and asks again for the next one, while "not
// authorized" would be kept for AuthorizerTTL and lock a good token out for as
// long after the trouble is over.
func (a *Authorizer) Authorize(ctx context.Context, e events.APIGatewayV2CustomAuthorizerV2Request) (events.APIGatewayV2CustomAuthorizerSimpleResponse, error) {
	var answer events.APIGatewayV2CustomAuthorizerSimpleResponse
	log := a.Logger.With("gateway_request_id", e.RequestContext.RequestID, "source_ip", e.RequestContext.HTTP.SourceIP)
	p, err := a.Auth.Authenticate(ctx, bearerOf(e.Headers))
	if errors.Is(err, auth.ErrDenied) {
		reason, token := auth.Reason("unknown"), ""
		if d, ok := errors.AsType[*auth.DeniedError](err); ok {
			reason, token = d.Reason, d.Token
		}
		log.InfoContext(ctx, "credential not accepted", "reason", reason, "token", token)
		return answer, nil
	}
	if err == nil {
		answer.Context, err = encodePrincipal(p)
	}
	if err != nil {
		log.ErrorContext(ctx, "credential cannot be checked", "err", err, "cause", errors.Unwrap(err))
		return answer, fmt.Errorf("authorize: %w", err)
	}
	answer.IsAuthorized = true
	return answer, nil
}

// bearerOf takes the credential from the header, whatever the case of its name:
// the gateway sends lower case, sam local what the client sent. Two of them are
// none: it is not for us to choose.
func bearerOf(headers map[string]string) string {
	found, value := 0, ""
	for name, v := range headers {
		if strings.EqualFold(name, "Authorization") {
			found, value = found+1, v
		}
	}
	if found != 1 {
		return ""
	}
	return auth.Bearer(value)
}
