//go:build kubetest

package inventory

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	nodeop "github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Each right is needed: without it the part is named, by verb and resource.
func TestRigRights(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	ns := r.Namespace()
	for _, without := range Rights {
		if without.Group == "leaderworkerset.x-k8s.io" || without.Group == "nvidia.com" {
			continue // not served here: TestRigComesAndGoes
		}
		t.Run(without.Verb+" "+without.Resource, func(t *testing.T) {
			t.Parallel()
			r := r.For(t)
			user := r.User("inventory")
			for _, x := range Rights {
				if x == without {
					continue
				}
				in := ""
				if x.Namespace == cluster.OwnNamespace {
					in = ns
				}
				r.Grant(user, in, kuberig.Rule(x.Group, x.Resource, []string{x.Verb}))
			}
			i, err := Open(Options{Cluster: connect(t, r, user, ns), Cordon: nodeop.CordonOf})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = i.Close() }()
			resource := schema.GroupResource{Group: without.Group, Resource: without.Resource}.String()
			r.Await("the missing right is told", func(context.Context) (bool, error) {
				err := i.Healthy()
				return err != nil && strings.Contains(err.Error(), "the agent's role lacks the right to "+without.Verb+" "+resource) &&
					strings.Contains(err.Error(), "cannot "+without.Verb+" resource") && !strings.Contains(err.Error(), "not listed yet"), nil
			})
			if got := strings.Count(i.Healthy().Error(), "lacks the right"); got != 1 {
				t.Errorf("more than one right is missing: %v", i.Healthy())
			}
		})
	}
}

const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"leaderworkersets.leaderworkerset.x-k8s.io"},
 "spec":{"group":"leaderworkerset.x-k8s.io","scope":"Namespaced","names":{"plural":"leaderworkersets","singular":"leaderworkerset","kind":"LeaderWorkerSet"},
 "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// A CRD that comes and goes, and an API server that goes and comes: nothing is
// told twice and nothing is missed.
func TestRigComesAndGoes(t *testing.T) {
	t.Parallel()
	r := kuberig.Start(t, kuberig.Options{Nodes: 1, Without: []string{kuberig.Scheduler}})
	admin, err := dynamic.NewForConfig(r.Config(kuberig.Admin))
	if err != nil {
		t.Fatal(err)
	}
	user := r.User("inventory")
	for _, x := range Rights {
		r.Grant(user, "", kuberig.Rule(x.Group, x.Resource, []string{x.Verb}))
	}
	ns := r.Namespace()
	f := follow(t, r, user, ns)
	crds := admin.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := crds.Create(t.Context(), parse(t, crd), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	sets := admin.Resource(customs[0].versions[0]).Namespace(ns)
	r.Await("the CRD served", func(ctx context.Context) (bool, error) {
		_, err := sets.List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	set := parse(t, format(aWorkerSet, "2", "False", "t0"))
	set.SetNamespace(ns)
	set.SetUID("")
	if _, err := sets.Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(f.snapshot().Deployments, func(d protocol.Deployment) bool { return d.Name == name && d.Kind == kindLeaderWorkerSet })
	}
	f.await("the set", func([]executor.Delta) bool { return has(ns + "/llm") })

	for _, verb := range []string{"list", "watch"} { // TestRigRights, for an API that is served here alone
		lacking := r.User("inventory")
		for _, x := range Rights {
			if x.Group != "leaderworkerset.x-k8s.io" || x.Verb != verb {
				r.Grant(lacking, "", kuberig.Rule(x.Group, x.Resource, []string{x.Verb}))
			}
		}
		i, err := Open(Options{Cluster: connect(t, r, lacking, ns), Cordon: nodeop.CordonOf})
		if err != nil {
			t.Fatal(err)
		}
		r.Await("the missing right is told", func(context.Context) (bool, error) {
			err := i.Healthy()
			return err != nil && strings.Contains(err.Error(), "cannot "+verb+" resource \"leaderworkersets\""), nil
		})
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}

	r.Kill(kuberig.APIServer)
	r.Await("the loss is told", func(context.Context) (bool, error) {
		err := f.Healthy()
		return err != nil && strings.Contains(err.Error(), "watch nodes, failing since"), nil
	})
	r.Restart(kuberig.APIServer)
	patch(t, r.Client(kuberig.Admin), "node-0", `{"spec":{"unschedulable":true}}`)
	f.event("node.cordoned", "node-0", 1)
	r.Await("all is well", func(context.Context) (bool, error) { return f.Healthy() == nil, nil })
	f.mu.Lock()
	for _, typ := range []string{"node.joined", "node.left", "node.ready"} {
		if n, _ := of(f.told, typ, "node-0"); n != 0 {
			t.Errorf("%s was told of the node that was there all the time", typ)
		}
	}
	f.mu.Unlock()

	if err := crds.Delete(t.Context(), "leaderworkersets.leaderworkerset.x-k8s.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.event("deployment.deleted", ns+"/llm", 1)
	r.Await("all is well without the CRD", func(context.Context) (bool, error) { return !has(ns+"/llm") && f.Healthy() == nil, nil })
}
