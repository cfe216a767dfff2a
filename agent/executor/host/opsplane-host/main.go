// Command opsplane-host is a GPU host's own side of Opsplane: it looks at a
// device, resets it and checks it, once for each call, and answers in JSON on
// standard output and in the container's termination message. As a DaemonSet
// (serve) it keeps the host's report. See infra/docs/host.md.
//
// Exit codes: 0 the answer is ok, 1 it is not (and says why), 2 the command line
// is wrong.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/opsplane/opsplane/agent/executor/host/hostcmd"
)

// linked is the version that a release is built with: -ldflags "-X main.linked=v1.2.3".
var linked string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := hostcmd.Main(ctx, linked, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
