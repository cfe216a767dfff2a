//go:build kubetest

package inventory

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Whoever may make a Deployment in a namespace of their own cannot pose as the
// cluster's GPU operator: what they made is listed under a name that says where it
// is, while the one where GPU operators are is the component.
func TestRigComponents(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	where, tenant := r.Namespace(), r.Namespace()
	f := followWith(t, Options{Cluster: connect(t, r, kuberig.Admin, where), Namespaces: map[string][]string{"gpu-operator": {where}}})
	c := r.Client(kuberig.Admin)
	install := func(ns, version string) {
		t.Helper()
		r.Deployment(ns, "gpu-operator", 0)
		text := fmt.Sprintf(`{"metadata":{"labels":{"helm.sh/chart":"gpu-operator-%s"}}}`, version)
		if _, err := c.AppsV1().Deployments(ns).Patch(t.Context(), "gpu-operator", types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	found := func(name string) *protocol.Component {
		for _, x := range f.snapshot().Components {
			if x.Name == name {
				return &x
			}
		}
		return nil
	}
	install(tenant, "v99.0.0")
	f.await("the tenant's", func([]executor.Delta) bool { return found(tenant+"/gpu-operator") != nil })
	if x := found("gpu-operator"); x != nil {
		t.Errorf("the tenant's passes for the cluster's: %+v", x)
	}
	install(where, "v25.3.0")
	f.await("the cluster's", func([]executor.Delta) bool { return found("gpu-operator") != nil })
	if x := found("gpu-operator"); x.Version != "v25.3.0" || x.UID != "gpu-operator" || x.Namespace != where {
		t.Errorf("the cluster's is %+v", x)
	}
	if x := found(tenant + "/gpu-operator"); x == nil || x.Version != "v99.0.0" || x.UID != x.Name || x.Namespace != tenant {
		t.Errorf("the tenant's is %+v", x)
	}
	if err := c.AppsV1().Deployments(tenant).Delete(t.Context(), "gpu-operator", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.await("the tenant's gone", func(all []executor.Delta) bool {
		for _, d := range all {
			if contains(d.Gone, "component/"+tenant+"/gpu-operator") {
				return true
			}
		}
		return false
	})
	if x := found("gpu-operator"); x == nil || x.Version != "v25.3.0" {
		t.Errorf("the cluster's went with it: %+v", x)
	}
}

// A host's report counts in the agent's own namespace, of the node under whose
// name it is kept, and nowhere else.
func TestRigForeignReports(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	own, tenant := r.Namespace(), r.Namespace()
	f := follow(t, r, kuberig.Admin, own)
	victim, other := r.Node("inv", kuberig.GPUs(1)), r.Node("inv", kuberig.GPUs(1))
	keep := func(ns, name, node, uuid string) {
		t.Helper()
		m := reportAt(t, time.Now(), node, report.Device{UUID: uuid})
		m.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: m.Labels}
		if _, err := r.Client(kuberig.Admin).CoreV1().ConfigMaps(ns).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const forged, real = "GPU-0badbad0-0000-4b1c-8a11-0123456789ab", "GPU-900d900d-0000-4b1c-8a11-0123456789ab"
	keep(tenant, report.Name(victim.Name), victim.Name, forged)
	keep(own, report.Name(other.Name), victim.Name, forged)
	keep(own, "anything", victim.Name, forged)
	f.event("node.joined", victim.Name, 1)
	has := func(uuid string) (on string) {
		for _, d := range f.snapshot().Devices {
			if d.UID == uuid {
				on = d.NodeName
			}
		}
		return on
	}
	// Kept last, so all of the others were read when this one is.
	keep(own, report.Name(victim.Name), victim.Name, real)
	f.await("the node's own report", func([]executor.Delta) bool { return has(real) == victim.Name })
	if on := has(forged); on != "" {
		t.Errorf("a forged report is believed of %s", on)
	}
}
