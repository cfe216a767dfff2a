package device

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/protocol"
)

var (
	pullsImage = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}}
)

// TestPodThatCameLate: that a Job has no pod is said while it has none.
func TestPodThatCameLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, _, pods := fakes(t)
		task := stepTask("op_a", 1, 1)
		var shown []protocol.Blocker
		task.Blocked = func(now []protocol.Blocker) { shown = now }
		j := asked(e, task, report.VerbPreflight, time.Now(), time.Time{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		end := make(chan heard, 1)
		go func() { end <- e.await(ctx, task, target{fakeUUID, fakeNode}, report.VerbPreflight, j) }()
		time.Sleep(2 * patience)
		synctest.Wait()
		if len(shown) != 1 || shown[0].Code != "no_pod" {
			t.Errorf("without a pod: %+v", shown)
		}
		pods.Add(podOf(j, pullsImage)) // its image is large
		time.Sleep(time.Second)
		synctest.Wait()
		if len(shown) != 0 {
			t.Errorf("while its pod pulls its image: %+v", shown)
		}
		cancel()
		if h := <-end; h.code != "" || h.why != "" {
			t.Errorf("the deadline came: %+v", h)
		}
	})
}
