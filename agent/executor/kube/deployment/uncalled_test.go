package deployment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// rehearsed has patches of a kind, dry runs or those that count, end so while err is set.
func rehearsed(c *cluster.Cluster, dry bool, err *error) {
	c.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "deployments", func(a ktesting.Action) (bool, runtime.Object, error) {
		return *err != nil && dry == (len(a.(ktesting.PatchActionImpl).PatchOptions.DryRun) > 0), nil, *err
	})
}

// A webhook that the API server cannot call is named by the step that meets it, which
// waits for it. Nobody says that the API server is away.
func TestWebhookThatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		step string
		dry  bool
	}{"preflight": {"preflight", true}, "the restart's rehearsal": {"restart", true}, "the restart": {"restart", false}} {
		for _, why := range []string{"connect: connection refused", "context deadline exceeded"} {
			var s clustertest.Server
			c, tk := hangs(t, &s, 0)
			err := error(apierrors.NewInternalError(fmt.Errorf(`failed calling webhook "guard.example.com": failed to call webhook: %s`, why)))
			rehearsed(c, tt.dry, &err)
			roll := Roll(c).Steps[tt.step]
			o := roll.Execute(t.Context(), tk)
			if o.Class != operation.OutcomeWaiting || o.ErrorCode != "admission_refused" || !strings.Contains(o.Detail, why) || !strings.Contains(o.ActionText, "what answers for admission webhook guard.example.com") {
				t.Errorf("%s: %+v", name, o)
			}
			shown := s.Shown()
			if len(shown) != 1 || shown[0].Code != "admission_refused" || shown[0].Rule != "webhook/guard.example.com" || shown[0].Resource != "deployment/llm/web" || !strings.Contains(shown[0].Detail, why) {
				t.Errorf("%s: shown %+v", name, shown)
			}
			err = nil
			if o := roll.Execute(t.Context(), tk); o.Class != operation.OutcomeDone {
				t.Errorf("%s, once it is back: %+v", name, o)
			}
			if shown := s.Shown(); tt.step == "restart" && len(shown) > 0 {
				t.Errorf("%s, once it is back: shown %+v", name, shown)
			}
		}
	}
}

// A dry run names it, and the change that takes a restart back waits for it as well.
func TestWebhookThatIsNotThereElsewhere(t *testing.T) {
	t.Parallel()
	var s clustertest.Server
	c, tk := hangs(t, &s, 0)
	err := error(apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": EOF`)))
	rehearsed(c, true, &err)
	rehearsed(c, false, &err)
	list, failed := Roll(c).Preview(t.Context(), protocol.PreviewRequest{ID: "op_1", TargetName: "deployment:llm/web", TargetUID: "d-1"})
	if failed != nil || len(list) != 1 || list[0].Code != "admission_refused" || list[0].Rule != "webhook/guard.example.com" {
		t.Errorf("%+v, %v", list, failed)
	}
	r := &roller{Cluster: c, bounds: DefaultBounds}
	_, again, stop := r.change(t.Context(), tk, object(t, deployments, web), "undo restart", []byte(`{}`), false)
	if again || stop == nil || stop.Class != operation.OutcomeWaiting || stop.ErrorCode != "admission_refused" || stop.CommandID != "cmd_1" || len(s.Shown()) != 1 {
		t.Errorf("%v %+v, shown %+v", again, stop, s.Shown())
	}
	err = nil
	if _, again, stop := r.change(t.Context(), tk, object(t, deployments, web), "undo restart", []byte(`{}`), false); again || stop != nil || len(s.Shown()) > 0 {
		t.Errorf("once it is back: %v %+v, shown %+v", again, stop, s.Shown())
	}
}

// A rehearsal that the step's end cuts short says nothing of the API server.
func TestRehearsalThatIsCutShort(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"preflight", "restart"} {
		var s clustertest.Server
		c, tk := hangs(t, &s, 0)
		ctx, cancel := context.WithCancel(t.Context())
		c.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "deployments", func(ktesting.Action) (bool, runtime.Object, error) {
			cancel()
			return true, nil, fmt.Errorf("patch: %w", context.Canceled)
		})
		if o := Roll(c).Steps[step].Execute(ctx, tk); o.Class != operation.OutcomeWaiting || o.ErrorCode != "interrupted" || strings.Contains(o.Detail, "context canceled") {
			t.Errorf("%s: %+v", step, o)
		}
		cancel()
	}
}
