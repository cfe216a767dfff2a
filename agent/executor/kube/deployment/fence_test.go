//go:build kubetest

package deployment

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// Two leases of one run: the older is stopped before or after its fence, the
// newer restarts, the older wakes. There is one restart.
func TestTwoLeasesRestartOnce(t *testing.T) {
	t.Parallel()
	for _, point := range []string{cluster.BeforeFence, cluster.AfterFence} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			reached, wake := make(chan struct{}), make(chan struct{})
			old := setup(t, kuberig.Shared(t), "admin", cluster.Options{Pause: func(at string, task *executor.Task) {
				if at == point && task.Assignment.Generation == 1 {
					close(reached)
					<-wake
				}
			}})
			old.hands()
			d := old.deployment("web", 2, nil)
			one := old.lease(Roll(old.c), "Deployment", "web", string(d.UID), "never")
			if point == cluster.BeforeFence { // the agent knows by its clock that its time is over
				one = expired(one)
			}
			ended := make(chan executor.Outcome, 1)
			go func() { ended <- one.run(old.ctx(), "restart") }()
			<-reached
			two := one.next(Roll(old.c), 1)
			if f := two.probe(old.ctx(), "restart"); f.Phase != operation.StepPending {
				t.Errorf("the newer lease finds %+v", f)
			}
			old.must(two, "restart")
			close(wake)
			o := <-ended
			switch point {
			case cluster.BeforeFence:
				if o.ErrorCode != "fenced" {
					t.Errorf("the older lease: %+v", o)
				}
			case cluster.AfterFence: // its patch is refused, and it sees that the work is done
				if o.Class != operation.OutcomeDone || len(one.commands) != 1 || one.commands[0] != "restart "+old.ns+"/web: conflict" {
					t.Errorf("the older lease: %+v, commands %v", o, one.commands)
				}
			}
			old.must(two, "wait", "confirm")
			now, err := old.admin.AppsV1().Deployments(old.ns).Get(old.ctx(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if m, _ := cluster.ReadMark(now.Annotations); m != cluster.MarkOf(two.task("restart")) {
				t.Errorf("the deployment carries %s", m)
			}
			if n := len(old.replicaSets()); n != 2 {
				t.Errorf("%d revisions, want that of before and one more", n)
			}
		})
	}
}

// expired is a lease whose fence says no.
func expired(l *lease) *lease {
	l.fence = func(context.Context) (context.Context, context.CancelFunc, error) {
		return nil, func() {}, executor.ErrFenced
	}
	return l
}

func TestOlderLeaseIsRefusedAfterANewerRun(t *testing.T) {
	t.Parallel()
	s := setup(t, kuberig.Shared(t), "admin", cluster.Options{})
	s.hands()
	d := s.deployment("web", 1, nil)
	one := s.lease(Roll(s.c), "Deployment", "web", string(d.UID), "never")
	two := one.next(Roll(s.c), 2)
	s.must(two, "restart", "wait", "confirm")
	if o := one.run(s.ctx(), "restart"); o.ErrorCode != "fenced" || len(one.commands) != 0 {
		t.Errorf("the older lease: %+v, commands %v", o, one.commands)
	}
}
