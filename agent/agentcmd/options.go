package agentcmd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Limits of flags. maxConcurrency is the loop's own.
const (
	maxConcurrency = 10_000
	maxStopGrace   = time.Hour
	maxNameBytes   = 253 // a Kubernetes object's name (RFC 1123 subdomain)
)

type options struct {
	plane, tokenFile, caFile, name string
	executor                       string
	stateDir, awsRegion, listen    string
	concurrency                    int
	stopGrace                      time.Duration
	insecure                       bool
	parentPipe, debug, showVersion bool

	kind *chosen
}

func parse(args []string, stderr io.Writer, kinds []Kind) (options, error) {
	var o options
	fs := flag.NewFlagSet("opsplane-agent", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.plane, "plane", os.Getenv("OPSPLANE_PLANE"), "`URL` of the plane (or OPSPLANE_PLANE)")
	fs.StringVar(&o.tokenFile, "token-file", "", "`file` with the agent's token, looked at again while it runs (else "+TokenEnv+")")
	fs.StringVar(&o.caFile, "ca-file", "", "PEM `file` of CAs to trust besides the system's")
	fs.BoolVar(&o.insecure, "insecure", false, "allow http:// to a plane on another machine: anybody on the way can read the token")
	fs.StringVar(&o.name, "name", "", "stable `name`, unique in the cluster (default: the host's)")
	only := ""
	if len(kinds) == 1 {
		only = kinds[0].Name
	}
	fs.StringVar(&o.executor, "executor", only, "`kind` of executor: "+strings.Join(names(kinds), ", "))
	fs.StringVar(&o.stateDir, "state-dir", "", "`folder` for reports that the plane has not taken (default: memory only)")
	fs.StringVar(&o.awsRegion, "aws-region", "", "`region` of the cluster's queue on AWS (default: as its URL says, else AWS_REGION)")
	fs.StringVar(&o.listen, "listen", "", "`host:port` for /healthz, /readyz and /metrics (default: none)")
	fs.IntVar(&o.concurrency, "concurrency", 64, fmt.Sprintf("operations carried out at a time, 1 to %d", maxConcurrency))
	fs.DurationVar(&o.stopGrace, "stop-grace", 20*time.Second, "how long running steps may finish at a stop, up to "+maxStopGrace.String())
	fs.BoolVar(&o.parentPipe, "parent-pipe", false, "stop when stdin ends")
	fs.BoolVar(&o.debug, "debug", false, "log more")
	fs.BoolVar(&o.showVersion, "version", false, "print the version")
	offered := offer(fs, kinds)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.showVersion {
		return o, nil
	}
	if err := o.check(); err != nil {
		return o, err
	}
	var err error
	o.kind, err = choose(fs, o.executor, kinds, offered)
	return o, err
}

// check looks at the flags that every agent has and fills in the name.
func (o *options) check() error {
	switch {
	case o.plane == "":
		return errors.New("--plane is needed")
	case o.awsRegion != "" && !regionShape.MatchString(o.awsRegion):
		return fmt.Errorf("--aws-region %q is no region", o.awsRegion)
	case !o.insecure && sendsInClear(o.plane):
		return errors.New("--plane is http:// on another machine, so the agent's token would be sent in the clear: use https://, or accept it with --insecure")
	case o.concurrency < 1 || o.concurrency > maxConcurrency:
		return fmt.Errorf("--concurrency %d: it must be 1 to %d", o.concurrency, maxConcurrency)
	case o.stopGrace <= 0 || o.stopGrace > maxStopGrace:
		return fmt.Errorf("--stop-grace %s: it must be more than 0 and at most %s", o.stopGrace, maxStopGrace)
	case len(o.name) > maxNameBytes:
		return fmt.Errorf("--name has %d bytes, the limit is %d", len(o.name), maxNameBytes)
	}
	if o.listen != "" {
		if err := checkListen(o.listen); err != nil {
			return fmt.Errorf("--listen %q: %w", o.listen, err)
		}
	}
	if o.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--name is needed: %w", err)
		}
		o.name = host
	}
	return nil
}

func checkListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("it is not host:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is not a number of 0 (any free one) to 65535", port)
	}
	return nil
}

// sendsInClear tells whether what is sent to the plane can be read on the way.
// What is no URL at all is refused where it is used.
func sendsInClear(plane string) bool {
	u, err := url.Parse(plane)
	if err != nil || u.Scheme != "http" { // Parse lowers the scheme
		return false
	}
	host := strings.ToLower(u.Hostname())
	if host == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.Unmap().IsLoopback()
}
