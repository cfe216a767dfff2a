package deployment

import (
	"context"
	"strings"
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
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestServerThatHangs: an API server that hangs leaves the watches of a rollout
// silent. Whatever the step waits for, that is told, and why it ended at its deadline.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	for step, tt := range map[string]struct {
		status  string
		undone  bool
		pods    []*corev1.Pod
		blocker string // when it answers
	}{
		"wait": {status: `{"status":{"updatedReplicas":1}}`, pods: []*corev1.Pod{newPod("web-3", false, waiting("ImagePullBackOff", "no such image"))}, blocker: codeImagePull},
		"confirm": {status: `{"status":{"updatedReplicas":2}}`, blocker: codeTerminating, pods: []*corev1.Pod{newPod("web-1", false, isReady), newPod("web-2", false, isReady),
			newPod("web-0", true, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon.Add(time.Minute)} })}},
		"undo": {status: `{"status":{"updatedReplicas":1}}`, undone: true, pods: []*corev1.Pod{newPod("web-1", false, nil)}},
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := restarted(t, object(t, deployments, web), by, time.Now())
				if tt.undone {
					patch, err := undoPatch(d, by, nil)
					if err != nil {
						t.Fatal(err)
					}
					d = merged(t, d, patch)
				}
				d = merged(t, d, []byte(tt.status))
				var pods []runtime.Object
				for _, p := range tt.pods {
					p = p.DeepCopy()
					p.UID, p.Labels["app"] = types.UID(p.Name), "web"
					pods = append(pods, p)
				}
				var s clustertest.Server
				c := &cluster.Cluster{Client: fake.NewClientset(pods...), Dynamic: dynamics(d.object),
					Now: time.Now, Pulse: s.Pulse()}
				tk := rollTask()
				tk.Assignment = &protocol.Assignment{Operation: by.Operation, Run: by.Run, Generation: by.Generation, TargetName: "deployment:llm/web", TargetUID: "d-1"}
				tk.Blocked = s.Blocked
				ctx, cancel := context.WithCancel(t.Context())
				over := make(chan executor.Outcome, 1)
				go func() {
					over <- RollWithin(c, Bounds{Stall: time.Hour, Patience: time.Hour, Undo: time.Hour}).Steps[step].Execute(ctx, tk)
				}()
				s.Silence(t)
				if shown := s.Shown(); tt.blocker != "" && (len(shown) != 1 || shown[0].Code != tt.blocker) {
					t.Errorf("when it answers again: %+v", shown)
				}
				s.Hang(true)
				time.Sleep(clustertest.Missed)
				synctest.Wait()
				cancel()
				o := <-over
				if o.Class != operation.OutcomeWaiting || o.ErrorCode != "interrupted" {
					t.Errorf("it ended with %+v", o)
				}
				if step != "undo" && (!strings.Contains(o.Detail, "does not answer since") || !strings.Contains(o.ActionText, "cannot reach its API server")) {
					t.Errorf("at the deadline: %s; next action: %s", o.Detail, o.ActionText)
				}
			})
		})
	}
}
