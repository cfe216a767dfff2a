package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"
)

// issuer is an OpenID Connect issuer on this machine.
type issuer struct {
	*httptest.Server
	t    *testing.T
	ca   string
	down atomic.Bool
	// fetches counts what was asked: discovery and keys.
	fetches atomic.Int64

	mu   sync.Mutex
	keys []jose.JSONWebKey // private; the last one signs
	iss  string            // what discovery says, when not the truth
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	i.rotate("k1")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		iss := i.iss
		i.mu.Unlock()
		if iss == "" {
			iss = i.URL
		}
		answerJSON(w, map[string]any{"issuer": iss, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"none", "HS256", "ES256"}})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		set := jose.JSONWebKeySet{}
		for _, k := range i.keys {
			set.Keys = append(set.Keys, k.Public())
		}
		answerJSON(w, set)
	})
	i.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.fetches.Add(1)
		if i.down.Load() {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	i.Config.ErrorLog = log.New(io.Discard, "", 0) // a refused handshake is wanted
	i.StartTLS()
	t.Cleanup(i.Close)
	i.ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(i.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return i
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func newKey(t *testing.T, kid string) jose.JSONWebKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: k, KeyID: kid, Algorithm: "ES256", Use: "sig"}
}

func (i *issuer) rotate(kid string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = []jose.JSONWebKey{newKey(i.t, kid)}
}

func (i *issuer) key() jose.JSONWebKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keys[len(i.keys)-1]
}

func (i *issuer) claims(c *clock, change map[string]any) map[string]any {
	m := map[string]any{
		"iss": i.URL, "sub": "alice", "aud": []string{"opsplane", "other"}, "iat": c.now().Unix(), "exp": c.now().Add(time.Hour).Unix(),
		"email": "alice@example.com", "groups": []string{"sre", "everybody"},
	}
	maps.Copy(m, change)
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	return m
}

