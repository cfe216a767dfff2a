// Package cloud puts the plane together on AWS: the environment's configuration,
// the engines behind the three seams, and the domain's services over them.
//
// It belongs to the programs: a function's main reads the configuration, opens
// the plane and asks it for what that function serves. Nothing that one function
// alone needs is imported here, and services are made by methods, so that the
// linker leaves out of each binary what its main does not call.
package cloud

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/retention"
)

// The environment of every function; template.yaml sets it. No variable ever
// holds a secret.
const (
	EnvStage       = "OPSPLANE_STAGE"        // name of the deployment, such as prod
	EnvTable       = "OPSPLANE_TABLE"        // name of the DynamoDB table
	EnvQueuePrefix = "OPSPLANE_QUEUE_PREFIX" // begins the name of each queue
	EnvBus         = "OPSPLANE_BUS"          // name of the EventBridge bus
	EnvLogLevel    = "OPSPLANE_LOG_LEVEL"    // debug, info (also when absent), warn or error
)

// What the authorizer reads beside; see auth.OIDCConfig. Without an issuer only
// API tokens are accepted.
const (
	EnvOIDCIssuer        = "OPSPLANE_OIDC_ISSUER"
	EnvOIDCAudience      = "OPSPLANE_OIDC_AUDIENCE"
	EnvOIDCRoleClaim     = "OPSPLANE_OIDC_ROLE_CLAIM" // "roles" when absent
	EnvOIDCRoles         = "OPSPLANE_OIDC_ROLES"      // VALUE=ROLE;VALUE=ROLE, as opsplane up --oidc-roles takes it
	EnvOIDCForceValue    = "OPSPLANE_OIDC_FORCE_VALUE"
	EnvOIDCClustersClaim = "OPSPLANE_OIDC_CLUSTERS_CLAIM"
)

// What the functions read that make and send messages about alerts, and the sweep
// of what is kept. template.yaml gives each by the parameter named here.
const (
	EnvEventDetails = "OPSPLANE_EVENT_DETAILS" // EventDetails: TYPE=AGE;TYPE=AGE, as opsplane up --event-details takes it
	EnvWebhookAllow = "OPSPLANE_WEBHOOK_ALLOW" // WebhookAllow: NETWORK,NETWORK, as opsplane up --webhook-allow
	EnvPublicURL    = "OPSPLANE_PUBLIC_URL"    // PublicUrl, or the HTTP API's own
)

// Config is what a function is told of its deployment.
type Config struct {
	Stage       string
	Table       string
	QueuePrefix string
	Bus         string
	LogLevel    slog.Level
	OIDC        *auth.OIDCConfig // nil: tokens only
	// Retention is how long what has ended is kept: the default, with what
	// EventDetails says.
	Retention retention.Policy
	// WebhookAllow are the networks that receivers of alerts may be in beside the
	// public internet.
	WebhookAllow []netip.Prefix
	// PublicURL is where people reach the API, for links in messages; "" where a
	// function makes none.
	PublicURL string
	Logger    *slog.Logger // nil: NewLogger's, on the standard output
}

