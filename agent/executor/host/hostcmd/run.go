// Package hostcmd is opsplane-host as a command: its verbs, flags and answers.
package hostcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
	"github.com/opsplane/opsplane/agent/executor/host/holder"
	"github.com/opsplane/opsplane/agent/executor/host/nvml"
	"github.com/opsplane/opsplane/agent/executor/host/recorded"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/host/serve"
	"github.com/opsplane/opsplane/agent/executor/host/verb"
)

// Exit codes.
const (
	exitOK      = iota
	exitRefused // the answer is no
	exitUsage
)

const (
	envTermination     = "OPSPLANE_TERMINATION_LOG"
	defaultTermination = "/dev/termination-log"
	envNode            = "NODE_NAME"
	envNamespace       = "POD_NAMESPACE"
	envKubeconfig      = "KUBECONFIG"
	// maxTimeout bounds --timeout: a reset takes seconds.
	maxTimeout = 15 * time.Minute
)

const usage = `opsplane-host VERB [flags]

  preflight  tell what stands in the way of a reset; changes nothing
  reset      reset a device, once for each run of an operation
  verify     tell whether a device works, and what it reported since its reset
  mark       tell what is remembered of a run's reset; changes nothing
  pods       tell who holds a device; changes nothing
  report     describe the host; changes nothing
  serve      keep the host's report in a ConfigMap
  version    print the version

opsplane-host VERB --help lists a verb's flags.
`

// line is a command line.
type line struct {
	host     verb.Host
	q        verb.Question
	recorded string
	driver   nvml.Options
	serve    serve.Options
	config   string // kubeconfig
}

// Main runs a verb and returns the exit code. version is the release's, empty: it
// is read from the build.
func Main(ctx context.Context, version string, args []string, env func(string) string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	what := args[0]
	verbs := []string{report.VerbPreflight, report.VerbReset, report.VerbVerify, report.VerbMark, report.VerbPods, "report", "serve", "version"}
	switch {
	case what == "help" || what == "-h" || what == "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	case !slices.Contains(verbs, what):
		fmt.Fprintf(stderr, "opsplane-host: there is no verb %q, there are %s\n", what, strings.Join(verbs, ", "))
		return exitUsage
	case what == "version":
		fmt.Fprintln(stdout, versionOf(version))
		return exitOK
	}
	l, err := parse(what, args[1:], env, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, "opsplane-host:", err)
		return exitUsage
	}
	switch what {
	case "serve":
		return serveHost(ctx, l, versionOf(version), stderr)
	case "report":
		h, _ := l.host.Report(ctx)
		_, _ = stdout.Write(serve.JSON(h))
		if h.Code != "" {
			return exitRefused
		}
		return exitOK
	}
	a := map[string]func(context.Context, verb.Question) report.Answer{
		report.VerbPreflight: l.host.Preflight, report.VerbReset: l.host.Reset, report.VerbVerify: l.host.Verify,
		report.VerbMark: l.host.Mark, report.VerbPods: l.host.Pods,
	}[what](ctx, l.q)
	message := a.Message()
	fmt.Fprintf(stdout, "%s\n", message)
	if err := terminate(env, message); err != nil {
		fmt.Fprintln(stderr, "opsplane-host:", err)
		return exitRefused
	}
	if !a.OK {
		return exitRefused
	}
	return exitOK
}

// terminate leaves the answer where the kubelet takes it. Outside of a container
// there is no such place, unless one is named.
func terminate(env func(string) string, message []byte) error {
	path, named := env(envTermination), true
	if path == "" {
		path, named = defaultTermination, false
	}
	flags := os.O_WRONLY | os.O_TRUNC
	if named {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err == nil {
		_, err = f.Write(message)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("write termination message: %w", err)
	}
	return nil
}

// parse reads the flags of a verb.
func parse(what string, args []string, env func(string) string, stderr io.Writer) (*line, error) {
	l := &line{}
	l.host.Now = time.Now
	fs := flag.NewFlagSet("opsplane-host "+what, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&l.host.Node, "node", env(envNode), "the node's `NAME` in Kubernetes ($"+envNode+")")
	fs.StringVar(&l.host.State, "state", "/var/lib/opsplane-host", "`FOLDER` of the host's marks; it has to outlive containers and reboots")
	fs.StringVar(&l.host.Scan.Proc, "proc", "/proc", "the host's /proc; a pod needs hostPID")
	fs.StringVar(&l.host.Scan.PodLogs, "pod-logs", "/var/log/pods", "the kubelet's `FOLDER` of logs, for pods' names; empty: none")
	fs.StringVar(&l.host.Scan.PodResources, "pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock", "the kubelet's `SOCKET` of allocations; empty: none")
	fs.StringVar(&l.host.Kernel, "kernel-log", "", "the kernel's log, for XIDs (default /dev/kmsg; with --recorded none)")
	fs.BoolVar(&l.host.Persistence, "release-persistence", false, "turn persistence mode off for a reset, and on again; without, it is in the way of one")
	fs.StringVar(&l.driver.Root, "driver-root", "", "`FOLDER` of the driver, where it is not installed on the host itself (/run/nvidia/driver)")
	fs.StringVar(&l.driver.Library, "nvml", "", "NVML's `FILE` (default libnvidia-ml.so.1)")
	fs.StringVar(&l.recorded, "recorded", "", "answer from this `FILE`, or this folder's NODE.json, and touch no GPU: for tests and demonstrations")
	asks := what != "serve" && what != "report"
	if asks {
		fs.StringVar(&l.q.Device, "device", "", "the GPU's `UUID` or bus id")
	}
	if asks && what != report.VerbPods {
		fs.StringVar(&l.q.By.Operation, "operation", "", "`ID` of the operation that asks")
		fs.IntVar(&l.q.By.Run, "run", 0, "its run")
		fs.Int64Var(&l.q.By.Generation, "generation", 0, "the generation of its lease")
	}
	if what == report.VerbReset {
		fs.DurationVar(&l.q.Timeout, "timeout", verb.DefaultTimeout, "how long the driver may take")
	}
	if what == "serve" {
		fs.StringVar(&l.serve.Namespace, "namespace", env(envNamespace), "`NAMESPACE` of the ConfigMap ($"+envNamespace+")")
		fs.StringVar(&l.config, "kubeconfig", env(envKubeconfig), "`FILE` of credentials ($"+envKubeconfig+"; default: the pod's own)")
		fs.DurationVar(&l.serve.Every, "every", serve.DefaultEvery, "how often the host is looked at")
		fs.DurationVar(&l.serve.Least, "least", serve.DefaultLeast, "time between two writes")
		fs.DurationVar(&l.serve.Alive, "alive", serve.DefaultAlive, "time after which it is written although nothing changed")
	}
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("%s takes no argument: %q", what, fs.Arg(0))
	}
	return l, l.check(what, asks)
}

