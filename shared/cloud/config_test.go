package cloud

import (
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/retention"
)

// whole is an environment with everything.
var whole = map[string]string{
	EnvStage: "prod", EnvTable: "opsplane-prod", EnvQueuePrefix: "opsplane-prod-", EnvBus: "opsplane-prod", EnvLogLevel: "warn",
	EnvOIDCIssuer: "https://id.example", EnvOIDCAudience: "opsplane", EnvOIDCRoles: "sre=operator; cn=leads,dc=x=admin",
	EnvOIDCForceValue: "cn=leads,dc=x", EnvOIDCClustersClaim: "clusters",
	EnvEventDetails: "operation.*=336h; device.xid=168h", EnvWebhookAllow: "10.0.0.0/8, fd00::/8", EnvPublicURL: "https://ops.example/plane/",
}

func without(names ...string) map[string]string {
	env := maps.Clone(whole)
	for _, n := range names {
		delete(env, n)
	}
	return env
}

func with(pairs ...string) map[string]string {
	env := maps.Clone(whole)
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return env
}

func TestConfig(t *testing.T) {
	t.Parallel()
	want := Config{Stage: "prod", Table: "opsplane-prod", QueuePrefix: "opsplane-prod-", Bus: "opsplane-prod", LogLevel: slog.LevelWarn,
		OIDC: &auth.OIDCConfig{Issuer: "https://id.example", Audience: "opsplane", RoleClaim: "roles", ForceValue: "cn=leads,dc=x", ClustersClaim: "clusters",
			Roles: map[string]auth.Role{"sre": auth.Operator, "cn=leads,dc=x": auth.Admin}}}
	want.Retention, want.WebhookAllow, want.PublicURL = retention.Default, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}, "https://ops.example/plane"
	want.Retention.Details = map[string]time.Duration{"operation.*": 336 * time.Hour, "device.xid": 168 * time.Hour}
	plain := want
	plain.OIDC, plain.LogLevel, plain.WebhookAllow, plain.PublicURL, plain.Retention = nil, slog.LevelInfo, nil, "", retention.Default
	for name, tt := range map[string]struct {
		env  map[string]string
		want Config
	}{
		"all of it":     {whole, want},
		"no issuer":     {without(EnvOIDCIssuer, EnvLogLevel, EnvEventDetails, EnvWebhookAllow, EnvPublicURL), plain},
		"empty issuer":  {with(EnvOIDCIssuer, ""), func() Config { c := want; c.OIDC = nil; return c }()},
		"a role claim":  {with(EnvOIDCRoleClaim, "realm.roles"), func() Config { c := want; o := *c.OIDC; o.RoleClaim = "realm.roles"; c.OIDC = &o; return c }()},
		"upper case":    {with(EnvLogLevel, "WARN"), want},
		"trailing mark": {with(EnvOIDCRoles, "sre=operator;cn=leads,dc=x=admin;"), want},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := read(func(n string) string { return tt.env[n] })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(auth.OIDCConfig{}, "Now"), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestConfigNamesWhatIsWrong: all of it at once.
func TestConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"nothing set":       {nil, []string{EnvStage, EnvTable, EnvQueuePrefix, EnvBus}},
		"one missing":       {without(EnvTable), []string{EnvTable}},
		"bad level":         {with(EnvLogLevel, "loud"), []string{EnvLogLevel, "loud"}},
		"bad prefix":        {with(EnvQueuePrefix, "ops.plane-"), []string{EnvQueuePrefix, "ops.plane-"}},
		"long prefix":       {with(EnvQueuePrefix, strings.Repeat("x", 43)), []string{EnvQueuePrefix}},
		"issuer alone":      {without(EnvOIDCAudience, EnvOIDCRoles), []string{EnvOIDCAudience, EnvOIDCRoles}},
		"issuer not https":  {with(EnvOIDCIssuer, "http://id.example"), []string{EnvOIDCIssuer}},
		"a role unknown":    {with(EnvOIDCRoles, "sre=god"), []string{EnvOIDCIssuer, "god"}},
		"roles without one": {with(EnvOIDCRoles, "sre"), []string{EnvOIDCRoles, "sre"}},
		"no age":            {with(EnvEventDetails, "node.left"), []string{"EventDetails", EnvEventDetails, "node.left"}},
		"an age in days":    {with(EnvEventDetails, "node.left=14d"), []string{"EventDetails", "14d"}},
		"no type":           {with(EnvEventDetails, "node=24h"), []string{"EventDetails", `"node"`, "node.left"}},
		"too short":         {with(EnvEventDetails, "node.*=5m"), []string{"EventDetails", "node.*", "1h"}},
		"as events or more": {with(EnvEventDetails, "node.*=720h"), []string{"EventDetails", "node.*", "720h"}},
		"a type twice":      {with(EnvEventDetails, "node.*=24h;node.*=48h"), []string{"EventDetails", "node.*", "twice"}},
		"no network":        {with(EnvWebhookAllow, "10.0.0.0/8,10.0.0.1"), []string{"WebhookAllow", EnvWebhookAllow, `"10.0.0.1"`}},
		"a wide network":    {with(EnvWebhookAllow, "10.0.0.0/33"), []string{"WebhookAllow", "10.0.0.0/33"}},
		"no URL":            {with(EnvPublicURL, "ops.example"), []string{"PublicUrl", EnvPublicURL, "ops.example"}},
		"a URL with a user": {with(EnvPublicURL, "https://a:b@ops.example"), []string{"PublicUrl", "user"}},
		"a URL with more":   {with(EnvPublicURL, "https://ops.example?x=1"), []string{"PublicUrl"}},
		"several":           {with(EnvPublicURL, "ftp://x", EnvWebhookAllow, "x"), []string{"PublicUrl", "WebhookAllow"}},
		"agents by issuer":  {with(EnvOIDCRoles, "sre=agent"), []string{"agent"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := read(func(n string) string { return tt.env[n] })
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %s", err, w)
				}
			}
			if c.Table != "" {
				t.Error("a configuration came with the error")
			}
		})
	}
}
