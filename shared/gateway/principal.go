package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opsplane/opsplane/shared/auth"
)

// contextKey names the principal in the authorizer's answer and in the events
// of the functions behind it.
const contextKey = "principal"

// wirePrincipal is the principal as the gateway carries it.
type wirePrincipal struct {
	ID       string      `json:"id"`
	Kind     auth.Kind   `json:"kind"`
	Name     string      `json:"name,omitempty"`
	Roles    []auth.Role `json:"roles,omitempty"`
	Clusters []string    `json:"clusters,omitempty"`
	Force    bool        `json:"force,omitempty"`
	Token    string      `json:"token,omitempty"`
}

// encodePrincipal gives the authorizer's context: one string of JSON, so that it
// is read back by one decoder, whatever carries it on the way.
func encodePrincipal(p auth.Principal) (map[string]any, error) {
	b, err := json.Marshal(wirePrincipal(p))
	if err != nil {
		return nil, fmt.Errorf("encode principal %s: %w", p.ID, err)
	}
	return map[string]any{contextKey: string(b)}, nil
}

// decodePrincipal reads what encodePrincipal wrote, and refuses what would be
// more than it could have meant: an agent without its cluster, or an unknown kind.
func decodePrincipal(s string) (auth.Principal, error) {
	var w wirePrincipal
	if err := json.Unmarshal([]byte(s), &w); err != nil {
		return auth.Principal{}, fmt.Errorf("decode principal: %w", err)
	}
	switch {
	case w.ID == "":
		return auth.Principal{}, errors.New("decode principal: it has no id")
	case !slices.Contains([]auth.Kind{auth.KindToken, auth.KindOIDC, auth.KindAgent}, w.Kind):
		return auth.Principal{}, fmt.Errorf("decode principal %s: kind %q", w.ID, w.Kind)
	case slices.Contains(w.Roles, auth.Agent) != (w.Kind == auth.KindAgent), w.Kind == auth.KindAgent && len(w.Clusters) != 1:
		return auth.Principal{}, fmt.Errorf("decode principal %s: kind %s with roles %v and clusters %v", w.ID, w.Kind, w.Roles, w.Clusters)
	}
	return auth.Principal(w), nil
}

// Principals says who makes a request by what the authorizer said, which the
// gateway puts beside the request (requestContext.authorizer.lambda). No header
// counts: a client could send it. Who may invoke the function around the gateway
// could say anything; IAM is what keeps that to the gateway.
type Principals struct{}

// Authenticate gives the request's principal; the credential was the
// authorizer's matter. Without one, the request came by a route that has no
// authorizer: the error matches auth.ErrDenied.
func (Principals) Authenticate(ctx context.Context, _ string) (auth.Principal, error) {
	e := eventOf(ctx)
	if e == nil || e.Authorizer == nil || e.Authorizer.Lambda[contextKey] == nil {
		return auth.Principal{}, &auth.DeniedError{Reason: auth.ReasonMissing}
	}
	s, ok := e.Authorizer.Lambda[contextKey].(string)
	if !ok {
		return auth.Principal{}, fmt.Errorf("read principal: the authorizer gave a %T", e.Authorizer.Lambda[contextKey])
	}
	return decodePrincipal(s)
}
