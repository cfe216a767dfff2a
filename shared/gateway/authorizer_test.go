package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
)

// authorize asks about one credential; the log is returned too.
func authorize(t *testing.T, a Authenticator, headers map[string]string) (answer events.APIGatewayV2CustomAuthorizerSimpleResponse, logged string, err error) {
	t.Helper()
	var log strings.Builder
	e := events.APIGatewayV2CustomAuthorizerV2Request{Version: "2.0", Type: "REQUEST", Headers: headers}
	e.RequestContext.RequestID = "gw-1"
	answer, err = (&Authorizer{Auth: a, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Authorize(t.Context(), e)
	return answer, log.String(), err
}

func TestAuthorizer(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "ledger.db")})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	now := time.Now()
	tokens := auth.NewStore(db, func() time.Time { return now })
	make := func(spec auth.TokenSpec) (auth.Token, string) {
		tok, bearer, err := tokens.Create(t.Context(), spec)
		must(t, err)
		return tok, bearer
	}
	good, bearer := make(auth.TokenSpec{Name: "on call", Role: auth.Operator, Clusters: []string{"clu_1", "clu_2"}, Force: true})
	agent, agentBearer := make(auth.TokenSpec{Name: "agents", AgentCluster: "clu_1"})
	revoked, revokedBearer := make(auth.TokenSpec{Name: "gone", Role: auth.Admin})
	_, err = tokens.Revoke(t.Context(), revoked.ID, "test")
	must(t, err)
	_, expiredBearer := make(auth.TokenSpec{Name: "old", Role: auth.Admin, ExpiresAt: now.Add(time.Minute)})
	now = now.Add(time.Hour)
	wrong := bearer[:len(bearer)-4] + "AAAA"
	unknown := strings.Replace(bearer, bearer[4:30], strings.Repeat("0", 26), 1)
	header := func(v string) map[string]string { return map[string]string{"authorization": v, "host": "x"} }
	for name, tt := range map[string]struct {
		headers map[string]string
		want    *auth.Principal
		reason  auth.Reason
	}{
		"a token":          {header("Bearer " + bearer), &auth.Principal{ID: good.ID, Kind: auth.KindToken, Name: "on call", Roles: []auth.Role{auth.Operator}, Clusters: []string{"clu_1", "clu_2"}, Force: true, Token: good.ID}, ""},
		"an agent":         {header("bearer " + agentBearer), &auth.Principal{ID: agent.ID, Kind: auth.KindAgent, Name: "agents", Roles: []auth.Role{auth.Agent}, Clusters: []string{"clu_1"}, Token: agent.ID}, ""},
		"header as sent":   {map[string]string{"Authorization": "Bearer " + agentBearer}, &auth.Principal{ID: agent.ID, Kind: auth.KindAgent, Name: "agents", Roles: []auth.Role{auth.Agent}, Clusters: []string{"clu_1"}, Token: agent.ID}, ""},
		"header shouted":   {map[string]string{"AUTHORIZATION": "BEARER  " + agentBearer + " "}, &auth.Principal{ID: agent.ID, Kind: auth.KindAgent, Name: "agents", Roles: []auth.Role{auth.Agent}, Clusters: []string{"clu_1"}, Token: agent.ID}, ""},
		"no header":        {map[string]string{"host": "x"}, nil, auth.ReasonMissing},
		"no headers":       {nil, nil, auth.ReasonMissing},
		"empty":            {header(""), nil, auth.ReasonMissing},
		"two headers":      {map[string]string{"authorization": "Bearer " + bearer, "Authorization": "Bearer " + bearer}, nil, auth.ReasonMissing},
		"two in one":       {header("Bearer " + bearer + ",Bearer " + bearer), nil, auth.ReasonMalformed},
		"another scheme":   {header("Basic " + bearer), nil, auth.ReasonMissing},
		"no scheme":        {header(bearer), nil, auth.ReasonMissing},
		"malformed":        {header("Bearer opt_x"), nil, auth.ReasonMalformed},
		"not one of ours":  {header("Bearer eyJ.e.x"), nil, auth.ReasonMalformed},
		"unknown":          {header("Bearer " + unknown), nil, auth.ReasonUnknown},
		"another's secret": {header("Bearer " + wrong), nil, auth.ReasonWrongSecret},
		"revoked":          {header("Bearer " + revokedBearer), nil, auth.ReasonRevoked},
		"expired":          {header("Bearer " + expiredBearer), nil, auth.ReasonExpired},
	} {
		answer, log, err := authorize(t, &auth.Authenticator{Tokens: tokens}, tt.headers)
		must(t, err)
		if tt.want == nil {
			if answer.IsAuthorized || answer.Context != nil || !strings.Contains(log, "reason="+string(tt.reason)) || !strings.Contains(log, "gw-1") {
				t.Errorf("%s: %+v, log %q", name, answer, log)
			}
		} else {
			if !answer.IsAuthorized || log != "" {
				t.Errorf("%s: %+v, log %q", name, answer, log)
				continue
			}
			// As the function gets it, through JSON.
			e := event("GET", "/")
			e.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{}
			raw, err := json.Marshal(answer.Context)
			must(t, err)
			must(t, json.Unmarshal(raw, &e.RequestContext.Authorizer.Lambda))
			r, err := NewRequest(t.Context(), e)
			must(t, err)
			p, err := Principals{}.Authenticate(r.Context(), "")
			must(t, err)
			if diff := cmp.Diff(*tt.want, p); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		for _, secret := range []string{bearer, agentBearer, revokedBearer, expiredBearer, bearer[31:]} {
			if strings.Contains(log, secret) {
				t.Errorf("%s: a credential is in the log", name)
			}
		}
	}
	// When it cannot be told, that is no denial: those are kept.
	must(t, db.Close())
	now = now.Add(time.Hour) // what is remembered is too old
	answer, log, err := authorize(t, &auth.Authenticator{Tokens: tokens}, header("Bearer "+bearer))
	if !errors.Is(err, auth.ErrUnavailable) || answer.IsAuthorized || !strings.Contains(log, "ERROR") || strings.Contains(err.Error(), "sqlite") {
		t.Errorf("the ledger is away: %+v, %v, log %q", answer, err, log)
	}
}

