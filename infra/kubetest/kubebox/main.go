// Command kubebox is a Kubernetes control plane in one file: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kwok (which plays the
// kubelets) and kubectl, built from their Go modules at pinned versions.
//
// It is the program that its name says (a link with the program's name), or that
// its first argument says. One link of six programs takes a third of the time and
// of the disk that six links take. Package plane starts it; nothing else of the
// project is compiled with it, so that it is built once and kept.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs may name zones that this machine has no file of

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwokcmd "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

// programs are the programs by their names; each gets its arguments and returns
// its exit code.
var programs = map[string]func(args []string) int{
	"etcd": func(args []string) int {
		etcdmain.Main(append([]string{"etcd"}, args...)) // ends by os.Exit when it fails
		return 0
	},
	"kube-apiserver":          func(args []string) int { return command(apiserver.NewAPIServerCommand(), args) },
	"kube-controller-manager": func(args []string) int { return command(controllermanager.NewControllerManagerCommand(), args) },
	"kube-scheduler":          func(args []string) int { return command(scheduler.NewSchedulerCommand(), args) },
	"kubectl":                 runKubectl,
	"kwok":                    runKwok,
}

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	program, ok := programs[name]
	if !ok && len(args) > 0 {
		name, args = args[0], args[1:]
		program, ok = programs[name]
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: kubebox "+strings.Join(slices.Sorted(maps.Keys(programs)), "|")+" ...")
		os.Exit(2)
	}
	os.Args = append([]string{name}, args...)
	os.Exit(program(args))
}

func command(c *cobra.Command, args []string) int {
	c.SetArgs(args)
	return cli.Run(c)
}

func runKubectl([]string) int {
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil { // before the flags are read
		fmt.Fprintln(os.Stderr, "kubectl:", err)
		return 1
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // ends by os.Exit with kubectl's own codes
	}
	return 0
}

func runKwok(args []string) int {
	// component-base has put a --version that is no switch into the process's
	// flags, and cobra would give it to kwok: it starts from none.
	pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ExitOnError)
	global := pflag.NewFlagSet("global", pflag.ContinueOnError)
	global.ParseErrorsAllowlist.UnknownFlags = true
	global.Usage = func() {}
	ctx, log := kwoklog.InitFlags(signals.SetupSignalContext(), global)
	ctx, err := kwokconfig.InitFlags(ctx, global)
	if err != nil {
		log.Error("Init config flags", "err", err)
		return 1
	}
	c := kwokcmd.NewCommand(ctx)
	c.SetArgs(args)
	c.PersistentFlags().AddFlagSet(global)
	if err := c.ExecuteContext(ctx); err != nil {
		log.Error("Execute exit", "err", err)
		return 1
	}
	return 0
}
