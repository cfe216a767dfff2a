//go:build kubetest

package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestPodsThatNameTheNode: a Deployment whose template names the node makes a new pod
// there for each that is evicted. The dry run says so, the drain evicts few of them, names
// the cause at its deadline, and comes to its end once nobody makes them any more.
func TestPodsThatNameTheNode(t *testing.T) {
	t.Parallel()
	r := kuberig.Shared(t)
	n, ns := r.Node("named"), r.Namespace()
	r.Deployment(ns, "named", 1, kuberig.Spec(func(_ *metav1.ObjectMeta, spec *podSpec) { spec.NodeName = n.Name }))
	r.Deployment(ns, "placed", 1, kuberig.OnNode(n.Name))
	user := r.User("agent")
	grant(r, user)
	a := agentOf(t, r.Kubeconfig(user), nil)
	ofNamed := func(b protocol.Blocker) bool {
		return b.Code == codeReturns && strings.HasPrefix(b.Resource, "pod/"+ns+"/named-") && strings.HasPrefix(b.Rule, "replicaset/"+ns+"/named-")
	}
	if list := preview(t, a, "node.drain", n, `{}`); len(list) != 1 || !ofNamed(list[0]) || !strings.Contains(list[0].Detail, "was put on this node by name (spec.nodeName)") {
		t.Errorf("the dry run shows %+v", list)
	}
	r.MarkAudit()
	j := newJob(r, "node.drain", n, `{}`).within(25 * time.Second)
	step, o := a.run(t.Context(), j)
	if o.ErrorCode != codeReturns || o.ActionCode != operation.ActRestoreDependency || !strings.Contains(o.Detail, "brings its pods back to this node") ||
		!strings.HasPrefix(o.ActionText, "take spec.nodeName out of the pod template of ReplicaSet "+ns+"/named-") {
		t.Errorf("at %s with %+v", step, o)
	}
	evicted := 0
	for _, e := range r.Audit(user) {
		if e.Subresource == "eviction" && e.Code < 300 && !strings.Contains(string(e.Request), "dryRun") {
			evicted++
		}
	}
	if evicted < 3 || evicted > 8 {
		t.Errorf("%d evictions", evicted)
	}
	if !slices.ContainsFunc(j.blockers, func(list []protocol.Blocker) bool { return len(list) > 0 && ofNamed(list[0]) && list[0].Since != nil }) {
		t.Errorf("shown %+v", j.blockers)
	}

	j = newJob(r, "node.drain", n, `{}`).within(time.Minute)
	result := a.start(j)
	j.await(t, "pods come back", func() bool { return j.blocked(codeReturns) && len(j.progress) > 3 })
	if err := r.Client(kuberig.Admin).AppsV1().Deployments(ns).Delete(t.Context(), "named", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-result; e.o.Class != operation.OutcomeDone {
		t.Errorf("once nobody makes them any more: at %s with %+v", e.step, e.o)
	}
}
