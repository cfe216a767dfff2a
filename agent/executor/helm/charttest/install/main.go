// install installs a chart from a folder as `helm install --wait` does, by Helm's
// own library. It is for tests outside of this module, which alone knows Helm:
// infra/kubeflow and the demo build and run it. Nothing that is delivered does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/kube"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "install:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var kubeconfig, namespace, release, folder, file string
	var timeout time.Duration
	f := flag.NewFlagSet("install", flag.ContinueOnError)
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials")
	f.StringVar(&namespace, "namespace", "", "the release's `namespace`, which is there")
	f.StringVar(&release, "release", "", "`name` of the release")
	f.StringVar(&folder, "chart", "", "`folder` of the chart")
	f.StringVar(&file, "values", "", "YAML `file` of values")
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "how long what is installed may take to get ready")
	if err := f.Parse(args); err != nil {
		return err
	}
	if kubeconfig == "" || namespace == "" || release == "" || folder == "" {
		return errors.New("-kubeconfig, -namespace, -release and -chart are needed")
	}
	values := map[string]any{}
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read values: %w", err)
		}
		if err := yaml.Unmarshal(text, &values); err != nil {
			return fmt.Errorf("read values %s: %w", file, err)
		}
	}
	settings := cli.New()
	settings.KubeConfig = kubeconfig
	settings.SetNamespace(namespace)
	kube.ManagedFieldsManager = "helm" // as Helm's command is known to the API server
	cfg := action.NewConfiguration()
	if err := cfg.Init(settings.RESTClientGetter(), namespace, "secret"); err != nil {
		return fmt.Errorf("open helm: %w", err)
	}
	chart, err := loader.Load(folder)
	if err != nil {
		return fmt.Errorf("load chart %s: %w", folder, err)
	}
	in := action.NewInstall(cfg)
	in.ReleaseName, in.Namespace, in.WaitStrategy, in.Timeout = release, namespace, kube.StatusWatcherStrategy, timeout
	if _, err := in.RunWithContext(ctx, chart, values); err != nil {
		return fmt.Errorf("install release %s: %w", release, err)
	}
	return nil
}
