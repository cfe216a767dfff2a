// Command up brings a local AWS with the template deployed into it: in the
// foreground for people, or for as long as the AWS tests take.
//
// It installs what it needs, listens on loopback alone, and ends everything that
// it started when it ends, however that comes about.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/opsplane/opsplane/infra/awstest/rig"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == rig.KeepArg {
		os.Exit(rig.Keep(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	addr := flag.String("addr", "127.0.0.1:8080", "loopback `address` of the API")
	root := flag.String("root", ".", "the repository's `folder`")
	test := flag.Bool("test", false, "run the AWS tests and end; what follows -- is given to go test instead of all packages")
	runner := flag.String("runner", "", "with -test, `command` that runs the tests, with gotestsum's flags (default: go test)")
	onLocalStack := flag.Bool("test-localstack", false, "run the whole flow on LocalStack's image and end")
	bench := flag.Bool("bench", false, "measure operations through the local AWS and end")
	endpoint := flag.String("endpoint", "", "with -test-localstack, the `URL` of a local AWS in place of the image")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *root, func(ctx context.Context, r *rig.Rig) error {
		switch {
		case *test:
			return runTests(ctx, r, *root, *runner, flag.Args())
		case *bench:
			return runBench(ctx, r, *root)
		case *onLocalStack:
			return runOnLocalStack(ctx, r, *root, *endpoint)
		}
		return runDemo(ctx, r, *addr)
	})
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "awstest:", err)
		os.Exit(1)
	}
}

// run gives a rig to do and takes it down after it.
func run(ctx context.Context, root string, do func(context.Context, *rig.Rig) error) (err error) {
	r, err := rig.New(root, os.Stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		err = errors.Join(err, r.Close())
	}()
	return do(ctx, r)
}
