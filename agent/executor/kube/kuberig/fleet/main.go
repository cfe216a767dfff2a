//go:build kubetest

// Command fleet fills a control plane with the demo's GPU hosts and workloads, and
// plays the hosts' part for as long as its standard input is open: the kubelets of
// the agents' Jobs, and the GPUs' reports, from recorded answers.
//
// `make demo-kube` runs it. The agent's user may do what the chart gives it, and
// nothing else.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
)

// Ready is what the program says when the fleet is there, a line of JSON.
type Ready struct {
	Kubeconfig string `json:"kubeconfig"` // the agent's
	Namespace  string `json:"namespace"`  // the agent's
	Config     string `json:"config"`     // the agent's --kube-config-file
	Nodes      int    `json:"nodes"`
	Device     string `json:"device"` // one that wants a reset
}

func main() {
	var o options
	flag.StringVar(&o.plane, "plane", "", "`folder` of the control plane's state")
	flag.StringVar(&o.dir, "dir", "", "`folder` for what the hosts keep")
	flag.StringVar(&o.host, "host", "", "the `program` opsplane-host")
	flag.StringVar(&o.rights, "rights", "infra/helm/opsplane-agent/files/rights.yaml", "the chart's `file` of rights")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel() // whoever wants the fleet is gone
	}()
	err := run(ctx, o)
	asked := ctx.Err() != nil
	stop()
	if err != nil && !asked {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

type options struct{ plane, dir, host, rights string }

// run fills the control plane and plays the hosts until ctx ends.
func run(ctx context.Context, o options) (err error) {
	t := &outside{ctx: ctx}
	defer t.end()
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			err = f.err
		default:
			panic(f)
		}
	}()
	r := kuberig.Attach(t, o.plane)
	ready, err := fill(r, o)
	if err != nil {
		return err
	}
	wait, err := play(ctx, r, o)
	if err != nil {
		return err
	}
	defer wait()
	if err := json.NewEncoder(os.Stdout).Encode(ready); err != nil {
		return fmt.Errorf("say that the fleet is there: %w", err)
	}
	<-ctx.Done()
	return nil
}

// outside is what a rig wants of a test, where there is none.
type outside struct {
	ctx  context.Context
	ends []func()
}

// failure is what ends run from within a rig.
type failure struct{ err error }

func (t *outside) Context() context.Context { return t.ctx }
func (t *outside) Cleanup(f func())         { t.ends = append(t.ends, f) }
func (t *outside) Failed() bool             { return false }
func (t *outside) Helper()                  {}

func (t *outside) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "fleet: "+format+"\n", args...)
}
func (t *outside) Logf(format string, args ...any)   { t.Errorf(format, args...) }
func (t *outside) Fatal(args ...any)                 { panic(failure{fmt.Errorf("%s", fmt.Sprint(args...))}) }
func (t *outside) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func (t *outside) TempDir() string {
	dir, err := os.MkdirTemp("", "opsplane-fleet-")
	if err != nil {
		t.Fatalf("make a folder: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (t *outside) end() {
	for i := len(t.ends) - 1; i >= 0; i-- {
		t.ends[i]()
	}
}
