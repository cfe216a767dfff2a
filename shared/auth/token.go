package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/id"
)

// A bearer token is "opt_", the id's ULID, "_", and 32 random bytes in base64url
// without padding. The prefix lets secret scanners find it.
const (
	tokenPrefix = "opt_"
	idPrefix    = "tok"
	ulidLen     = 26
	secretBytes = 32
	secretLen   = 43 // of secretBytes in base64url
	bearerLen   = len(tokenPrefix) + ulidLen + 1 + secretLen
)

// Limits of a token.
const (
	MaxNameBytes = 128
	MaxClusters  = 100
)

// Token is an API token without its secret, which nobody keeps.
type Token struct {
	ID   string // tok_...
	Name string
	Role Role
	// Clusters that it is confined to; empty means all. An agent's token has
	// exactly its own.
	Clusters  []string
	Force     bool
	CreatedAt time.Time
	CreatedBy string    // principal id
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero: not revoked
	RevokedBy string
	// LastUsedAt is behind by up to LastUsedEvery; zero: never used.
	LastUsedAt time.Time

	hash [sha256.Size]byte
}

// Ended gives why the token is not good at the time, or "".
func (t Token) Ended(now time.Time) Reason {
	switch {
	case !t.RevokedAt.IsZero():
		return ReasonRevoked
	case !t.ExpiresAt.IsZero() && !now.Before(t.ExpiresAt):
		return ReasonExpired
	}
	return ""
}

func (t Token) principal() Principal {
	p := Principal{ID: t.ID, Kind: KindToken, Name: t.Name, Roles: []Role{t.Role}, Clusters: slices.Clone(t.Clusters), Force: t.Force, Token: t.ID}
	if t.Role == Agent {
		p.Kind = KindAgent
	}
	return p
}

// TokenSpec is what a token is to be.
type TokenSpec struct {
	Name      string
	Role      Role // left empty for an agent's token
	Clusters  []string
	Force     bool
	ExpiresAt time.Time // zero: never
	CreatedBy string    // principal id
	// AgentCluster makes it an agent's token, for this cluster and nothing else.
	AgentCluster string
}

func (s TokenSpec) check(now time.Time) error {
	fault := func(field, format string, args ...any) error {
		return &InvalidError{Field: "/" + field, Detail: fmt.Sprintf(format, args...)}
	}
	if n := len(s.Name); n < 1 || n > MaxNameBytes {
		return fault("name", "takes 1 to %d bytes", MaxNameBytes)
	}
	if !utf8.ValidString(s.Name) || strings.ContainsFunc(s.Name, unicode.IsControl) {
		return fault("name", "has control characters")
	}
	if !s.ExpiresAt.IsZero() && !s.ExpiresAt.After(now) {
		return fault("expires_at", "is in the past")
	}
	if s.AgentCluster != "" {
		if s.Role != "" && s.Role != Agent || len(s.Clusters) > 0 || s.Force {
			return fault("role", "an agent's token has no other role, clusters or force")
		}
		return nil
	}
	if rank[s.Role] == 0 {
		return fault("role", "is one of viewer, operator, admin")
	}
	if s.Force && !s.Role.Includes(Operator) {
		return fault("force", "needs the role operator or admin")
	}
	if len(s.Clusters) > MaxClusters {
		return fault("clusters", "takes up to %d", MaxClusters)
	}
	for i, c := range s.Clusters {
		if c == "" || len(c) > 64 || slices.Contains(s.Clusters[:i], c) {
			return fault(fmt.Sprintf("clusters/%d", i), "is empty, too long or there twice")
		}
	}
	return nil
}

// mint makes a token to the specification, and its bearer form.
func mint(s TokenSpec, now time.Time) (t Token, bearer string) {
	now = now.UTC().Truncate(time.Millisecond)
	var random [secretBytes]byte
	_, _ = rand.Read(random[:]) // crypto/rand.Read never fails (Go 1.24)
	secret := base64.RawURLEncoding.EncodeToString(random[:])
	t = Token{
		ID: id.New(idPrefix, now), Name: s.Name, Role: s.Role, Clusters: slices.Clone(s.Clusters), Force: s.Force,
		CreatedAt: now, CreatedBy: s.CreatedBy, hash: sha256.Sum256([]byte(secret)),
	}
	if !s.ExpiresAt.IsZero() {
		t.ExpiresAt = s.ExpiresAt.UTC()
	}
	if s.AgentCluster != "" {
		t.Role, t.Clusters = Agent, []string{s.AgentCluster}
	}
	return t, tokenPrefix + strings.TrimPrefix(t.ID, idPrefix+"_") + "_" + secret
}

// parseBearer splits a bearer token; only the canonical form is one.
func parseBearer(s string) (tokenID, secret string, ok bool) {
	if len(s) != bearerLen || !strings.HasPrefix(s, tokenPrefix) {
		return "", "", false
	}
	rest := s[len(tokenPrefix):]
	tokenID, secret = idPrefix+"_"+rest[:ulidLen], rest[ulidLen+1:]
	if rest[ulidLen] != '_' || !id.Valid(idPrefix, tokenID) {
		return "", "", false
	}
	if _, err := base64.RawURLEncoding.Strict().DecodeString(secret); err != nil || strings.ContainsAny(secret, "\r\n") {
		return "", "", false
	}
	return tokenID, secret, true
}

// has compares in constant time.
func (t Token) has(secret string) bool {
	h := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(h[:], t.hash[:]) == 1
}

// Bearer takes the credential from an Authorization header's value (RFC 6750,
// section 2.1): empty when the scheme is another one.
func Bearer(header string) string {
	scheme, credential, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(credential)
}
