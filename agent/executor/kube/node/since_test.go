package node

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/protocol"
)

// Since when a pod that was told to stop stands in the way the cluster tells, to
// whoever takes the drain over: since that, since its grace was over, or since its node
// went away.
func TestSinceWhenPodsStay(t *testing.T) {
	t.Parallel()
	unreachable := func(at time.Time) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(at)}
	}
	for name, tt := range map[string]struct {
		told time.Duration // to stop, so long ago, with 10 s of grace
		hold bool
		lost time.Duration // the node went, so long ago; 0: it is there
		code string
		want time.Duration
	}{
		"in its grace":          {4 * time.Second, false, 0, "terminating", 4 * time.Second},
		"past its grace":        {time.Minute, false, 0, "stopping", 50 * time.Second},
		"with a finalizer":      {time.Minute, true, 0, "finalizer", 50 * time.Second},
		"on a node that is off": {time.Minute, false, 20 * time.Second, "node_unreachable", 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				now, pod, n := time.Now(), aPod("slow", ago(tt.told)), theNode(true)
				if tt.hold {
					withHold(pod)
				}
				if tt.lost > 0 {
					n.Status.Conditions = append(n.Status.Conditions, unreachable(now.Add(-tt.lost)))
				}
				s := &session{node: n, pods: follow.New(follow.Source{}, takePod), plan: map[types.UID]*planned{pod.UID: {uid: pod.UID, name: key(pod)}}}
				s.pods.Seed([]runtime.Object{pod}, "1")
				var told []protocol.Blocker
				d := &drive{drainer: newDrainer(&cluster.Cluster{Client: fake.NewClientset(), Now: time.Now}, Options{}), s: s, gone: true, begun: now.Add(time.Hour), serving: map[string]*serving{},
					t: &executor.Task{Assignment: lease("op_1"), Remaining: func() time.Duration { return time.Hour }, Progress: func(int, int, string, string) {},
						Blocked: func(b []protocol.Blocker) { told = b }}}
				defer time.Sleep(time.Minute) // what it watched lingers
				defer d.close()
				l, stop := d.look(t.Context())
				if stop != nil {
					t.Fatal(stop)
				}
				d.tell(l)
				found := false
				for _, b := range told {
					if b.Resource != "pod/ns/slow" {
						continue
					}
					found = true
					if b.Code != tt.code || b.Since == nil || !b.Since.Equal(now.Add(-tt.want)) {
						t.Errorf("%s since %v, not %s since %s", b.Code, b.Since, tt.code, now.Add(-tt.want))
					}
				}
				if !found {
					t.Errorf("told %+v", told)
				}
			})
		})
	}
}