// check refuses what no verb could do.
func (l *line) check(what string, asks bool) error {
	_, isUUID := report.UUID(l.q.Device)
	_, isPCI := report.PCI(l.q.Device)
	by := l.q.By
	switch {
	case l.host.State == "":
		return errors.New("--state is empty")
	case asks && !isUUID && !isPCI:
		return fmt.Errorf("--device %q is neither a GPU's UUID nor a bus id", l.q.Device)
	case what == report.VerbReset || what == report.VerbMark || what == report.VerbVerify:
		if by.Operation == "" || len(by.Operation) > report.MaxCodeBytes || by.Run < 1 || by.Generation < 1 {
			return fmt.Errorf("%s needs --operation (at most %d bytes), --run and --generation (from 1): whose reset it is", what, report.MaxCodeBytes)
		}
	}
	if what == report.VerbReset && (l.q.Timeout <= 0 || l.q.Timeout > maxTimeout) {
		return fmt.Errorf("--timeout %s is not between 0 and %s", l.q.Timeout, maxTimeout)
	}
	if what == "serve" {
		switch s := l.serve; {
		case s.Namespace == "":
			return errors.New("--namespace is needed: where the report is kept")
		case l.host.Node == "":
			return errors.New("--node is needed: whose report it is")
		case s.Every < time.Second || s.Least < time.Second || s.Alive < s.Least:
			return errors.New("--every and --least take 1s and more, --alive no less than --least")
		}
	}
	if l.recorded != "" && (l.driver != nvml.Options{}) {
		return errors.New("--recorded does not go with --driver-root or --nvml: it touches no driver")
	}
	if l.host.Kernel == "" && l.recorded == "" {
		l.host.Kernel = "/dev/kmsg"
	}
	l.host.Open = func() (gpu.Driver, error) { return nvml.Open(l.driver) }
	if l.recorded != "" {
		l.host.Open = func() (gpu.Driver, error) { return recorded.Open(l.recorded, l.host.Node) }
	}
	l.host.Scan = l.paths()
	return nil
}

// paths leaves out defaults that are not there: a host without a kubelet.
func (l *line) paths() holder.Options {
	o := l.host.Scan
	for _, p := range []*string{&o.PodLogs, &o.PodResources} {
		if _, err := os.Stat(*p); errors.Is(err, fs.ErrNotExist) {
			*p = ""
		}
	}
	return o
}

func serveHost(ctx context.Context, l *line, version string, stderr io.Writer) int {
	log := slog.New(slog.NewJSONHandler(stderr, nil)).With(slog.String("node", l.host.Node))
	config, err := rest.InClusterConfig()
	if l.config != "" {
		config, err = clientcmd.BuildConfigFromFlags("", l.config)
	}
	var client *kubernetes.Clientset
	if err == nil {
		config.UserAgent = "opsplane-host/" + version
		client, err = kubernetes.NewForConfig(config)
	}
	if err != nil {
		fmt.Fprintln(stderr, "opsplane-host: serve:", err)
		return exitRefused
	}
	o := l.serve
	o.Client, o.Node, o.Log, o.Now, o.Look = client, l.host.Node, log, time.Now, l.host.Report
	if err := serve.Run(ctx, o); err != nil {
		fmt.Fprintln(stderr, "opsplane-host:", err)
		return exitRefused
	}
	return exitOK
}

func versionOf(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return info.Main.Version
}
