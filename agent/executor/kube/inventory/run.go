package inventory

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// Rights are what the agent's role must grant for the inventory. Those of APIs
// that the cluster does not serve are asked for and never used.
var Rights = func() []cluster.Right {
	var out []cluster.Right
	for _, r := range []struct{ group, resource, namespace, why string }{
		{"", "nodes", "", "report nodes"},
		{"", "pods", "", "count pods, tell of crashes, find what would block a drain"},
		{"", "configmaps", cluster.OwnNamespace, "read the GPU hosts' reports"},
		{"apps", "deployments", "", "report deployments and components"},
		{"apps", "statefulsets", "", "report deployments and components"},
		{"apps", "daemonsets", "", "report components"},
		{"policy", "poddisruptionbudgets", "", "find what would block a drain"},
		{"resource.k8s.io", "resourceslices", "", "report GPUs that DRA drivers publish"},
		{"leaderworkerset.x-k8s.io", "leaderworkersets", "", "report deployments"},
		{"nvidia.com", "dynamographdeployments", "", "report deployments"},
	} {
		for _, verb := range []string{"list", "watch"} {
			out = append(out, cluster.Right{Verb: verb, Group: r.group, Resource: r.resource, Namespace: r.namespace, Why: r.why})
		}
	}
	return out
}()

// reader is what all typed and dynamic clients have.
type reader[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

func from[L runtime.Object](name string, r reader[L], narrow func(*metav1.ListOptions), to store) *source {
	return &source{name: name, narrow: narrow, to: to, watch: r.Watch,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) }}
}

// tickEvery is how often nodes are judged and counted facts are told.
const tickEvery = 500 * time.Millisecond

// run starts the sources.
func (i *Inventory) run(ctx context.Context, o *Options, client kubernetes.Interface) {
	m, h := i.model, i.health
	var first sync.WaitGroup // lists that are not read yet
	once := func(name string) func() {
		first.Add(1)
		h.expect(name)
		var once sync.Once
		return func() {
			once.Do(func() {
				h.listed(name)
				first.Done()
			})
		}
	}
	apps := client.AppsV1()
	sources := []*source{
		from("nodes", client.CoreV1().Nodes(), nil, newFeed(m, m.stripNode, m.applyNode, once("nodes"))),
		from("deployments.apps", apps.Deployments(""), nil, newFeed(m, stripDeployment, m.applyWorkload, once("deployments.apps"))),
		from("statefulsets.apps", apps.StatefulSets(""), nil, newFeed(m, stripStatefulSet, m.applyWorkload, once("statefulsets.apps"))),
		from("daemonsets.apps", apps.DaemonSets(""), nil, newFeed(m, stripDaemonSet, m.applyWorkload, once("daemonsets.apps"))),
		from("poddisruptionbudgets.policy", client.PolicyV1().PodDisruptionBudgets(""), nil, newFeed(m, stripBudget, m.applyBudget, once("poddisruptionbudgets.policy"))),
		from("configmaps", client.CoreV1().ConfigMaps(o.Cluster.Namespace), reports, newFeed(m, m.stripHost, m.applyHost, once("configmaps"))),
		from("pods", client.CoreV1().Pods(""), running, newFeed(m, m.stripPod, m.applyPod, once("pods"))),
	}
	for _, s := range sources {
		i.done.Go(func() { s.run(ctx, h) })
	}
	for _, x := range i.optional(o, client, once) {
		i.done.Go(func() { x.run(ctx, h, o.LookEvery, client) })
	}
	go func() {
		first.Wait()
		m.settle()
	}()
	i.done.Go(func() { i.tick(ctx) })
	i.done.Go(func() { o.Cluster.Pulse.Tell(ctx, h.pulse) })
}

func (i *Inventory) tick(ctx context.Context) {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		i.model.mu.Lock()
		i.model.unfold()
		i.model.age()
		i.model.ripen()
		i.model.signal()
		i.model.mu.Unlock()
		i.model.judge()
	}
}
