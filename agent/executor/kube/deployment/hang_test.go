package deployment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// dynamics is a client that knows every kind that is rolled, with these objects.
func dynamics(objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	lists := map[schema.GroupVersionResource]string{}
	for _, k := range kinds {
		for _, r := range k.resources {
			lists[r] = k.name + "List"
		}
	}
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
}

// hangs is a deployment whose first dry runs admission does not answer, in time.
func hangs(t *testing.T, s *clustertest.Server, first int) (*cluster.Cluster, *executor.Task) {
	t.Helper()
	d := object(t, deployments, web)
	client := dynamics(d.object)
	client.PrependReactor("patch", "deployments", func(a ktesting.Action) (bool, runtime.Object, error) {
		p := a.(ktesting.PatchActionImpl)
		if len(p.PatchOptions.DryRun) == 0 {
			return false, nil, nil
		}
		if first == 0 {
			return true, merged(t, d, p.GetPatch()).object, nil
		}
		first--
		time.Sleep(34 * time.Second)
		return true, nil, apierrors.NewTimeoutError("request did not complete within 34s", 0)
	})
	tk := rollTask()
	tk.Assignment = &protocol.Assignment{Operation: by.Operation, Run: by.Run, Generation: by.Generation, TargetName: "deployment:llm/web", TargetUID: "d-1"}
	tk.Blocked = s.Blocked
	typed := fake.NewClientset()
	typed.PrependReactor("create", "selfsubjectaccessreviews", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(cluster.Options{Kubeconfig: file}) // nobody listens there: all is asked of the fakes
	if err != nil {
		t.Fatal(err)
	}
	c.Client, c.Dynamic, c.Pulse = typed, client, s.Pulse()
	return c, tk
}

// A webhook that hangs at the restart is named, and no API server that answers
// everything else: nothing is touched, and the step goes on once it is answered.
func TestWebhookThatHangs(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"preflight", "restart"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var s clustertest.Server
				c, tk := hangs(t, &s, 1)
				roll, begun := Roll(c), time.Now()
				over := make(chan executor.Outcome, 1)
				go func() { over <- roll.Steps[step].Execute(t.Context(), tk) }()
				time.Sleep(cluster.ShownAfter)
				synctest.Wait()
				shown := s.Shown()
				if len(shown) != 1 || shown[0].Code != "api_error" || shown[0].Rule != "api_server" || shown[0].Resource != "deployment/llm/web" ||
					shown[0].Since == nil || !shown[0].Since.Equal(begun) || !strings.Contains(shown[0].Detail, "did not say within 10s whether it takes the restart of llm/web, and so it is asked again: a webhook may hang") {
					t.Errorf("shown %+v", shown)
				}
				o := <-over
				if o.Class != operation.OutcomeWaiting || o.ErrorCode != "api_error" || o.ActionCode != operation.ActRestoreDependency || !strings.Contains(o.Detail, "a webhook may hang") || !strings.Contains(o.ActionText, "every webhook that it asks about deployment llm/web") {
					t.Errorf("%+v", o)
				}
				if o := roll.Steps[step].Execute(t.Context(), tk); o.Class != operation.OutcomeDone {
					t.Errorf("once it is answered: %+v", o)
				}
			})
		})
	}
}

// At the deadline, or when it is cancelled, the step says what it waited for.
func TestWebhookThatHangsToTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s clustertest.Server
		c, tk := hangs(t, &s, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		o := Roll(c).Steps["preflight"].Execute(ctx, tk)
		if o.Class != operation.OutcomeWaiting || o.ErrorCode != "interrupted" || !strings.Contains(o.Detail, "a webhook may hang") || !strings.Contains(o.ActionText, "every webhook") {
			t.Errorf("%+v", o)
		}
	})
}

// An API server that answers nothing is no webhook's fault.
func TestServerThatHangsAtTheRehearsal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s clustertest.Server
		s.Hang(true)
		c, tk := hangs(t, &s, 1)
		over := make(chan executor.Outcome, 1)
		go func() { over <- Roll(c).Steps["preflight"].Execute(t.Context(), tk) }()
		time.Sleep(clustertest.Missed)
		synctest.Wait()
		if shown := s.Shown(); len(shown) != 1 || shown[0].Code != "api_unavailable" {
			t.Errorf("shown %+v", shown)
		}
		if o := <-over; o.ErrorCode != "api_unavailable" {
			t.Errorf("%+v", o)
		}
	})
}

