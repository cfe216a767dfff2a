// Package agentcmd is the agent as a command: its flags, its executor, its loop.
// The agent's own program and the one-machine engine, which runs itself once
// more as an agent, share it.
package agentcmd

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	"github.com/opsplane/opsplane/agent/loop"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitRefused: the plane refuses the token; starting again is of no use.
	exitRefused = 3
)

// TokenEnv is where the token is read when no file is named. It is never an
// argument: those are public on the machine.
const TokenEnv = "OPSPLANE_TOKEN"

const maxTokenBytes = 8 << 10

type options struct {
	plane, tokenFile, caFile, name  string
	executor, simScenario, simState string
	stateDir, awsRegion             string
	concurrency                     int
	insecure                        bool
	parentPipe, debug, showVersion  bool
}

// Main runs the agent until ctx ends, and with --parent-pipe until stdin does:
// an agent whose parent died stops with it. It returns the exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "opsplane-agent:", err)
		return exitUsage
	case o.showVersion:
		fmt.Fprintln(stderr, "opsplane-agent", version())
		return exitOK
	}
	level := slog.LevelInfo
	if o.debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level})).With(slog.String("agent_name", o.name))
	if err := run(ctx, o, stdin, log); err != nil {
		fmt.Fprintln(stderr, "opsplane-agent:", err)
		var refused *loop.UnauthorizedError
		if errors.As(err, &refused) {
			return exitRefused
		}
		return exitFailed
	}
	return exitOK
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("opsplane-agent", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.plane, "plane", os.Getenv("OPSPLANE_PLANE"), "`URL` of the plane (or OPSPLANE_PLANE)")
	fs.StringVar(&o.tokenFile, "token-file", "", "`file` with the agent's token (else "+TokenEnv+")")
	fs.StringVar(&o.caFile, "ca-file", "", "PEM `file` of CAs to trust besides the system's")
	fs.BoolVar(&o.insecure, "insecure", false, "allow http:// to a plane on another machine: anybody on the way can read the token")
	fs.StringVar(&o.name, "name", "", "stable `name`, unique in the cluster (default: the host's)")
	fs.StringVar(&o.executor, "executor", "sim", "`kind` of executor: "+strings.Join(builtIn(), ", "))
	fs.StringVar(&o.simScenario, "sim-scenario", "demo/alpha", "builtin `name` or file of the simulated cluster")
	fs.StringVar(&o.simState, "sim-state", "", "`folder` of the simulated cluster's state")
	fs.StringVar(&o.stateDir, "state-dir", "", "`folder` for reports that the plane has not taken (default: memory only)")
	fs.StringVar(&o.awsRegion, "aws-region", "", "`region` of the cluster's queue on AWS (default: as its URL says, else AWS_REGION)")
	fs.IntVar(&o.concurrency, "concurrency", 64, "operations carried out at a time")
	fs.BoolVar(&o.parentPipe, "parent-pipe", false, "stop when stdin ends")
	fs.BoolVar(&o.debug, "debug", false, "log more")
	fs.BoolVar(&o.showVersion, "version", false, "print the version")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.showVersion {
		return o, nil
	}
	if o.plane == "" {
		return o, errors.New("--plane is needed")
	}
	if o.awsRegion != "" && !regionShape.MatchString(o.awsRegion) {
		return o, fmt.Errorf("--aws-region %q is no region", o.awsRegion)
	}
	if !o.insecure && sendsInClear(o.plane) {
		return o, errors.New("--plane is http:// on another machine, so the agent's token would be sent in the clear: use https://, or accept it with --insecure")
	}
	if o.concurrency < 1 {
		return o, errors.New("--concurrency must be at least 1")
	}
	if o.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return o, fmt.Errorf("--name is needed: %w", err)
		}
		o.name = host
	}
	return o, nil
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

func run(ctx context.Context, o options, stdin io.Reader, log *slog.Logger) error {
	token, err := readToken(o.tokenFile)
	if err != nil {
		return err
	}
	exec, closeExec, err := openExecutor(o, log)
	if err != nil {
		return err
	}
	defer closeExec()
	agent, err := loop.New(loop.Config{
		PlaneURL: o.plane, Token: token, CAFile: o.caFile, Name: o.name, Version: version(),
		Executor: exec, OpenQueue: opener(ctx, o), Concurrency: o.concurrency, StateDir: o.stateDir, Logger: log,
	})
	if err != nil {
		return err
	}
	if o.parentPipe {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() {
			_, _ = io.Copy(io.Discard, stdin)
			log.Info("the parent is gone")
			cancel()
		}()
	}
	return agent.Run(ctx)
}

func readToken(file string) (string, error) {
	if file == "" {
		if t := strings.TrimSpace(os.Getenv(TokenEnv)); t != "" {
			return t, nil
		}
		return "", errors.New("no token: name --token-file or set " + TokenEnv)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || len(data) > maxTokenBytes || bytes.ContainsAny(data, "\r\n \t") {
		return "", fmt.Errorf("read token: %s does not hold one token", file)
	}
	return string(data), nil
}

// version is the module's version, or the commit that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	if v == "" {
		return "(devel)"
	}
	return v
}
