//go:build awstest

package awstest

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/shared/gateway"
)

// token makes an API token with a role.
func (p *plane) token(role string) (id, bearer string) {
	p.tb.Helper()
	var made struct {
		ID    string `json:"id"`
		Token string `json:"token"`
	}
	a := p.call(http.MethodPost, "/v1/tokens", map[string]any{"name": unique(role), "role": role})
	if a.Status != http.StatusCreated {
		p.tb.Fatalf("create a token: %d %s", a.Status, a.Body)
	}
	if err := a.Into(&made); err != nil {
		p.tb.Fatal(err)
	}
	return made.ID, made.Token
}

// plain tells whether the gateway itself gave the answer: JSON, but no problem.
func plain(a rig.Answer) bool {
	return strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") && code(a) == ""
}

// TestAccess: who gets through the gateway, and what the functions make of them.
func TestAccess(t *testing.T) {
	t.Parallel()
	p := deployed(t)
	c := p.register("access")
	_, viewer := p.token("viewer")
	const users, agents = "/v1/operations", "/v1/agent/heartbeat"
	beat := map[string]any{"name": "a", "boot": "b", "version": "1", "sent_at": time.Now().UTC(), "capabilities": []any{}}
	for _, tc := range []struct {
		name, method, path, token string
		body                      any
		status                    int
		gateway                   bool
	}{
		{"no header", http.MethodGet, users, "", nil, http.StatusUnauthorized, true},
		{"no header, agents", http.MethodPost, agents, "", beat, http.StatusUnauthorized, true},
		{"malformed", http.MethodGet, users, "nope", nil, http.StatusForbidden, true},
		{"unknown", http.MethodGet, users, "opt_01m8mnw2q1ryafcseh0wbw3jgk_" + strings.Repeat("A", 43), nil, http.StatusForbidden, true},
		{"an altered secret", http.MethodGet, users, viewer[:len(viewer)-4] + "AAAA", nil, http.StatusForbidden, true},
		{"viewer reads", http.MethodGet, users, viewer, nil, http.StatusOK, false},
		{"viewer writes", http.MethodPost, users, viewer, request{Type: "node.cordon", Target: "node:x", Reason: "r"}, http.StatusForbidden, false},
		{"agent on a user's route", http.MethodGet, users, c.Token, nil, http.StatusForbidden, false},
		{"user on an agent's route", http.MethodPost, agents, viewer, beat, http.StatusForbidden, false},
		{"agent on its own", http.MethodPost, agents, c.Token, beat, http.StatusOK, false},
		{"health needs nobody", http.MethodGet, "/healthz", "", nil, http.StatusOK, false},
		{"nor does readiness", http.MethodGet, "/readyz", "", nil, http.StatusOK, false},
	} {
		a := p.as(tc.token).call(tc.method, tc.path, tc.body)
		if a.Status != tc.status {
			t.Errorf("%s: %d %s, want %d", tc.name, a.Status, a.Body, tc.status)
			continue
		}
		if a.Status >= 400 && plain(a) != tc.gateway {
			t.Errorf("%s: %s %s: want the gateway's own answer: %v", tc.name, a.Header.Get("Content-Type"), a.Body, tc.gateway)
		}
	}
	for _, name := range []string{"authorization", "AUTHORIZATION"} {
		a := p.as("").call(http.MethodGet, users, nil, name, "bearer "+viewer)
		if a.Status != http.StatusOK {
			t.Errorf("header %s: %d %s", name, a.Status, a.Body)
		}
	}
}

// TestRevokedTokenStops: a token that was just used, and so is kept by the
// gateway, is refused within the published time after it was revoked.
func TestRevokedTokenStops(t *testing.T) {
	t.Parallel()
	p := deployed(t)
	id, bearer := p.token("viewer")
	user := p.as(bearer)
	if a := user.call(http.MethodGet, "/v1/operations", nil); a.Status != http.StatusOK {
		t.Fatalf("a good token: %d %s", a.Status, a.Body)
	}
	if a := p.call(http.MethodDelete, "/v1/tokens/"+id, nil); a.Status >= 300 {
		t.Fatalf("revoke: %d %s", a.Status, a.Body)
	}
	revoked := time.Now()
	eventually(t, gateway.RevokedWithin, "the revoked token is refused", func() bool {
		a := user.call(http.MethodGet, "/v1/operations?limit=1", nil)
		return a.Status == http.StatusForbidden || a.Status == http.StatusUnauthorized
	})
	t.Logf("refused after %s (bound %s)", time.Since(revoked).Round(time.Millisecond), gateway.RevokedWithin)
}
