package device

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ktesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestFirstDenialIsNotBelieved: an API server that has just started denies every
// right; a step that met that goes on once it is granted.
func TestFirstDenialIsNotBelieved(t *testing.T) {
	t.Parallel()
	e, client, _ := fakes(t)
	client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, fakeNode, nil)
	})
	now := time.Now()
	e.c.Now = func() time.Time { return now }
	for name, f := range map[string]func(context.Context, *executor.Task, target) executor.Outcome{"preflight": e.preflight, "drain_holders": e.drainHolders, "reset": e.reset, "verify": e.verify} {
		task := stepTask("op_"+name, 1, 1)
		if o := e.step(f)(t.Context(), task); o.Class != operation.OutcomeWaiting || o.ErrorCode != "forbidden" {
			t.Errorf("%s at first: %+v", name, o)
		}
		now = now.Add(executor.DeniedFor)
		if o := e.step(f)(t.Context(), task); o.Class != operation.OutcomePermanent || o.ErrorCode != "forbidden" {
			t.Errorf("%s when it lasts: %+v", name, o)
		}
	}
}
