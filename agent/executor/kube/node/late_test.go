package node

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
)

// A pod that comes while another late one is judged, before which the node is read, is
// found by the next look, and not taken to be gone.
func TestPodComesWhileALateOneIsJudged(t *testing.T) {
	t.Parallel()
	n := theNode(true)
	var pods []runtime.Object
	for _, name := range []string{"a", "b"} {
		pods = append(pods, aPod(name, func(p *corev1.Pod) { p.Spec.NodeName = n.Name }))
	}
	s := &session{node: n, pods: follow.New(follow.Source{}, takePod), plan: map[types.UID]*planned{}, came: map[types.UID]string{}}
	s.pods.Seed(pods[:1], "1")
	client := clustertest.BeforeNodes(fake.NewClientset(n), func(context.Context, string) error {
		s.pods.Seed(pods, "2")
		return nil
	})
	d := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{}).newDrive(&executor.Task{
		Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Hour }, Note: func(string, string) {}}, s, thePayload(t, `{}`), false)
	d.t.Assignment.NodeName = n.Name
	for want := range 2 {
		l := &look{force: map[*planned]int{}, next: heartbeat}
		if stop := d.lookPods(t.Context(), l); stop != nil {
			t.Fatalf("%+v", *stop)
		}
		if len(l.waiting) != want+1 || l.gone != 0 {
			t.Errorf("look %d: waits for %d pods, %d are gone", want+1, len(l.waiting), l.gone)
		}
	}
}
