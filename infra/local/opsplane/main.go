// Command opsplane is the one-machine engine, its tools, and those of a
// deployment on AWS.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/opsplane/opsplane/agent/agentcmd"
	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/retention"
)

type cli struct {
	Up      upCmd      `cmd:"" help:"Run the engine in the foreground."`
	Backup  backupCmd  `cmd:"" help:"Copy the ledger to a file, while the engine runs or not."`
	Restore restoreCmd `cmd:"" help:"Make a data folder from a backup."`
	Verify  verifyCmd  `cmd:"" help:"Walk journals, locks and streams, and tell what does not hold."`
	Export  exportCmd  `cmd:"" help:"Write a data folder's ledger, or a table at rest, to standard output, to be imported elsewhere."`
	Import  importCmd  `cmd:"" help:"Put an export from standard input into the empty table of a deployment on AWS."`
	Cluster clusterCmd `cmd:"" help:"Register clusters and their agents' tokens, over the API of either engine."`
	AWS     awsCmd     `cmd:"" name:"aws" help:"What needs the credentials of whoever deployed."`
	Agent   agentCmd   `cmd:"" help:"Run an agent (see opsplane agent --help)." passthrough:""`
	Version struct{}   `cmd:"" help:"Print the version."`
}

type upCmd struct {
	Data      string        `help:"Data folder." default:"data" env:"OPSPLANE_DATA"`
	Addr      string        `help:"Address to listen on." default:"127.0.0.1:8080" env:"OPSPLANE_ADDR"`
	Demo      bool          `help:"Bring a simulated fleet: 3 clusters, 40 nodes of 8 GPUs."`
	TLSCert   string        `help:"Certificate file (PEM)." type:"path"`
	TLSKey    string        `help:"Key file (PEM)." type:"path"`
	Insecure  bool          `help:"Allow an address that is not loopback without TLS."`
	Retention time.Duration `help:"How long finished operations are kept." default:"4320h"`
	Events    time.Duration `help:"How long events are kept." default:"720h"`
	// A type, or a family, and an age: several, by semicolons.
	Details map[string]time.Duration `help:"How long the details of events of a type are kept, where that is less, such as operation.*=336h." name:"event-details"`
	Rate    float64                  `help:"Requests a second for each principal." default:"500"`
	Waits   int                      `help:"Open waits for each principal." default:"100"`
	Allow   []netip.Prefix           `help:"Networks inside that receivers of alerts may be in, such as 10.0.0.0/8; others are refused." name:"webhook-allow" placeholder:"CIDR"`
	Public  string                   `help:"URL at which people reach the engine, for links in notifications." name:"public-url" env:"OPSPLANE_PUBLIC_URL"`
	Log     string                   `help:"Log level." enum:"debug,info,warn,error" default:"info"`

	// Hidden: the docs' bounds follow from these; tests shorten them.
	Lease        time.Duration `hidden:"" default:"15s"`
	CallDeadline time.Duration `hidden:"" default:"10s"`
	RingAfter    time.Duration `hidden:"" default:"10s"`
	AgentSilent  time.Duration `hidden:"" default:"15s"`

	OIDCIssuer   string            `help:"Issuer URL of OIDC tokens to accept." env:"OPSPLANE_OIDC_ISSUER"`
	OIDCAudience string            `help:"Audience that their tokens must have." env:"OPSPLANE_OIDC_AUDIENCE"`
	OIDCRole     string            `help:"Claim that holds the roles." default:"roles" env:"OPSPLANE_OIDC_ROLE_CLAIM"`
	OIDCMap      map[string]string `help:"Values of that claim and the role each gives, such as sre=operator." name:"oidc-roles"`
	OIDCForce    string            `help:"Value of that claim that gives the right to force." name:"oidc-force-value"`
	OIDCClusters string            `help:"Claim that confines to clusters." name:"oidc-clusters-claim"`
	OIDCCA       string            `help:"CA file of the issuer." type:"path" name:"oidc-ca-file"`
}

