package device

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestSilentAPIServer: what cannot read its node fails nothing, and a reset that was
// not begun costs none of its few attempts.
func TestSilentAPIServer(t *testing.T) {
	t.Parallel()
	e, client, _ := fakes(t)
	client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("shutting down")
	})
	for name, f := range map[string]func(context.Context, *executor.Task, target) executor.Outcome{"preflight": e.preflight, "reset": e.reset, "verify": e.verify} {
		want := operation.OutcomeTransient // of steps that only read: the loop has no budget for them
		if name == "reset" {
			want = operation.OutcomeWaiting
		}
		o := e.step(f)(t.Context(), stepTask("op_"+name, 1, 1))
		if o.Class != want || o.ErrorCode != "api_unavailable" || !strings.Contains(o.Detail, "does not answer") {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if n := made(client, "jobs", ""); n != 0 {
		t.Errorf("%d jobs were made", n)
	}
}