// TestPrincipalOnTheWire: functions of another version read it while the gateway
// keeps it, so that its form must not change.
func TestPrincipalOnTheWire(t *testing.T) {
	t.Parallel()
	p := auth.Principal{ID: "tok_1", Kind: auth.KindToken, Name: "on call", Roles: []auth.Role{auth.Operator}, Clusters: []string{"clu_1"}, Force: true, Token: "tok_1"}
	got, err := encodePrincipal(p)
	must(t, err)
	want := map[string]any{"principal": `{"id":"tok_1","kind":"token","name":"on call","roles":["operator"],"clusters":["clu_1"],"force":true,"token":"tok_1"}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Members of a later version are passed over.
	if p, err := decodePrincipal(`{"id":"oidc:x#y","kind":"oidc","later":[1]}`); err != nil || p.ID != "oidc:x#y" || p.Roles != nil || p.Clusters != nil {
		t.Errorf("%+v, %v", p, err)
	}
}

// broken fails in a way that is neither.
type broken struct{ err error }

func (b broken) Authenticate(context.Context, string) (auth.Principal, error) {
	return auth.Principal{}, b.err
}

func TestAuthorizerFails(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{auth.ErrUnavailable, context.DeadlineExceeded, errors.New("odd")} {
		if answer, log, err := authorize(t, broken{fault}, nil); !errors.Is(err, fault) || answer.IsAuthorized || log == "" {
			t.Errorf("%v: %+v, %v, log %q", fault, answer, err, log)
		}
	}
	if answer, _, err := authorize(t, broken{auth.ErrDenied}, nil); err != nil || answer.IsAuthorized {
		t.Errorf("%+v, %v", answer, err)
	}
}
