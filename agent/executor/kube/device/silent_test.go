package device

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestSilentAPIServer: what cannot read its node fails nothing, and costs none of a
// step's few attempts.
func TestSilentAPIServer(t *testing.T) {
	t.Parallel()
	e, client, _ := fakes(t)
	client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("shutting down")
	})
	for name, f := range map[string]func(context.Context, *executor.Task, target) executor.Outcome{"preflight": e.preflight, "drain_holders": e.drainHolders, "reset": e.reset, "verify": e.verify} {
		o := e.step(f)(t.Context(), stepTask("op_"+name, 1, 1))
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != "api_unavailable" || !strings.Contains(o.Detail, "does not answer") {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if n := made(client, "jobs", ""); n != 0 {
		t.Errorf("%d jobs were made", n)
	}
}

// TestServerThatHangs: an API server that hangs leaves the watch of a Job's pod
// silent. The step that waits for its answer says so, whatever it knew of the pod, and
// goes back to what holds the pod up.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod     *corev1.PodStatus
		blocker string // when it answers
	}{
		"no pod yet":     {nil, "no_pod"},
		"it runs":        {&corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}, ""},
		"it is pending":  {&corev1.PodStatus{Phase: corev1.PodPending}, ""},
		"it is not here": {new(pullFails("ImagePullBackOff")), "image_pull_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, _, pods := fakes(t)
				e.cfg.PullPatience, e.cfg.LookTimeout = time.Hour, time.Hour
				var s clustertest.Server
				e.c.Pulse = s.Pulse()
				e.c.Client = clustertest.BeforeNodes(e.c.Client, func(context.Context, string) error {
					begun := time.Now()
					for s.Hangs() && time.Since(begun) < 8*time.Second { // as long as a read may take
						time.Sleep(100 * time.Millisecond)
					}
					return nil
				})
				task := stepTask("op_a", 1, 1)
				task.Blocked = s.Blocked
				task.Remaining = func() time.Duration { return time.Hour }
				j := asked(e, task, report.VerbPreflight, time.Now(), time.Time{})
				ctx, cancel := context.WithCancel(t.Context())
				over := make(chan heard, 1)
				go func() { over <- e.await(ctx, task, target{fakeUUID, fakeNode}, report.VerbPreflight, j) }()
				if c.pod != nil {
					pods.Modify(podOf(j, *c.pod))
				}
				s.Silence(t)
				if shown := s.Shown(); (len(shown) > 0) != (c.blocker != "") || len(shown) > 0 && shown[0].Code != c.blocker {
					t.Errorf("when it answers again: %+v", shown)
				}
				s.Hang(true)
				time.Sleep(clustertest.Missed)
				synctest.Wait()
				cancel()
				if h := <-over; h.stopped != "interrupted" || h.code != cluster.CodeUnavailable {
					t.Errorf("it ended with %+v", h)
				}
				time.Sleep(8 * time.Second) // a look at the node ends by itself
			})
		})
	}
}
