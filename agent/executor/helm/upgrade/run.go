// Package upgrade upgrades a Helm release to one version, once.
//
// Helm's own history is the authoritative state. Each revision that the program
// makes carries the operation's mark in its labels: operation, run, generation,
// and the number of the revision itself, since Helm hands labels on to later
// revisions. Before anything is changed the history is judged: what this run did
// already is not done again, an older generation is refused, and the new revision
// is only made if it directly follows the one that was judged. Helm stores a
// revision under its number, so of two programs that judged the same history one
// loses: that is the lock.
package upgrade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/registry"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// Options say what to upgrade, and for whom.
type Options struct {
	Release    string
	Namespace  string
	Chart      string // oci://..., a name in Repository, a folder or an archive
	Repository string // http(s) URL; empty with the others
	Version    string // of the chart
	Mark       Mark
	// Correlation is the operation's correlation id, for the audit log.
	Correlation string
	// Recover are generations of the operation whose pods are known to be gone: what
	// one of them left pending is nobody's any more.
	Recover   []int64
	Rollback  bool
	PlainHTTP bool
	// Kubeconfig is a file; empty: KUBECONFIG, or the pod's service account.
	Kubeconfig string
	// Timeout bounds the wait for the new version, and that for a rollback.
	Timeout time.Duration
}

// Mark says under which lease of which operation a revision was made.
type Mark struct {
	Operation  string
	Run        int
	Generation int64
}

// Check finds what is missing for a verb.
func (o Options) Check(verb string) error {
	var errs []error
	need := func(name, v string) {
		if v == "" {
			errs = append(errs, fmt.Errorf("-%s is missing", name))
		}
	}
	need("release", o.Release)
	need("namespace", o.Namespace)
	need("operation", o.Mark.Operation)
	switch verb {
	case answer.Status:
	case answer.Preflight, answer.Upgrade:
		need("chart", o.Chart)
		if _, err := semver.NewVersion(o.Version); err != nil {
			errs = append(errs, fmt.Errorf("-version %q is no semantic version", o.Version))
		}
		if u, err := url.Parse(o.Repository); o.Repository != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil) {
			errs = append(errs, errors.New("-repository is no http(s) URL without credentials"))
		}
		if o.Mark.Run < 1 || o.Mark.Generation < 1 {
			errs = append(errs, errors.New("-run and -generation count from 1"))
		}
		if o.Timeout < time.Second {
			errs = append(errs, errors.New("-timeout is under 1s"))
		}
	default:
		errs = append(errs, fmt.Errorf("unknown verb %q", verb))
	}
	return errors.Join(errs...)
}

// job is one run of the program.
type job struct {
	Options
	cfg      *action.Configuration
	client   kubernetes.Interface
	settings *cli.EnvSettings
	log      *slog.Logger
}

// Run carries a verb out and tells how it went.
func Run(ctx context.Context, verb string, o Options, log *slog.Logger) answer.Answer {
	home, err := os.MkdirTemp("", "opsplane-upgrade-")
	if err != nil {
		return answer.Answer{Verb: verb, Code: answer.Internal, Detail: "no folder for the chart: " + err.Error()}
	}
	defer func() { _ = os.RemoveAll(home) }() // it goes with the container anyway
	j, err := open(o, home, log)
	if err != nil {
		a := refusal(err)
		a.Verb = verb
		return a
	}
	var a answer.Answer
	switch verb {
	case answer.Preflight:
		a = j.preflight(ctx)
	case answer.Upgrade:
		a = j.upgrade(ctx)
	default:
		a = j.status()
	}
	a.Verb = verb
	return a
}

// init names this program as Helm's command names itself: the API server keeps
// whose each field of an applied object is, and a release that the command
// installed would not let go of its own to another.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts
func init() { kube.ManagedFieldsManager = "helm" }

func open(o Options, home string, log *slog.Logger) (*job, error) {
	flags := genericclioptions.NewConfigFlags(true)
	flags.Namespace = &o.Namespace
	if o.Kubeconfig != "" {
		flags.KubeConfig = &o.Kubeconfig
	}
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.UserAgent = fmt.Sprintf("opsplane-upgrade operation/%s correlation/%s", o.Mark.Operation, o.Correlation)
		c.QPS, c.Burst = 50, 100
		return c
	}
	cfg := action.NewConfiguration(action.ConfigurationSetLogger(log.Handler()))
	if err := cfg.Init(flags, o.Namespace, "secret"); err != nil {
		return nil, fmt.Errorf("open helm: %w", err)
	}
	client, err := cfg.KubernetesClientSet()
	if err != nil {
		return nil, fmt.Errorf("open cluster: %w", err)
	}
	settings := cli.New() // reads HELM_REGISTRY_CONFIG
	settings.RepositoryCache, settings.ContentCache = filepath.Join(home, "repository"), filepath.Join(home, "content")
	settings.RepositoryConfig = filepath.Join(home, "repositories.yaml")
	settings.PluginsDirectory = filepath.Join(home, "plugins")
	opts := []registry.ClientOption{registry.ClientOptWriter(os.Stderr), registry.ClientOptCredentialsFile(settings.RegistryConfig)}
	if o.PlainHTTP {
		opts = append(opts, registry.ClientOptPlainHTTP())
	}
	if cfg.RegistryClient, err = registry.NewClient(opts...); err != nil {
		return nil, fmt.Errorf("open registry client: %w", err)
	}
	return &job{Options: o, cfg: cfg, client: client, settings: settings, log: log}, nil
}

// status reads the history.
func (j *job) status() answer.Answer {
	h, err := j.history()
	if err != nil {
		return refusal(err)
	}
	a := h.describe(j.Mark)
	a.Detail = fmt.Sprintf("revision %d of %s is %s at %s", h.last().Version, j.Release, h.last().Info.Status, version(h.last()))
	return a
}
