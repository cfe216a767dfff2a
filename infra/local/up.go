package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"sync"
	"syscall"
)

// Up runs the engine in the foreground until a signal or an error ends it. With
// demo it brings a simulated fleet.
func Up(ctx context.Context, o Options, demo bool, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	TuneMemory()
	// Whatever can refuse the start does so before a folder or a token is made.
	l, err := Listen(ctx, o)
	if err != nil {
		return err
	}
	e, err := New(ctx, o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer func() {
		if cerr := e.Close(); cerr != nil {
			e.opts.Logger.Warn("closing the data folder failed", "err", cerr)
		}
	}()
	token, fresh, err := e.AdminToken(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	url := e.url(l.Addr())
	var wg sync.WaitGroup
	defer wg.Wait()
	// The fleet's agents stop before the engine does: they hand their work back.
	run, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	fleetEnded := make(chan struct{})
	if demo {
		wg.Go(func() {
			defer close(fleetEnded)
			if err := e.Fleet(ctx, url, e.opts.TLSCert); err != nil && ctx.Err() == nil {
				e.opts.Logger.Error("the simulated fleet cannot run", "err", err)
			}
		})
	} else {
		close(fleetEnded)
	}
	wg.Go(func() {
		<-ctx.Done()
		<-fleetEnded
		end()
	})
	e.greet(stdout, url, token, fresh, demo)
	err = e.Run(run, l)
	stop()
	return err
}

// url is where the listener is reached on this machine.
func (e *Engine) url(a net.Addr) string {
	scheme := "http"
	if e.opts.TLSCert != "" {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return scheme + "://" + a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// greet prints what a person needs next. The token is printed once, when it was
// made.
func (e *Engine) greet(w io.Writer, url, token string, fresh, demo bool) {
	show := "$(cat " + e.opts.Data + "/" + adminToken + ")"
	fmt.Fprintf(w, "\nOpsplane %s is up.\n\n  URL    %s\n", Version, url)
	switch {
	case fresh:
		fmt.Fprintf(w, "  token  %s\n         (an administrator's; printed this once, kept in %s/%s)\n", token, e.opts.Data, adminToken)
	case token != "":
		fmt.Fprintf(w, "  token  in %s/%s\n", e.opts.Data, adminToken)
	default:
		fmt.Fprintf(w, "  token  none in %s: use one that was given to you\n", e.opts.Data)
	}
	if !demo {
		return
	}
	Commands(w, url, show)
	fmt.Fprintf(w, "\nCtrl-C ends it; the data stays in %s.\n", e.opts.Data)
}

// Commands prints the three commands that show what the plane does; token is
// what the shell is to put into the header.
func Commands(w io.Writer, url, token string) {
	fmt.Fprintf(w, `
Drain a node:
  curl -s %[1]s/v1/operations -H "Authorization: Bearer %[2]s" -H 'Content-Type: application/json' \
    -d '{"type":"node.drain","target":"node:gpu-node-04","reason":"firmware update"}'

Watch it (with the id from the answer):
  curl -s "%[1]s/v1/operations/OP_ID?wait=30s" -H "Authorization: Bearer %[2]s"

Read its journal:
  curl -s %[1]s/v1/operations/OP_ID/journal -H "Authorization: Bearer %[2]s"
`, url, token)
}
