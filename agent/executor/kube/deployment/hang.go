package deployment

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// unasked is the outcome of a step whose rehearsal came to nothing.
func (r *roller) unasked(ctx context.Context, t *executor.Task, d *rollout, err error) executor.Outcome {
	var h *cluster.Hung
	if errors.As(err, &h) {
		return h.Outcome(ctx, t)
	}
	halt, cut := executor.Halted(ctx, t), errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if silent, _ := r.Pulse.State(); halt != "" && cut && silent == nil { // the step's own end, and nobody's silence
		return executor.Waiting(halt, "stopped before the restart of "+d.name())
	}
	return unread(err)
}

// change is what is asked for of the object.
func (r *rollout) change(what string) cluster.Change {
	return cluster.Change{What: what + " of " + r.name(), Resource: "deployment/" + r.name(), About: "deployment " + r.name()}
}

// ask is askFor of a restart.
func (r *roller) ask(ctx context.Context, t *executor.Task, d *rollout, patch []byte) (u *unstructured.Unstructured, took time.Duration, err error) {
	return r.askFor(ctx, t, d, "restart", patch)
}

// askFor asks the API server for a patch that it only judges; what it is for is told. It
// shows when that takes long, with the task; nil: somebody waits for a dry run. The error
// is a *cluster.Hung where it answers anything but this.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (r *roller) askFor(ctx context.Context, t *executor.Task, d *rollout, what string, patch []byte) (u *unstructured.Unstructured, took time.Duration, err error) {
	took, err = r.Patiently(ctx, t, d.change(what), func(ctx context.Context) (err error) {
		u, err = r.patch(ctx, d, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	return u, took, err
}