// check refuses values that would leave an engine nobody can use, or that
// deletes what it has just done.
func (c *upCmd) check() error {
	switch {
	case !(c.Rate > 0) || math.IsInf(c.Rate, 1):
		return fmt.Errorf("--rate must be more than 0 requests a second, is %v", c.Rate)
	case c.Waits <= 0:
		return fmt.Errorf("--waits must be more than 0, is %d", c.Waits)
	case c.Retention < time.Hour:
		return fmt.Errorf("--retention must be 1h or more, is %s", c.Retention)
	case c.Events < time.Hour:
		return fmt.Errorf("--events must be 1h or more, is %s", c.Events)
	}
	if u, err := url.Parse(c.Public); c.Public != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "") {
		return fmt.Errorf("--public-url must be an http or https URL without a query, is %q", c.Public)
	}
	if err := c.policy().Check(); err != nil {
		return fmt.Errorf("--event-details: %w", err)
	}
	return nil
}

// policy is how long what has ended is kept.
func (c *upCmd) policy() retention.Policy {
	return retention.Policy{Operations: c.Retention, Events: c.Events, Agents: retention.Default.Agents, Details: c.Details}
}

func (c *upCmd) Run() error {
	if err := c.check(); err != nil {
		return err
	}
	if err := notMoved(c.Data); err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log)); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	o := local.Options{Data: c.Data, Addr: c.Addr, TLSCert: c.TLSCert, TLSKey: c.TLSKey, Insecure: c.Insecure, Logger: log,
		Timing:    operation.Timing{Lease: c.Lease, CallDeadline: c.CallDeadline, RingAfter: c.RingAfter, AgentSilent: c.AgentSilent},
		Retention: c.policy(), RequestsPerSecond: c.Rate, Waits: c.Waits, WebhookAllow: c.Allow, PublicURL: strings.TrimRight(c.Public, "/")}
	if c.OIDCIssuer != "" {
		roles := map[string]auth.Role{}
		for value, role := range c.OIDCMap {
			roles[value] = auth.Role(role)
		}
		o.OIDC = &auth.OIDCConfig{Issuer: c.OIDCIssuer, Audience: c.OIDCAudience, RoleClaim: c.OIDCRole, Roles: roles,
			ForceValue: c.OIDCForce, ClustersClaim: c.OIDCClusters, CAFile: c.OIDCCA}
	}
	return local.Up(context.Background(), o, c.Demo, os.Stdout)
}

type backupCmd struct {
	File string `arg:"" help:"File to make; it must not exist."`
	Data string `help:"Data folder." default:"data" env:"OPSPLANE_DATA"`
}

func (c *backupCmd) Run(ctx context.Context) error { return local.Backup(ctx, c.Data, c.File) }

type restoreCmd struct {
	File string `arg:"" help:"A backup." type:"path"`
	Data string `help:"Data folder to make; it must be empty or not exist." required:""`
	Mend bool   `help:"Where the backup holds an event twice, which no restore takes, leave the second out; an event stream.repeated in its place tells. The backup stays as it is."`
}

func (c *restoreCmd) Run(ctx context.Context) error {
	if c.Mend {
		return local.RestoreMended(ctx, c.File, c.Data, os.Stderr)
	}
	return local.Restore(ctx, c.File, c.Data)
}

type agentCmd struct {
	Args []string `arg:"" optional:""`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "agent" { // its flags are its own
		// Ctrl-C reaches the whole process group, the simulated agents too.
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop) // a second signal kills
		os.Exit(agentcmd.Main(ctx, os.Args[2:], os.Stdin, os.Stderr, agentcmd.Sim()))
	}
	var c cli
	k := kong.Parse(&c, kong.Name("opsplane"), kong.Description("The operations plane of a GPU fleet."), kong.UsageOnError())
	if strings.HasPrefix(k.Command(), "version") {
		fmt.Println("opsplane", local.Version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	k.BindTo(ctx, (*context.Context)(nil))
	if err := k.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "opsplane:", err)
		os.Exit(1)
	}
}
