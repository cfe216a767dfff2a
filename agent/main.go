// Command opsplane-agent carries a cluster's operations out. See agentcmd for
// its flags and package loop for how it works.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/opsplane/opsplane/agent/agentcmd"
	"github.com/opsplane/opsplane/agent/agentcmd/kubecmd"
	"github.com/opsplane/opsplane/agent/executor/host"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	code := agentcmd.Main(ctx, os.Args[1:], os.Stdin, os.Stderr, kubecmd.Kind(), host.Kind(), agentcmd.Sim())
	os.Exit(code)
}
