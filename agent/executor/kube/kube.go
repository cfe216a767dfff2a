package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component"
	"github.com/opsplane/opsplane/agent/executor/kube/device"
	"github.com/opsplane/opsplane/agent/executor/kube/inventory"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Options configure Open.
type Options struct {
	Cluster cluster.Options
	// Exclude are namespaces whose deployments are not reported; nil: kube-system.
	Exclude []string
	// Labels are reported of nodes beside the built-in ones.
	Labels []string
	// Components names components by the charts that install them, beside the
	// built-in ones.
	Components map[string]string
	// Namespaces are where components are installed, by their names, in place of the
	// built-in ones. A component that may be upgraded is looked for where its release
	// is, too.
	Namespaces map[string][]string
	// Device is how device.reset runs its Jobs; off unless Enabled.
	Device device.Config
	// Component is what component.upgrade may upgrade; nothing unless it names any.
	Component component.Config
}

// Executor carries operations out in one Kubernetes cluster.
type Executor struct {
	cluster   *cluster.Cluster
	inventory *inventory.Inventory
	types     map[string]cluster.Type
}

var _ executor.Executor = (*Executor)(nil)

// Open reads the credentials and begins to watch the cluster. A server that does
// not answer is no error: Healthy tells of it.
func Open(o Options) (*Executor, error) {
	c, err := cluster.Open(o.Cluster)
	if err != nil {
		return nil, err
	}
	inv, err := inventory.Open(inventory.Options{
		Cluster: c, Exclude: o.Exclude, Labels: o.Labels, Components: o.Components, Namespaces: namespaces(o, c.Namespace),
		Cordon: node.CordonOf, Lift: node.LiftOf, LocalData: node.HasLocalData, Judge: node.Blockers(c.Now),
	})
	if err != nil {
		return nil, err
	}
	e := &Executor{cluster: c, inventory: inv, types: map[string]cluster.Type{}}
	for _, t := range types(c, inv, o) {
		e.types[t.Name] = t
	}
	return e, nil
}

// namespaces are where components are looked for: as the options say, and where
// the releases are that may be upgraded. own is the agent's.
func namespaces(o Options, own string) map[string][]string {
	out := map[string][]string{}
	maps.Copy(out, o.Namespaces)
	for name, c := range o.Component.Components {
		known, ok := out[name]
		if !ok {
			known = inventory.ComponentNamespaces(name, own)
		}
		out[name] = append(slices.Clone(known), c.Namespace)
	}
	return out
}

// Close stops watching the cluster.
func (e *Executor) Close() error { return e.inventory.Close() }

// Healthy tells why operations and inventory cannot go on: nil when they can.
func (e *Executor) Healthy() error { return e.inventory.Healthy() }

// Lacks names the rights without which operations go on and something is left out;
// "" if none is known to be missing.
func (e *Executor) Lacks() string { return e.cluster.Lacks() }

// Cluster is the API server as the executor reaches it.
func (e *Executor) Cluster() *cluster.Cluster { return e.cluster }

// Capabilities lists what the types offer, each name once, in its newest version.
func (e *Executor) Capabilities() []protocol.Capability {
	newest := map[string]int{}
	for _, t := range e.types {
		for _, c := range t.Capabilities {
			newest[c.Name] = max(newest[c.Name], c.Version)
		}
	}
	var list []protocol.Capability
	for name, version := range newest {
		list = append(list, protocol.Capability{Name: name, Version: version})
	}
	slices.SortFunc(list, func(a, b protocol.Capability) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// step finds a task's step; what is not known here is said in the detail.
func (e *Executor) step(t *executor.Task) (s cluster.Step, detail string) {
	s, found := e.types[t.Assignment.Type].Steps[t.Step.Name]
	if !found {
		return s, fmt.Sprintf("no step %s of %s is known here", t.Step.Name, t.Assignment.Type)
	}
	return s, ""
}

// Probe reads the truth about a step.
func (e *Executor) Probe(ctx context.Context, t *executor.Task) executor.Finding {
	s, unknown := e.step(t)
	if unknown != "" {
		return executor.Unknown(codeUnknownStep, unknown)
	}
	return s.Probe(cluster.Operation(ctx, t.Assignment), t)
}

// Execute brings a step to its end state.
func (e *Executor) Execute(ctx context.Context, t *executor.Task) executor.Outcome {
	s, unknown := e.step(t)
	if unknown != "" {
		return executor.Permanent(codeUnknownStep, unknown)
	}
	return s.Execute(cluster.Operation(ctx, t.Assignment), t)
}

const codeUnknownStep = "unknown_step"

// Observe describes the target at the end.
func (e *Executor) Observe(ctx context.Context, a *protocol.Assignment) executor.Ending {
	var end executor.Ending
	if t := e.types[a.Type]; t.Observe != nil {
		t.Observe(cluster.Operation(ctx, a), a, &end)
	}
	e.inventory.Settled(end.Observed)
	return end
}

// Preview tells what an operation would meet now, changing nothing.
func (e *Executor) Preview(ctx context.Context, r protocol.PreviewRequest) ([]protocol.Blocker, error) {
	t, found := e.types[r.Type]
	switch {
	case !found:
		return nil, fmt.Errorf("preview %s: %w", r.Type, errUnknownType)
	case t.Preview == nil:
		return []protocol.Blocker{}, nil
	}
	blockers, err := t.Preview(ctx, r)
	if err == nil && blockers == nil {
		blockers = []protocol.Blocker{}
	}
	return blockers, err
}

var errUnknownType = errors.New("the type is not known here")

// Snapshot returns the whole inventory.
func (e *Executor) Snapshot(ctx context.Context) (protocol.Inventory, error) {
	return e.inventory.Snapshot(ctx)
}

// Watch tells of changes and events until ctx ends.
func (e *Executor) Watch(ctx context.Context, f func(executor.Delta)) error {
	return e.inventory.Watch(ctx, f)
}
