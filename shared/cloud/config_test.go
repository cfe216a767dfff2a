package cloud

import (
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/opsplane/opsplane/shared/auth"
)

// whole is an environment with everything.
var whole = map[string]string{
	EnvStage: "prod", EnvTable: "opsplane-prod", EnvQueuePrefix: "opsplane-prod-", EnvBus: "opsplane-prod", EnvLogLevel: "warn",
	EnvOIDCIssuer: "https://id.example", EnvOIDCAudience: "opsplane", EnvOIDCRoles: "sre=operator; cn=leads,dc=x=admin",
	EnvOIDCForceValue: "cn=leads,dc=x", EnvOIDCClustersClaim: "clusters",
}

func without(names ...string) map[string]string {
	env := maps.Clone(whole)
	for _, n := range names {
		delete(env, n)
	}
	return env
}

func with(name, value string) map[string]string {
	env := maps.Clone(whole)
	env[name] = value
	return env
}

func TestConfig(t *testing.T) {
	t.Parallel()
	want := Config{Stage: "prod", Table: "opsplane-prod", QueuePrefix: "opsplane-prod-", Bus: "opsplane-prod", LogLevel: slog.LevelWarn,
		OIDC: &auth.OIDCConfig{Issuer: "https://id.example", Audience: "opsplane", RoleClaim: "roles", ForceValue: "cn=leads,dc=x", ClustersClaim: "clusters",
			Roles: map[string]auth.Role{"sre": auth.Operator, "cn=leads,dc=x": auth.Admin}}}
	plain := want
	plain.OIDC, plain.LogLevel = nil, slog.LevelInfo
	for name, tt := range map[string]struct {
		env  map[string]string
		want Config
	}{
		"all of it":     {whole, want},
		"no issuer":     {without(EnvOIDCIssuer, EnvLogLevel), plain},
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
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(auth.OIDCConfig{}, "Now")); diff != "" {
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
