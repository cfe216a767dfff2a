package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDCConfig describes an OpenID Connect issuer whose tokens are accepted.
type OIDCConfig struct {
	Issuer   string // exactly as in the tokens' iss; https
	Audience string // must be among the tokens' aud
	// RoleClaim holds the groups or roles that Roles maps: a string or a list,
	// by name or by a dotted path ("realm_access.roles").
	RoleClaim string
	// Roles maps values of the RoleClaim. Who has none of them may do nothing.
	Roles map[string]Role
	// ForceValue is the value of the RoleClaim that gives the right to force;
	// empty gives it to nobody.
	ForceValue string
	// ClustersClaim holds the ids of the clusters that the principal is confined
	// to; "*" means all. Empty: nobody is confined. When it is set and a token
	// has none, its principal may do nothing.
	ClustersClaim string
	// CAFile has the PEM certificates of the issuer's authority, besides the
	// system's.
	CAFile string
	Now    func() time.Time // nil: time.Now
}

// signingAlgs are the algorithms accepted, whatever the issuer lists: none that
// is symmetric, and never "none" (RFC 8725, section 3.1).
var signingAlgs = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

const (
	// maxJWT bounds a token: more is not sent by a header either.
	maxJWT = 16 << 10
	// discoverTimeout bounds one try to reach the issuer; a request waits for no
	// longer either.
	discoverTimeout = 5 * time.Second
	// Pauses between tries while the issuer is away; requests in between are
	// answered at once.
	discoverBackoff    = 500 * time.Millisecond
	discoverMaxBackoff = 15 * time.Second
)

// Verifier accepts the tokens of one issuer. The issuer is first asked when the
// first token comes, and again until it answers: the plane starts without it.
// Its keys are kept in memory; tokens of known keys are good while it is away.
type Verifier struct {
	c      OIDCConfig
	now    func() time.Time
	client *http.Client

	mu     sync.Mutex
	keys   oidc.KeySet // nil until discovered
	trying *try        // the discovery in progress
	last   error       // of the last try
	pause  time.Duration
	next   time.Time // no try before
}

// try is one discovery that several requests wait for.
type try struct {
	done chan struct{}
	err  error
}

// NewVerifier checks the configuration; it does not call the issuer.
func NewVerifier(c OIDCConfig) (*Verifier, error) {
	u, err := url.Parse(c.Issuer)
	if err != nil {
		return nil, fmt.Errorf("oidc issuer: %w", err)
	}
	if u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("oidc issuer %q: want an https URL", u.Redacted())
	}
	if c.Audience == "" {
		return nil, errors.New("oidc: no audience")
	}
	if c.RoleClaim == "" || len(c.Roles) == 0 {
		return nil, errors.New("oidc: no role claim or no roles")
	}
	for value, role := range c.Roles {
		if rank[role] == 0 {
			return nil, fmt.Errorf("oidc: %q is mapped to %q: want viewer, operator or admin", value, role)
		}
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("oidc: read CA file: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("oidc: CA file %s has no certificate", c.CAFile)
		}
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	v := &Verifier{c: c, now: c.Now, client: &http.Client{Transport: newIssuerTransport(base), Timeout: discoverTimeout}}
	if v.now == nil {
		v.now = time.Now
	}
	return v, nil
}

// Discover asks the issuer for its configuration unless that is known already.
// The error matches ErrUnavailable. Calling it is never needed.
func (v *Verifier) Discover(ctx context.Context) error {
	_, err := v.keySet(ctx)
	return err
}

func (v *Verifier) keySet(ctx context.Context) (oidc.KeySet, error) {
	v.mu.Lock()
	if v.keys != nil {
		defer v.mu.Unlock()
		return v.keys, nil
	}
	t := v.trying
	if t == nil {
		if v.now().Before(v.next) {
			defer v.mu.Unlock()
			return nil, &unavailableError{v.last}
		}
		t = &try{done: make(chan struct{})}
		v.trying = t
		// The request that began it may leave; the others still wait.
		go v.discover(context.WithoutCancel(ctx), t)
	}
	v.mu.Unlock()
	select {
	case <-t.done:
	case <-ctx.Done():
		return nil, &unavailableError{ctx.Err()}
	}
	if t.err != nil {
		return nil, &unavailableError{t.err}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.keys, nil
}

func (v *Verifier) discover(ctx context.Context, t *try) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, v.client), discoverTimeout)
	defer cancel()
	keys, err := discoverKeys(ctx, v.c.Issuer)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.pause = min(max(2*v.pause, discoverBackoff), discoverMaxBackoff)
		v.next = v.now().Add(v.pause)
	}
	v.keys, v.last, v.trying = keys, err, nil
	t.err = err
	close(t.done)
}

