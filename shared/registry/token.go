package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// TokenInput is what a token is to be.
type TokenInput struct {
	Name      string
	Role      string
	Clusters  []string // ids or names; an agent's token has exactly one
	Force     bool
	ExpiresAt time.Time // zero: never
}

// CreateToken makes a token and returns it with its secret, which is never shown
// again.
func (s *Service) CreateToken(ctx context.Context, call admission.Call, in TokenInput) (auth.Token, string, error) {
	spec := auth.TokenSpec{Name: in.Name, Role: auth.Role(in.Role), Force: in.Force, ExpiresAt: in.ExpiresAt, CreatedBy: call.Caller.Actor.ID}
	if in.Force && !call.Caller.Force {
		return auth.Token{}, "", operation.Refuse("force_not_allowed", "force is a right of its own: only who has it gives it on")
	}
	for i, name := range in.Clusters {
		c, err := admission.FindCluster(ctx, s.Store, name)
		if errors.Is(err, ledger.ErrNotFound) {
			return auth.Token{}, "", operation.Invalid(operation.FieldError{Pointer: fmt.Sprintf("/clusters/%d", i), Code: "not_found",
				Detail: fmt.Sprintf("there is no cluster %q", name)})
		}
		if err != nil {
			return auth.Token{}, "", err
		}
		if !slices.Contains(spec.Clusters, c.ID) {
			spec.Clusters = append(spec.Clusters, c.ID)
		}
	}
	if spec.Role == auth.Agent {
		if len(spec.Clusters) != 1 {
			return auth.Token{}, "", operation.Invalid(operation.FieldError{Pointer: "/clusters", Code: "range", Detail: "an agent's token has exactly one cluster"})
		}
		spec.AgentCluster, spec.Clusters = spec.Clusters[0], nil
	}
	t, secret, w, err := s.Tokens.CreateWrite(spec)
	if err != nil {
		return auth.Token{}, "", refused(err)
	}
	if err := s.Store.Ledger.Commit(ctx, w, s.audit(call, "token.create", t.ID, http.StatusCreated, "")); err != nil {
		return auth.Token{}, "", fmt.Errorf("create token: %w", err)
	}
	return t, secret, nil
}

// RevokeToken ends a token for good. Doing it again changes nothing.
func (s *Service) RevokeToken(ctx context.Context, call admission.Call, tokenID string) error {
	return record.Again(ctx, func() error {
		_, w, err := s.Tokens.RevokeWrite(ctx, tokenID, call.Caller.Actor.ID)
		if err != nil {
			return refused(err)
		}
		err = s.Store.Ledger.Commit(ctx, w, s.audit(call, "token.revoke", tokenID, http.StatusNoContent, ""))
		s.Tokens.Forget(tokenID)
		return err
	})
}

// refused turns the faults of package auth into refusals.
func refused(err error) error {
	if e, ok := errors.AsType[*auth.InvalidError](err); ok {
		return operation.Invalid(operation.FieldError{Pointer: e.Field, Code: "invalid", Detail: e.Detail})
	}
	if errors.Is(err, auth.ErrNoToken) {
		return operation.Refuse("not_found", "%v", err)
	}
	return err
}
