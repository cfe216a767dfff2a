package deployment

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/protocol"
)

// undone is the object as an undo of its restart leaves it.
func undone(t *testing.T, d *rollout) *rollout {
	t.Helper()
	d = restarted(t, d, by, time.Now())
	patch, err := undoPatch(d, by, nil)
	if err != nil {
		t.Fatal(err)
	}
	return merged(t, d, patch)
}

// What the restart's pods left behind, which no controller takes away, keeps no undo from
// its end.
func TestPodsThatEndedAreNoneOfTheRestart(t *testing.T) {
	t.Parallel()
	before, failed := dbPod(0, true, nil), dbPod(1, false, func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" })
	s := scene{rollout: merged(t, undone(t, object(t, statefulSets, db)), []byte(`{"status":{"observedGeneration":9,"updatedReplicas":3}}`)), pods: []*corev1.Pod{before, failed}}
	if !s.back(by) {
		t.Error("a pod that ended is in the way")
	}
	failed.Status.Phase = corev1.PodRunning
	if s.back(by) {
		t.Error("a pod of the restart that runs is not in the way")
	}
}

// A broken pod whose deletion is not taken is named with who refuses it, and its deletion
// asked for again, though the watch says nothing.
func TestBrokenPodThatIsNotDeleted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err              error
		code, rule, says string
	}{
		"busy":         {apierrors.NewTooManyRequests("come back later", 1), "throttled", "api_server", "come back later"},
		"denied":       {apierrors.NewBadRequest(`admission webhook "guard.example.com" denied the request: no`), cluster.CodeAdmission, "webhook/guard.example.com", "denied the request: no"},
		"not callable": {apierrors.NewInternalError(fmt.Errorf(`failed calling webhook "guard.example.com": EOF`)), cluster.CodeAdmission, "webhook/guard.example.com", "cannot call admission webhook guard.example.com"},
		"failing":      {apierrors.NewInternalError(fmt.Errorf("etcd is full")), "api_error", "api_server", "etcd is full"},
	} {
		for _, times := range []int{2, 1000} {
			t.Run(fmt.Sprintf("%s %d times", name, times), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					begun := time.Now()
					d := undone(t, object(t, statefulSets, db))
					broken := dbPod(2, false, func(p *corev1.Pod) { p.Status.Conditions = nil })
					broken.Namespace = "llm"
					var s clustertest.Server
					client := fake.NewClientset([]runtime.Object{broken}...)
					c := &cluster.Cluster{Client: client, Dynamic: dynamics(d.object), Now: time.Now, Pulse: s.Pulse()}
					var mu sync.Mutex
					var tries []time.Duration
					asked := func() []time.Duration {
						mu.Lock()
						defer mu.Unlock()
						return slices.Clone(tries)
					}
					client.PrependReactor("delete", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
						mu.Lock()
						defer mu.Unlock()
						tries = append(tries, time.Since(begun))
						if len(tries) <= times {
							return true, nil, tt.err
						}
						return false, nil, nil
					})
					tk := rollTask()
					tk.Assignment = &protocol.Assignment{Operation: by.Operation, Run: by.Run, Generation: by.Generation, TargetName: "deployment:llm/db", TargetUID: "s-1"}
					tk.Blocked = s.Blocked
					r, over := &roller{Cluster: c, bounds: DefaultBounds}, make(chan executor.Outcome, 1)
					go func() { over <- r.awaitBack(t.Context(), tk, d) }()
					time.Sleep(time.Second)
					synctest.Wait()
					shown := s.Shown()
					if len(shown) != 1 || shown[0].Code != tt.code || shown[0].Rule != tt.rule || shown[0].Resource != "pod/llm/db-2" || !strings.Contains(shown[0].Detail, tt.says) {
						t.Fatalf("shown %+v", shown)
					}
					first := *shown[0].Since
					time.Sleep(clearPause)
					synctest.Wait()
					if shown := s.Shown(); len(shown) != 1 || !shown[0].Since.Equal(first) {
						t.Errorf("after the second try: shown %+v", shown)
					}
					time.Sleep(2 * clearPause)
					synctest.Wait()
					if at := asked(); len(at) < 3 || at[1]-at[0] != clearPause {
						t.Errorf("asked at %v", at)
					}
					if left := len(s.Shown()); (left > 0) != (times > 2) {
						t.Errorf("shown %+v after %v", s.Shown(), asked())
					}
					o := <-over // the set's controller is not there: it never comes back
					if o.ErrorCode != codeUndoIncomplete || strings.Contains(o.Detail, tt.says) != (times > 2) {
						t.Errorf("%+v", o)
					}
					if n := len(asked()); times > 2 && n > int(DefaultBounds.Undo/clearPause)+1 || times == 2 && n != 3 {
						t.Errorf("asked %d times", n)
					}
				})
			})
		}
	}
}

// A set's status counts a pod that was just deleted until its controller has seen that:
// nothing is back before the pods are.
func TestStatusOfBeforeTheDeletion(t *testing.T) {
	t.Parallel()
	s := &scene{rollout: merged(t, undone(t, object(t, statefulSets, db)), []byte(`{"status":{"observedGeneration":9,"updatedReplicas":3}}`))}
	two, third := []*corev1.Pod{dbPod(0, true, nil), dbPod(1, true, nil)}, dbPod(2, true, nil)
	c := &clearing{}
	if s.pods = two; !s.back(by) || !c.made(s) {
		t.Error("where nothing was deleted, the status does not count")
	}
	c.gone = map[types.UID]bool{"p-9": true}
	if c.made(s) {
		t.Error("two of three pods are there")
	}
	third.Status.Conditions = nil
	if s.pods = append(two, third); c.made(s) {
		t.Error("the third is not ready")
	}
	isReady(third)
	if !c.made(s) {
		t.Error("all three are ready")
	}
}

// A deletion that was not taken is asked for again only when the API server answers: while
// it does not, an undo wakes for nothing.
func TestClearingBesideASilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := undone(t, object(t, statefulSets, db))
		broken := dbPod(2, false, func(p *corev1.Pod) { p.Status.Conditions = nil })
		broken.Namespace = "llm"
		var s clustertest.Server
		client := fake.NewClientset([]runtime.Object{broken}...)
		client.PrependReactor("delete", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewTooManyRequests("come back later", 1)
		})
		var turns atomic.Int64
		c := &cluster.Cluster{Client: client, Dynamic: dynamics(d.object), Now: func() time.Time {
			turns.Add(1)
			return time.Now()
		}, Pulse: s.Pulse()}
		tk := rollTask()
		tk.Assignment = &protocol.Assignment{Operation: by.Operation, Run: by.Run, Generation: by.Generation, TargetName: "deployment:llm/db", TargetUID: "s-1"}
		tk.Blocked = s.Blocked
		r, over := &roller{Cluster: c, bounds: DefaultBounds}, make(chan executor.Outcome, 1)
		go func() { over <- r.awaitBack(t.Context(), tk, d) }()
		time.Sleep(time.Second)
		synctest.Wait()
		s.Hang(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := turns.Load(); n > 500 {
			t.Errorf("it looked at the clock %d times within a minute", n)
		}
		s.Hang(false)
		<-over
	})
}
