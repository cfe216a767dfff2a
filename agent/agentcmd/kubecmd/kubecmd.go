// Package kubecmd offers the Kubernetes executor to the agent: its flags, its
// configuration file and its metrics.
package kubecmd

import (
	"flag"
	"log/slog"

	"k8s.io/klog/v2"

	"github.com/opsplane/opsplane/agent/agentcmd"
	"github.com/opsplane/opsplane/agent/executor/kube"
)

// Kind is the Kubernetes executor.
func Kind() agentcmd.Kind {
	return agentcmd.Kind{Name: "kube", Flags: func(fs *flag.FlagSet) (func() error, func(agentcmd.Env) (*agentcmd.Opened, error)) {
		f := &flags{}
		f.add(fs)
		return f.check, f.open
	}}
}

// open makes the executor. It sends nothing yet: an API server that does not
// answer is told by the executor's health.
func (f *flags) open(env agentcmd.Env) (*agentcmd.Opened, error) {
	figures := figures() // before the first client is made
	klog.SetSlogLogger(env.Log.With(slog.String("component", "client-go")))
	o := f.options()
	o.Version, o.Log = env.Version, env.Log
	e, err := kube.Open(kube.Options{
		Cluster: o, Exclude: f.config.Inventory.ExcludeNamespaces, Labels: f.config.Inventory.NodeLabels, Components: f.config.Inventory.Components,
		Namespaces: f.config.Inventory.ComponentNamespaces,
		Device:     f.config.DeviceReset.config(), Component: f.config.ComponentUpgrade.config(),
	})
	if err != nil {
		return nil, err
	}
	return &agentcmd.Opened{Executor: e, Collectors: figures.collectors(), Close: func() {
		if err := e.Close(); err != nil {
			env.Log.Error("the executor did not close", slog.Any("err", err))
		}
	}}, nil
}
