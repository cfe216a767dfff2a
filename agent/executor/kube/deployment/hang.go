package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	// previewMost is how long admission may take over a dry run that somebody waits for.
	previewMost = 8 * time.Second
	// shownAfter is when it is shown that admission is waited for: by then it is known
	// whether the API server answers anything.
	shownAfter = 10 * time.Second
	// slowFrom is how long a rehearsal takes from which on the patch itself is given as
	// much time.
	slowFrom = 4 * time.Second
	// hungFrom is how long a rehearsal is without an answer that was interrupted, for
	// that to be what stood in the way.
	hungFrom = 3 * time.Second
)

// hung says that the API server, which answers else, did not say what it makes of a
// restart, or of an undo.
type hung struct {
	what   string // "restart"
	name   string // of the deployment
	since  time.Time
	within time.Duration
}

func (h *hung) Error() string {
	return fmt.Sprintf("the API server did not say within %s whether it takes the %s of %s, and so it is asked again: a webhook may hang", h.within.Round(time.Second), h.what, h.name)
}

func (h *hung) blocker() protocol.Blocker {
	since := h.since.UTC()
	return protocol.Blocker{Code: "api_error", Resource: "deployment/" + h.name, Rule: "api_server", Detail: h.Error(), Since: &since}
}

// outcome is of a step that waits for it. Nothing was touched.
func (h *hung) outcome(ctx context.Context, t *executor.Task) executor.Outcome {
	o := executor.Waiting("api_error", h.Error())
	if halt := executor.Halted(ctx, t); halt != "" {
		o = executor.Waiting(halt, h.Error())
	}
	o.After = again
	o.ActionCode, o.ActionText = operation.ActRestoreDependency, seeTo(h.name)+operation.ThenRetry
	return o
}

// unasked is the outcome of a step whose rehearsal came to nothing.
func (r *roller) unasked(ctx context.Context, t *executor.Task, d *rollout, err error) executor.Outcome {
	var h *hung
	if errors.As(err, &h) {
		return h.outcome(ctx, t)
	}
	halt, cut := executor.Halted(ctx, t), errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if silent, _ := r.Pulse.State(); halt != "" && cut && silent == nil { // the step's own end, and nobody's silence
		return executor.Waiting(halt, "stopped before the restart of "+d.name())
	}
	return unread(err)
}

// seeTo is what a person can do where a change of the deployment is not answered.
func seeTo(name string) string {
	return "see that the API server answers, and every webhook that it asks about deployment " + name
}

// ask is askFor of a restart.
func (r *roller) ask(ctx context.Context, t *executor.Task, d *rollout, patch []byte) (u *unstructured.Unstructured, took time.Duration, err error) {
	return r.askFor(ctx, t, d, "restart", patch)
}

// askFor asks the API server for a patch that it only judges; what it is for is told. It
// shows when that takes long, with the task, and what of it is the API server's own
// silence; nil: somebody waits for a dry run. The error is a *hung where it answers
// anything but this.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (r *roller) askFor(ctx context.Context, t *executor.Task, d *rollout, what string, patch []byte) (u *unstructured.Unstructured, took time.Duration, err error) {
	most, halt := previewMost, (<-chan struct{})(nil)
	if t != nil {
		most, halt = cluster.AdmissionMost, boundary(t)
	}
	defer r.Pulse.Listen()()
	asked, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	begun, answered := r.Now(), make(chan struct{})
	go func() {
		defer close(answered)
		u, err = r.patch(asked, d, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	}()
	late := time.NewTimer(shownAfter)
	defer late.Stop()
	for waits, shown := false, false; ; {
		silent, changed := r.Pulse.State()
		if t != nil && (silent != nil || waits || shown) {
			shown = true
			tell(t, standing(silent, waits, &hung{what, d.name(), begun, r.Now().Sub(begun)}))
		}
		select {
		case <-changed:
			continue
		case <-late.C:
			waits = true
			continue
		case <-halt:
			cancel()
			<-answered
		case <-answered:
		}
		took = r.Now().Sub(begun)
		timedOut := apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || err != nil && asked.Err() != nil && took >= hungFrom
		if timedOut && silent == nil {
			h := &hung{what, d.name(), begun, took}
			if t != nil {
				tell(t, []protocol.Blocker{h.blocker()})
			}
			return nil, took, h
		}
		if hook := cluster.UncalledBy(err); hook != nil {
			hook.Show(t, "deployment/"+d.name())
		} else if shown && err == nil {
			tell(t, nil)
		}
		return u, took, err
	}
}

// standing is what stands in the way of a patch that is not answered yet.
func standing(silent *cluster.Unanswered, waits bool, h *hung) []protocol.Blocker {
	switch {
	case silent != nil:
		return []protocol.Blocker{silent.Blocker()}
	case waits:
		return []protocol.Blocker{h.blocker()}
	}
	return nil
}
