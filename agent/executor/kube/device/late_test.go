package device

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

var (
	pullsImage = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}}
	runs = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
		ContainerID: "containerd://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
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

// TestLateReset: a reset whose Job got no pod in its time reset nothing, once the Job
// is gone and its own count says that it never had one. Of any other nobody knows.
func TestLateReset(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod     *corev1.PodStatus                             // seen in time; nil: none was
		counts  batchv1.JobStatus                             // of the Job, in the end
		taken   func(j *batchv1.Job, pods *watch.FakeWatcher) // when the Job is taken away
		breaks  func(client *fake.Clientset)                  // what else goes wrong
		nothing bool                                          // was reset, as far as can be told
	}{
		"no pod":                       {nothing: true},
		"one that the watch missed":    {counts: batchv1.JobStatus{Failed: 1}},
		"one that is being counted":    {counts: batchv1.JobStatus{UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Failed: []types.UID{"uid-of-a-pod"}}}},
		"one that is not told of yet":  {counts: batchv1.JobStatus{Active: 1}},
		"one that waits for its image": {pod: &pullsImage, taken: func(j *batchv1.Job, pods *watch.FakeWatcher) { pods.Delete(podOf(j, pullsImage)) }},
		"one that comes at the last moment": {taken: func(j *batchv1.Job, pods *watch.FakeWatcher) {
			pods.Add(podOf(j, runs))
			pods.Delete(podOf(j, runs))
		}},
		"the Job cannot be read": {breaks: func(client *fake.Clientset) {
			var begun atomic.Bool
			client.PrependReactor("create", "jobs", func(ktesting.Action) (bool, runtime.Object, error) {
				begun.Store(true)
				return false, nil, nil
			})
			client.PrependReactor("get", "jobs", func(ktesting.Action) (bool, runtime.Object, error) {
				return begun.Load(), nil, errors.New("EOF")
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, _ := fakes(t)
				watches := make(chan *watch.FakeWatcher, 2) // of who waits for the answer, and of who takes the Job away
				client.PrependWatchReactor("pods", func(ktesting.Action) (bool, watch.Interface, error) {
					w := watch.NewFakeWithChanSize(16, false)
					watches <- w
					return true, w, nil
				})
				var job *batchv1.Job
				client.PrependReactor("create", "jobs", func(a ktesting.Action) (bool, runtime.Object, error) {
					job = a.(ktesting.CreateAction).GetObject().(*batchv1.Job)
					job.UID = types.UID("uid-" + job.Name)
					return false, nil, nil
				})
				client.PrependReactor("delete", "jobs", func(ktesting.Action) (bool, runtime.Object, error) {
					if c.taken != nil {
						go func() { c.taken(job, <-watches) }()
					}
					return false, nil, nil
				})
				if c.breaks != nil {
					c.breaks(client)
				}
				over := make(chan executor.Outcome, 1)
				go func() { over <- e.step(e.reset)(t.Context(), stepTask("op_a", 1, 1)) }()
				waits := <-watches
				counted := job.DeepCopy()
				counted.Status = c.counts
				if _, err := client.BatchV1().Jobs(fakeNS).UpdateStatus(t.Context(), counted, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				if c.pod != nil {
					waits.Add(podOf(job, *c.pod))
				}
				o := <-over
				list, err := client.BatchV1().Jobs(fakeNS).List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 0 {
					t.Errorf("%d jobs are left: %v", len(list.Items), err)
				}
				if !c.nothing {
					if o.Class != operation.OutcomeAmbiguous {
						t.Errorf("%+v", o)
					}
					return
				}
				if o.Class != operation.OutcomePermanent || o.ErrorCode != "no_pod" || !strings.HasSuffix(o.Detail, "; nothing was reset") {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}
