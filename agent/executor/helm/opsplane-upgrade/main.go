// opsplane-upgrade runs inside the Job of a component.upgrade: it reads, checks
// and upgrades one Helm release, and answers in its container's termination
// message. It works with the rights of the Job's service account, which the
// cluster's admin binds; the agent itself can install nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor/helm/upgrade"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// envTerminationLog says where the answer goes, if not where Kubernetes reads it.
const envTerminationLog = "OPSPLANE_TERMINATION_LOG"

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	// A node that is drained asks the pod to stop: an upgrade half way is worse than
	// one that uses up its grace period.
	signal.Ignore(syscall.SIGTERM, os.Interrupt)
	var a answer.Answer
	verb, o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		a = answer.Answer{Verb: verb, Code: answer.InvalidArguments, Detail: err.Error()}
	default:
		a = upgrade.Run(context.Background(), verb, o, log)
	}
	log.Info("answer", slog.String("verb", a.Verb), slog.String("code", a.Code), slog.String("detail", a.Detail))
	path := os.Getenv(envTerminationLog)
	if path == "" {
		path = "/dev/termination-log"
	}
	if err := os.WriteFile(path, a.Encode(), 0o600); err != nil {
		log.Error("the answer could not be written", slog.String("path", path), slog.Any("err", err))
		return 2
	}
	if a.Code != "" {
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (verb string, o upgrade.Options, err error) {
	if len(args) == 0 {
		return "", o, fmt.Errorf("name a verb: %s, %s or %s", answer.Preflight, answer.Upgrade, answer.Status)
	}
	verb = args[0]
	f := flag.NewFlagSet("opsplane-upgrade "+verb, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.Release, "release", "", "name of the Helm release")
	f.StringVar(&o.Namespace, "namespace", "", "its namespace")
	f.StringVar(&o.Chart, "chart", "", "the chart: oci://..., a name in -repository, or a folder or archive")
	f.StringVar(&o.Repository, "repository", "", "URL of the chart's repository")
	f.StringVar(&o.Version, "version", "", "the chart version to upgrade to")
	f.StringVar(&o.Mark.Operation, "operation", "", "id of the operation")
	f.IntVar(&o.Mark.Run, "run", 0, "its run")
	f.Int64Var(&o.Mark.Generation, "generation", 0, "its generation")
	f.StringVar(&o.Correlation, "correlation", "", "its correlation id")
	f.Func("recover", "`generations` whose pods are gone, separated by commas: what they left pending is taken over", func(v string) error {
		for _, g := range strings.Split(v, ",") {
			n, err := strconv.ParseInt(g, 10, 64)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no generation", g)
			}
			o.Recover = append(o.Recover, n)
		}
		return nil
	})
	f.BoolVar(&o.Rollback, "rollback", true, "roll back when the upgrade fails")
	f.BoolVar(&o.PlainHTTP, "plain-http", false, "talk to the registry without TLS")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig, outside of a pod")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "how long the new version may take to get ready, and a rollback again")
	if err := f.Parse(args[1:]); err != nil {
		return verb, o, err
	}
	if f.NArg() > 0 {
		return verb, o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	return verb, o, o.Check(verb)
}