// A dry run names it as well.
func TestPreviewOfAWebhookThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s clustertest.Server
		c, _ := hangs(t, &s, 1)
		list, err := Roll(c).Preview(t.Context(), protocol.PreviewRequest{ID: "op_1", TargetName: "deployment:llm/web", TargetUID: "d-1"})
		if err != nil || len(list) != 1 || list[0].Code != "api_error" || !strings.Contains(list[0].Detail, "a webhook may hang") {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

// A restart whose rehearsal took its time is given as much, past the fence of a call.
func TestRestartBehindASlowWebhook(t *testing.T) {
	t.Parallel()
	s, c := serve(t, "Deployment", nil)
	var patches atomic.Int32
	s.admit = func(map[string]any) {
		if patches.Add(1) == 1 {
			time.Sleep(cluster.SlowFrom + 100*time.Millisecond)
			return
		}
		time.Sleep(1500 * time.Millisecond)
	}
	if o := Roll(c).Steps["restart"].Execute(within(t, 20*time.Second), shortFence(rollTask())); o.Class != operation.OutcomeDone {
		t.Errorf("%+v", o)
	}
}

// shortFence fences the task's calls for a second.
func shortFence(t *executor.Task) *executor.Task {
	t.Fence = func(ctx context.Context) (context.Context, context.CancelFunc, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		return ctx, cancel, nil
	}
	return t
}

// A webhook that takes long to fail is one trouble since one time, also while it is asked
// again.
func TestWebhookThatIsSlowToFail(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"preflight", "restart"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var s clustertest.Server
				c, tk := hangs(t, &s, 0)
				c.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "deployments", func(a ktesting.Action) (bool, runtime.Object, error) {
					time.Sleep(20 * time.Second)
					return true, nil, apierrors.NewInternalError(errors.New(`failed calling webhook "slow.example.com": context deadline exceeded`))
				})
				roll, begun := Roll(c), time.Now()
				over := make(chan executor.Outcome, 1)
				go func() { over <- roll.Steps[step].Execute(t.Context(), tk) }()
				<-over
				for range 2 {
					go func() { over <- roll.Steps[step].Execute(t.Context(), tk) }()
					for range 20 {
						synctest.Wait()
						shown := s.Shown()
						if len(shown) != 1 || shown[0].Code != "admission_refused" || shown[0].Rule != "webhook/slow.example.com" || shown[0].Since == nil || !shown[0].Since.Equal(begun) {
							t.Fatalf("after %s: shown %+v", time.Since(begun), shown)
						}
						time.Sleep(time.Second)
					}
					if o := <-over; o.ErrorCode != "admission_refused" {
						t.Errorf("%+v", o)
					}
				}
			})
		})
	}
}

// A webhook or a policy that denies the restart is named by the preflight, whatever
// status it denies with; one that no dry run asks is not.
func TestRehearsalOfADeniedRestart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer error
		code   string
	}{
		"a webhook":              {apierrors.NewBadRequest(`admission webhook "guard.example.com" denied the request: not on a Monday`), "admission_refused"},
		"a policy":               {apierrors.NewBadRequest(`deployments.apps "web" is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'b' denied request: since now`), "admission_refused"},
		"one that is not asked":  {apierrors.NewBadRequest(`admission webhook "guard.example.com" does not support dry run`), ""},
		"somebody wrote as well": {apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "web", errors.New("the object has been modified")), ""},
	} {
		var s clustertest.Server
		c, tk := hangs(t, &s, 0)
		c.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "deployments", func(a ktesting.Action) (bool, runtime.Object, error) {
			return len(a.(ktesting.PatchActionImpl).PatchOptions.DryRun) > 0, nil, tt.answer
		})
		o := Roll(c).Steps["preflight"].Execute(t.Context(), tk)
		if o.ErrorCode != tt.code || tt.code != "" && (o.Class != operation.OutcomePermanent || !strings.Contains(o.Detail, tt.answer.Error())) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}