func sign(t *testing.T, k jose.JSONWebKey, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.Algorithm), Key: k}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func verifier(t *testing.T, i *issuer, c *clock, change func(*OIDCConfig)) *Verifier {
	t.Helper()
	cfg := OIDCConfig{
		Issuer: i.URL, Audience: "opsplane", RoleClaim: "groups", CAFile: i.ca, Now: c.now, ForceValue: "breakglass",
		Roles: map[string]Role{"sre": Operator, "leads": Admin, "everybody": Viewer},
	}
	if change != nil {
		change(&cfg)
	}
	v, err := NewVerifier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestOIDCGood(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	a := &Authenticator{OIDC: verifier(t, i, c, nil)}
	for range 3 {
		p, err := a.Authenticate(t.Context(), sign(t, i.key(), i.claims(c, nil)))
		if err != nil {
			t.Fatal(err)
		}
		want := Principal{ID: "oidc:" + i.URL + "#alice", Kind: KindOIDC, Name: "alice@example.com", Roles: []Role{Operator, Viewer}}
		if diff := cmp.Diff(want, p); diff != "" {
			t.Error(diff)
		}
	}
	if n := i.fetches.Load(); n != 2 {
		t.Errorf("the issuer was asked %d times, want 2", n)
	}
}

func TestOIDCClaims(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	for name, tt := range map[string]struct {
		config   func(*OIDCConfig)
		claims   map[string]any
		roles    []Role
		clusters []string
		force    bool
	}{
		"one group":      {nil, map[string]any{"groups": "leads"}, []Role{Admin}, nil, false},
		"force":          {nil, map[string]any{"groups": []string{"sre", "breakglass"}}, []Role{Operator}, nil, true},
		"no group":       {nil, map[string]any{"groups": nil}, nil, nil, false},
		"unknown group":  {nil, map[string]any{"groups": []string{"admin"}}, nil, nil, false},
		"odd group":      {nil, map[string]any{"groups": []any{1, map[string]any{}, "sre"}}, []Role{Operator}, nil, false},
		"path":           {func(c *OIDCConfig) { c.RoleClaim = "realm_access.roles" }, map[string]any{"realm_access": map[string]any{"roles": []string{"leads"}}}, []Role{Admin}, nil, false},
		"name with dots": {func(c *OIDCConfig) { c.RoleClaim = "https://x.org/roles" }, map[string]any{"https://x.org/roles": "leads"}, []Role{Admin}, nil, false},
		"clusters":       {func(c *OIDCConfig) { c.ClustersClaim = "clusters" }, map[string]any{"clusters": []string{"clu_1", ""}}, []Role{Operator, Viewer}, []string{"clu_1"}, false},
		"all clusters":   {func(c *OIDCConfig) { c.ClustersClaim = "clusters" }, map[string]any{"clusters": "*"}, []Role{Operator, Viewer}, nil, false},
		"no clusters":    {func(c *OIDCConfig) { c.ClustersClaim = "clusters" }, map[string]any{"groups": []string{"leads", "breakglass"}}, nil, nil, false},
		"empty clusters": {func(c *OIDCConfig) { c.ClustersClaim = "clusters" }, map[string]any{"clusters": []string{}}, nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := verifier(t, i, c, tt.config).Verify(t.Context(), sign(t, i.key(), i.claims(c, tt.claims)))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(p.Roles, tt.roles) || !slices.Equal(p.Clusters, tt.clusters) || p.Force != tt.force {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestOIDCDenied(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	v := verifier(t, i, c, nil)
	good := sign(t, i.key(), i.claims(c, nil))
	head, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	b64 := base64.RawURLEncoding.EncodeToString
	// HS256 with the public key as the secret: the classic confusion.
	key := i.key()
	public, err := key.Public().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		raw  string
		want Reason
	}{
		"expired":           {sign(t, i.key(), i.claims(c, map[string]any{"exp": c.now().Add(-time.Second).Unix()})), ReasonExpired},
		"no expiry":         {sign(t, i.key(), i.claims(c, map[string]any{"exp": nil})), ReasonExpired},
		"not yet":           {sign(t, i.key(), i.claims(c, map[string]any{"nbf": c.now().Add(time.Hour).Unix()})), ReasonMalformed},
		"wrong audience":    {sign(t, i.key(), i.claims(c, map[string]any{"aud": "other"})), ReasonAudience},
		"no audience":       {sign(t, i.key(), i.claims(c, map[string]any{"aud": nil})), ReasonAudience},
		"wrong issuer":      {sign(t, i.key(), i.claims(c, map[string]any{"iss": "https://evil.example"})), ReasonIssuer},
		"unknown key":       {sign(t, newKey(t, "k9"), i.claims(c, nil)), ReasonUnknown},
		"known id, not key": {sign(t, newKey(t, "k1"), i.claims(c, nil)), ReasonUnknown},
		"alg none":          {b64([]byte(`{"alg":"none"}`)) + "." + payload + ".", ReasonMalformed},
		"alg none, signed":  {b64([]byte(`{"alg":"none","kid":"k1"}`)) + "." + payload + "." + signature, ReasonMalformed},
		"symmetric":         {sign(t, jose.JSONWebKey{Key: public, KeyID: "k1", Algorithm: "HS256"}, i.claims(c, nil)), ReasonMalformed},
		"changed payload":   {head + "." + b64([]byte(`{"sub":"root"}`)) + "." + signature, ReasonUnknown},
		"no subject":        {sign(t, i.key(), i.claims(c, map[string]any{"sub": ""})), ReasonMalformed},
		"long subject":      {sign(t, i.key(), i.claims(c, map[string]any{"sub": strings.Repeat("a", 256)})), ReasonMalformed},
		"no jwt":            {"hello", ReasonMalformed},
		"dots":              {"..", ReasonMalformed},
		"large":             {strings.Repeat("a", maxJWT) + "." + rest, ReasonMalformed},
	} {
		_, err := v.Verify(t.Context(), tt.raw)
		d, ok := errors.AsType[*DeniedError](err)
		if !ok || d.Reason != tt.want {
			t.Errorf("%s: %v (%+v), want %s", name, err, d, tt.want)
		}
	}
	if _, err := v.Verify(t.Context(), good); err != nil {
		t.Error(err)
	}
}

func TestOIDCKeyRotation(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	v := verifier(t, i, c, nil)
	old := sign(t, i.key(), i.claims(c, nil))
	if _, err := v.Verify(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	i.rotate("k2")
	if _, err := v.Verify(t.Context(), sign(t, i.key(), i.claims(c, nil))); err != nil {
		t.Errorf("by the new key: %v", err)
	}
	if _, err := v.Verify(t.Context(), old); !errors.Is(err, ErrDenied) {
		t.Errorf("by the key that is gone: %v", err)
	}
}

// Tokens of invented keys do not make the plane a flood for the issuer.
func TestOIDCShieldsIssuer(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	v := verifier(t, i, c, nil)
	if _, err := v.Verify(t.Context(), sign(t, i.key(), i.claims(c, nil))); err != nil {
		t.Fatal(err)
	}
	raw := sign(t, newKey(t, "invented"), i.claims(c, nil))
	for range 50 {
		if _, err := v.Verify(t.Context(), raw); !errors.Is(err, ErrDenied) {
			t.Fatal(err)
		}
	}
	if n := i.fetches.Load(); n > 10 {
		t.Errorf("the issuer was asked %d times", n)
	}
	if _, err := v.Verify(t.Context(), sign(t, i.key(), i.claims(c, nil))); err != nil {
		t.Errorf("a good token in the flood: %v", err)
	}
}

func TestOIDCIssuerAway(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	i.down.Store(true)
	v := verifier(t, i, c, nil)
	raw := sign(t, i.key(), i.claims(c, nil))
	for range 10 { // only the first asks the issuer
		if _, err := v.Verify(t.Context(), raw); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDenied) {
			t.Fatalf("issuer away: %v, want ErrUnavailable", err)
		}
	}
	if n := i.fetches.Load(); n != 1 {
		t.Errorf("the issuer was asked %d times, want 1", n)
	}
	if _, err := v.Verify(t.Context(), "nonsense"); !errors.Is(err, ErrDenied) {
		t.Errorf("what is no token needs no issuer: %v", err)
	}
	i.down.Store(false)
	c.move(discoverBackoff)
	if _, err := v.Verify(t.Context(), raw); err != nil {
		t.Fatalf("issuer back: %v", err)
	}
	i.down.Store(true)
	if _, err := v.Verify(t.Context(), raw); err != nil {
		t.Errorf("a known key, issuer away: %v", err)
	}
	if _, err := v.Verify(t.Context(), sign(t, newKey(t, "k2"), i.claims(c, nil))); !errors.Is(err, ErrUnavailable) {
		t.Errorf("an unknown key, issuer away: %v, want ErrUnavailable", err)
	}
}

func TestOIDCIssuerIsAnother(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	i.iss = "https://evil.example"
	if err := verifier(t, i, c, nil).Discover(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
	// And one whose certificate nobody vouches for.
	v := verifier(t, i, c, func(o *OIDCConfig) { o.CAFile = "" })
	if err := v.Discover(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestOIDCConcurrent(t *testing.T) {
	t.Parallel()
	i, c := newIssuer(t), newClock()
	v := verifier(t, i, c, nil)
	raw := sign(t, i.key(), i.claims(c, nil))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := v.Verify(t.Context(), raw); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestNewVerifier(t *testing.T) {
	t.Parallel()
	roles := map[string]Role{"a": Viewer}
	for name, cfg := range map[string]OIDCConfig{
		"plain http":  {Issuer: "http://x", Audience: "a", RoleClaim: "g", Roles: roles},
		"no issuer":   {Audience: "a", RoleClaim: "g", Roles: roles},
		"no audience": {Issuer: "https://x", RoleClaim: "g", Roles: roles},
		"no claim":    {Issuer: "https://x", Audience: "a", Roles: roles},
		"no roles":    {Issuer: "https://x", Audience: "a", RoleClaim: "g"},
		"agent role":  {Issuer: "https://x", Audience: "a", RoleClaim: "g", Roles: map[string]Role{"a": Agent}},
		"no CA file":  {Issuer: "https://x", Audience: "a", RoleClaim: "g", Roles: roles, CAFile: "/nonexistent"},
		"empty CA":    {Issuer: "https://x", Audience: "a", RoleClaim: "g", Roles: roles, CAFile: os.DevNull},
	} {
		if _, err := NewVerifier(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