// queuePrefixShape leaves 42 of the 80 characters of a queue's name to the prefix
// (a cluster's seam name has 38) and keeps to the characters that SQS takes
// (Amazon SQS Developer Guide, "Message quotas": queue name).
var queuePrefixShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,42}$`)

// FromEnv reads the configuration. Its error names every variable that is
// missing or cannot be used, not only the first.
func FromEnv() (Config, error) { return read(os.Getenv) }

func read(env func(string) string) (Config, error) {
	var errs []error
	need := func(name string) string {
		v := env(name)
		if v == "" {
			errs = append(errs, fmt.Errorf("%s is not set", name))
		}
		return v
	}
	c := Config{Stage: need(EnvStage), Table: need(EnvTable), QueuePrefix: need(EnvQueuePrefix), Bus: need(EnvBus)}
	if c.QueuePrefix != "" && !queuePrefixShape.MatchString(c.QueuePrefix) {
		errs = append(errs, fmt.Errorf("%s is %q: it takes 1 to 42 letters, digits, hyphens and underscores", EnvQueuePrefix, c.QueuePrefix))
	}
	if level := env(EnvLogLevel); level != "" {
		if err := c.LogLevel.UnmarshalText([]byte(level)); err != nil {
			errs = append(errs, fmt.Errorf("%s is %q: it is debug, info, warn or error", EnvLogLevel, level))
		}
	}
	fault := func(parameter, name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("parameter %s (%s): %w", parameter, name, err))
		}
	}
	var err error
	c.Retention, err = parseDetails(env(EnvEventDetails))
	fault("EventDetails", EnvEventDetails, err)
	c.WebhookAllow, err = parseNetworks(env(EnvWebhookAllow))
	fault("WebhookAllow", EnvWebhookAllow, err)
	c.PublicURL, err = parseBase(env(EnvPublicURL))
	fault("PublicUrl", EnvPublicURL, err)
	if env(EnvOIDCIssuer) != "" {
		c.OIDC = &auth.OIDCConfig{Issuer: env(EnvOIDCIssuer), Audience: need(EnvOIDCAudience), RoleClaim: env(EnvOIDCRoleClaim),
			ForceValue: env(EnvOIDCForceValue), ClustersClaim: env(EnvOIDCClustersClaim)}
		if c.OIDC.RoleClaim == "" {
			c.OIDC.RoleClaim = "roles"
		}
		var err error
		if c.OIDC.Roles, err = parseRoles(need(EnvOIDCRoles)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", EnvOIDCRoles, err))
		}
		if len(errs) == 0 { // what is missing is named already
			if _, err := auth.NewVerifier(*c.OIDC); err != nil {
				errs = append(errs, fmt.Errorf("%s and its kin: %w", EnvOIDCIssuer, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, fmt.Errorf("read environment: %w", err)
	}
	return c, nil
}

// parseRoles reads VALUE=ROLE;VALUE=ROLE. A value may hold equals signs, as
// distinguished names do: the role follows the last one.
func parseRoles(s string) (map[string]auth.Role, error) {
	roles := map[string]auth.Role{}
	for pair := range strings.SplitSeq(s, ";") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		at := strings.LastIndexByte(pair, '=')
		if at < 1 {
			return nil, fmt.Errorf("%q is not VALUE=ROLE", pair)
		}
		roles[pair[:at]] = auth.Role(pair[at+1:])
	}
	return roles, nil
}

// parseDetails reads TYPE=AGE;TYPE=AGE into the policy of what is kept.
func parseDetails(s string) (retention.Policy, error) {
	policy := retention.Default
	for pair := range strings.SplitSeq(s, ";") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		what, age, ok := strings.Cut(pair, "=")
		d, err := time.ParseDuration(age)
		switch _, twice := policy.Details[what]; {
		case !ok || err != nil:
			return retention.Policy{}, fmt.Errorf("%.80q is not TYPE=AGE, such as operation.*=336h", pair)
		case twice:
			return retention.Policy{}, fmt.Errorf("%.80q is there twice", what)
		case policy.Details == nil:
			policy.Details = map[string]time.Duration{}
		}
		policy.Details[what] = d
	}
	if err := policy.Check(); err != nil {
		return retention.Policy{}, err
	}
	return policy, nil
}

// parseNetworks reads networks by commas.
func parseNetworks(s string) (out []netip.Prefix, err error) {
	for text := range strings.SplitSeq(s, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%.80q is no network such as 10.0.0.0/8", text)
		}
		out = append(out, p)
	}
	return out, nil
}

// parseBase reads the URL that links begin with, without a slash at its end.
func parseBase(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		if err != nil {
			s = "what cannot be read" // a password may be in it
		} else {
			s = u.Redacted()
		}
		return "", fmt.Errorf("%.200q is no http or https URL without a user, a query and a fragment", s)
	}
	return strings.TrimRight(s, "/"), nil
}
