// Package agentcmd is the agent as a command: its flags, its executor, its loop,
// its health and metrics. The agent's own program and the one-machine engine,
// which runs itself once more as an agent, share it. Each names the kinds of
// executor that it is linked with.
package agentcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/opsplane/opsplane/agent/loop"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitRefused: the plane refuses the token; starting again is of no use until
	// there is another.
	exitRefused = 3
)

// Main runs the agent until ctx ends, and with --parent-pipe until stdin does:
// an agent whose parent died stops with it. It returns the exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stderr io.Writer, kinds ...Kind) int {
	o, err := parse(args, stderr, kinds)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "opsplane-agent:", err)
		return exitUsage
	case o.showVersion:
		fmt.Fprintln(stderr, "opsplane-agent", Version())
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

func run(ctx context.Context, o options, stdin io.Reader, log *slog.Logger) error {
	token, err := readToken(o.tokenFile)
	if err != nil {
		return err
	}
	opened, err := o.kind.open(Env{Version: Version(), Log: log})
	if err != nil {
		return err
	}
	if opened.Close != nil {
		defer opened.Close()
	}
	cfg := loop.Config{
		PlaneURL: o.plane, Token: token, CAFile: o.caFile, Name: o.name, Version: Version(), Executor: opened.Executor,
		OpenQueue: opener(ctx, o), Concurrency: o.concurrency, StateDir: o.stateDir, StopGrace: o.stopGrace, Logger: log,
	}
	if o.tokenFile != "" {
		cfg.TokenNow = newTokenFile(o.tokenFile, token, log).current
	}
	agent, err := loop.New(cfg)
	if err != nil {
		return err
	}
	if o.listen != "" {
		stop, err := listen(o, agent, opened, log)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		defer stop() // the last to go: a stopping agent still answers
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

// linked is the version that a release is built with:
// -ldflags "-X github.com/opsplane/opsplane/agent/agentcmd.linked=v1.2.3".
var linked string

// Version is the release, else the module's version, else the commit that the
// program was built from.
func Version() string {
	if linked != "" {
		return linked
	}
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
