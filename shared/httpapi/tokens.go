package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/registry"
)

const tokensPath = "/v1/tokens"

func (a *API) tokenRoutes() {
	tags := []string{"tokens"}
	ac := access{action: auth.ManageTokens, fleet: true, body: smallBody}
	register(a, huma.Operation{Method: http.MethodPost, Path: tokensPath, Summary: "Create token", Tags: tags, DefaultStatus: http.StatusCreated,
		Description: "Makes an API token. The secret is shown this once."}, ac, a.createToken)
	ac.body = 0
	register(a, huma.Operation{Method: http.MethodGet, Path: tokensPath, Summary: "List tokens", Tags: tags}, ac, a.listTokens)
	register(a, huma.Operation{Method: http.MethodGet, Path: tokensPath + "/{id}", Summary: "Get token", Tags: tags}, ac, a.getToken)
	register(a, huma.Operation{Method: http.MethodDelete, Path: tokensPath + "/{id}", Summary: "Revoke token", Tags: tags}, ac, a.revokeToken)
}

// TokenView is a token without its secret.
type TokenView struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Role       string     `json:"role" enum:"viewer,operator,admin,agent"`
	Clusters   []string   `json:"clusters" nullable:"false" doc:"What it is confined to; empty: nothing"`
	Force      bool       `json:"force"`
	CreatedAt  time.Time  `json:"created_at"`
	CreatedBy  *string    `json:"created_by"`
	ExpiresAt  *time.Time `json:"expires_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	RevokedBy  *string    `json:"revoked_by"`
	LastUsedAt *time.Time `json:"last_used_at" doc:"Behind by up to five minutes"`
	Active     bool       `json:"active"`
}

// newTokenView is a token with its secret.
type newTokenView struct {
	TokenView
	Token string `json:"token" doc:"The bearer token; it is never shown again"`
}

func orNever(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (a *API) viewToken(t auth.Token) TokenView {
	return TokenView{ID: t.ID, Name: t.Name, Role: string(t.Role), Clusters: orEmpty(t.Clusters), Force: t.Force, CreatedAt: t.CreatedAt,
		CreatedBy: orNull(t.CreatedBy), ExpiresAt: orNever(t.ExpiresAt), RevokedAt: orNever(t.RevokedAt), RevokedBy: orNull(t.RevokedBy),
		LastUsedAt: orNever(t.LastUsedAt), Active: t.Ended(a.now()) == ""}
}

type tokenBodyView struct {
	Name      string   `json:"name"`
	Role      string   `json:"role" enum:"viewer,operator,admin,agent"`
	Clusters  []string `json:"clusters,omitempty" doc:"Ids or names; an agent's token has exactly one"`
	Force     bool     `json:"force,omitempty" doc:"The right to overrule safeguards"`
	ExpiresAt string   `json:"expires_at,omitempty" doc:"RFC 3339"`
}

func (a *API) createToken(ctx context.Context, rq *request, in *struct{ Body tokenBodyView }) (*createdOutput[newTokenView], error) {
	spec := registry.TokenInput{Name: in.Body.Name, Role: in.Body.Role, Clusters: in.Body.Clusters, Force: in.Body.Force}
	if in.Body.ExpiresAt != "" {
		t, err := operation.ParseTime(in.Body.ExpiresAt)
		if err != nil {
			return nil, problem.New(problem.Invalid, "expires_at %v", err).WithField("/expires_at", "format", "%v", err)
		}
		spec.ExpiresAt = t
	}
	t, secret, err := a.cfg.Registry.CreateToken(ctx, rq.call(), spec)
	if err != nil {
		return nil, err
	}
	return &createdOutput[newTokenView]{Status: http.StatusCreated, Location: tokensPath + "/" + t.ID,
		Body: newTokenView{TokenView: a.viewToken(t), Token: secret}}, nil
}

func (a *API) listTokens(ctx context.Context, _ *request, in *struct{ PageInput }) (*listOutput[TokenView], error) {
	key := listKey("tokens")
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	tokens, next, err := a.cfg.Registry.Tokens.List(ctx, place, in.Limit)
	if errors.Is(err, ledger.ErrInvalid) {
		return nil, problem.New(problem.InvalidCursor, "it is no cursor of this list").WithCause(err)
	}
	if err != nil {
		return nil, err
	}
	items := make([]TokenView, len(tokens))
	for i, t := range tokens {
		items[i] = a.viewToken(t)
	}
	if next != "" {
		next = encodeCursor(key, next)
	}
	return &listOutput[TokenView]{Body: newList(items, next)}, nil
}

type tokenPath struct {
	ID string `path:"id"`
}

func (a *API) getToken(ctx context.Context, _ *request, in *tokenPath) (*bodyOutput[TokenView], error) {
	t, err := a.cfg.Registry.Tokens.Get(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &bodyOutput[TokenView]{Body: a.viewToken(t)}, nil
}

func (a *API) revokeToken(ctx context.Context, rq *request, in *tokenPath) (*struct{}, error) {
	return nil, a.cfg.Registry.RevokeToken(ctx, rq.call(), in.ID)
}