func discoverKeys(ctx context.Context, issuer string) (oidc.KeySet, error) {
	p, err := oidc.NewProvider(ctx, issuer)
	if err != nil {
		return nil, fmt.Errorf("discover issuer %s: %w", issuer, err)
	}
	var doc struct {
		JWKS string `json:"jwks_uri"`
	}
	if err := p.Claims(&doc); err != nil {
		return nil, fmt.Errorf("discover issuer %s: %w", issuer, err)
	}
	if u, err := url.Parse(doc.JWKS); err != nil || u.Scheme != "https" {
		return nil, fmt.Errorf("discover issuer %s: jwks_uri is no https URL", issuer)
	}
	return oidc.NewRemoteKeySet(ctx, doc.JWKS), nil
}

// Verify tells whose token it is. The error matches ErrDenied (with the reason
// in a *DeniedError) or ErrUnavailable.
func (v *Verifier) Verify(ctx context.Context, raw string) (Principal, error) {
	if len(raw) > maxJWT || strings.Count(raw, ".") != 2 {
		return Principal{}, &DeniedError{Reason: ReasonMalformed}
	}
	keys, err := v.keySet(ctx)
	if err != nil {
		return Principal{}, err
	}
	seen := &observedKeys{keys: keys}
	token, err := oidc.NewVerifier(v.c.Issuer, seen, &oidc.Config{
		ClientID: v.c.Audience, SupportedSigningAlgs: signingAlgs, Now: v.now,
	}).Verify(ctx, raw)
	if err != nil {
		return Principal{}, v.refusal(ctx, seen, err)
	}
	return v.principal(token)
}

// observedKeys remembers what came of the signature check: the library tells it
// in the text of its error only.
type observedKeys struct {
	keys   oidc.KeySet
	asked  bool
	signed []byte // the payload, when the signature is good
	err    error
}

func (k *observedKeys) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	k.asked = true
	k.signed, k.err = k.keys.VerifySignature(ctx, jwt)
	return k.signed, k.err
}

// refusal tells a token that is not good from an issuer that cannot be asked.
func (v *Verifier) refusal(ctx context.Context, seen *observedKeys, err error) error {
	_, away := errors.AsType[*issuerError](seen.err)
	switch {
	case away:
		return &unavailableError{seen.err}
	case ctx.Err() != nil:
		return &unavailableError{ctx.Err()}
	case !seen.asked: // no JWT, or of an algorithm that is not accepted
		return &DeniedError{Reason: ReasonMalformed}
	case seen.err != nil:
		return &DeniedError{Reason: ReasonUnknown}
	}
	if _, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return &DeniedError{Reason: ReasonExpired}
	}
	// The signature is good, so that the payload says why.
	claims, err := parseClaims(seen.signed)
	if err != nil {
		return &DeniedError{Reason: ReasonMalformed}
	}
	switch {
	case claims.text("iss") != v.c.Issuer:
		return &DeniedError{Reason: ReasonIssuer}
	case !slices.Contains(claims.list("aud"), v.c.Audience):
		return &DeniedError{Reason: ReasonAudience}
	}
	return &DeniedError{Reason: ReasonMalformed}
}

func (v *Verifier) principal(token *oidc.IDToken) (Principal, error) {
	var c claims
	if err := token.Claims(&c); err != nil || token.Subject == "" || len(token.Subject) > 255 {
		// OpenID Connect Core 1.0, section 2: sub has at most 255 characters.
		return Principal{}, &DeniedError{Reason: ReasonMalformed}
	}
	p := Principal{
		ID:   "oidc:" + v.c.Issuer + "#" + token.Subject,
		Kind: KindOIDC,
		Name: displayName(c, token.Subject),
	}
	for _, value := range c.list(v.c.RoleClaim) {
		if role, ok := v.c.Roles[value]; ok && !slices.Contains(p.Roles, role) {
			p.Roles = append(p.Roles, role)
		}
		p.Force = p.Force || v.c.ForceValue != "" && value == v.c.ForceValue
	}
	if v.c.ClustersClaim != "" {
		clusters := slices.DeleteFunc(c.list(v.c.ClustersClaim), func(id string) bool { return id == "" })
		switch {
		case len(clusters) == 0: // an empty list would mean all
			p.Roles, p.Force = nil, false
		case !slices.Contains(clusters, "*"):
			p.Clusters = clusters
		}
	}
	return p, nil
}

func displayName(c claims, subject string) string {
	for _, claim := range []string{"preferred_username", "email", "name"} {
		name := c.text(claim)
		if name != "" && len(name) <= MaxNameBytes && !strings.ContainsFunc(name, unicode.IsControl) {
			return name
		}
	}
	return subject
}
