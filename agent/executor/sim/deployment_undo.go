package sim

import (
	"context"
	"fmt"

	"github.com/opsplane/opsplane/agent/executor"
)

func (e *Executor) probeUndo(_ context.Context, t *executor.Task) executor.Finding {
	d, err := e.readDeployment(t)
	switch {
	case err != nil:
		return unread(err)
	case d == nil:
		return executor.FoundNothing("there is no deployment to undo the rollout of")
	case d.restarted(t) && d.Undone:
		return executor.Found(undone(d))
	case !d.restarted(t) || d.Roll == nil:
		return executor.FoundNothing("no rollout of this operation is under way")
	}
	return executor.ToRun("the rollout of this operation is under way")
}

func undone(d *replicas) string { return fmt.Sprintf("%s has the template of before", d.Key()) }

// undo takes the template back to the one of before, if this operation's rollout
// is still the last: an effect of kind (a), as the restart is.
func (e *Executor) undo(ctx context.Context, t *executor.Task) executor.Outcome {
	for range maxConflicts {
		d, err := e.readDeployment(t)
		switch {
		case err != nil:
			return e.broken(err)
		case d == nil:
			return executor.Nothing("there is no deployment to undo the rollout of")
		case d.restarted(t) && d.Undone:
			return executor.Done(undone(d))
		case !d.restarted(t) || d.Roll == nil:
			return executor.Nothing("no rollout of this operation is under way on " + d.Key())
		}
		r, stop := e.effect(ctx, t, DidUndo, "deployment/"+d.UID, d.Key(), func(x *tx) reply {
			by := mark(t)
			c, no := x.unchanged(&d.Deployment, by)
			if no != nil {
				return *no
			}
			c.Mark, c.Roll, c.Updated, c.Undone = &by, nil, c.Desired, true
			c.Template--
			x.deployment(c)
			return ok("")
		})
		if stop != nil {
			return *stop
		}
		if r.category == "ok" {
			return executor.Done(undone(d))
		}
	}
	return executor.Transient("conflict", "the deployment is written to all the time")
}
