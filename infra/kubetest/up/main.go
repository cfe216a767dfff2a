// Command up brings a Kubernetes control plane of processes on this machine: in
// the foreground for people, as the demo with the plane and the agent, or for as
// long as the tests with the tag kubetest take.
//
// It builds what it needs once and keeps it outside the repository, and ends
// everything that it started when it ends, however that comes about.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/infra/kubetest/plane"
)

const usage = `usage: kubetest VERB [flags]

  test    build, start the shared control plane and run the tests with the tag;
          what follows -- is given to go test in place of all their packages
  bench   the same, benchmarks alone
  demo    a control plane with GPU nodes, the plane and the agent, in the foreground
  up      a control plane alone, in the foreground: for go test by hand
  build   build what the others need
  plane   a control plane for the process that stdin comes from (package kuberig)
  user    make a user of a control plane (package kuberig)
  keep    run a program for as long as stdin is open
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(os.Stderr, usage)
	case err != nil && ctx.Err() == nil:
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		os.Exit(1)
	case ctx.Err() != nil:
		os.Exit(130) // a run that was broken off proves nothing
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return flag.ErrHelp
	}
	verb, args := args[0], args[1:]
	fs := flag.NewFlagSet("kubetest "+verb, flag.ContinueOnError)
	fs.SetOutput(stderr)
	if verb == "keep" {
		return keep(args, stdin, stdout, stderr)
	}
	if verb == "plane" {
		var o plane.Options
		fs.StringVar(&o.Bin, "bin", "", "`folder` of kubebox")
		fs.StringVar(&o.Dir, "dir", "", "`folder` of the state")
		fs.BoolVar(&o.Audit, "audit", false, "log requests")
		fs.DurationVar(&o.NodeGrace, "node-grace", 0, "`time` without a heartbeat after which a node is NotReady")
		without := fs.String("without", "", "`components` to leave out, with commas between")
		if err := fs.Parse(args); err != nil {
			return err
		}
		o.Without = strings.FieldsFunc(*without, func(r rune) bool { return r == ',' })
		return plane.Serve(ctx, o, stdin, stdout)
	}
	if verb == "user" {
		dir, name := fs.String("dir", "", "`folder` of the control plane's state"), fs.String("name", "", "the user's `name`")
		if err := fs.Parse(args); err != nil {
			return err
		}
		path, err := plane.WriteUser(*dir, *name, fs.Args())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(stdout, path)
		return err
	}
	r := &runner{out: stderr, began: time.Now()}
	fs.StringVar(&r.root, "root", ".", "the repository's `folder`")
	addr := fs.String("addr", "127.0.0.1:8080", "with demo, loopback `address` of the API")
	data := fs.String("data", "", "with demo, data `folder` to keep (default: one that is removed)")
	module := fs.String("module", ".", "with test and bench, `folder` of the module that what follows -- is about")
	fs.StringVar(&r.runWith, "runner", "", "with test, `command` that runs them, with gotestsum's flags (default: go test)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := r.open(); err != nil {
		return err
	}
	do, ok := map[string]func(context.Context) error{
		"build": r.build,
		"up":    r.foreground,
		"test":  func(ctx context.Context) error { return r.test(ctx, *module, fs.Args()) },
		"bench": func(ctx context.Context) error { return r.bench(ctx, *module, fs.Args()) },
		"demo":  func(ctx context.Context) error { return r.demo(ctx, *addr, *data) },
	}[verb]
	if !ok {
		return fmt.Errorf("no verb %q\n\n%s", verb, usage)
	}
	return errors.Join(do(ctx), r.close())
}
