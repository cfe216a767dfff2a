package sim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

var rollSteps = map[string]step{
	"preflight": {(*Executor).probeConfirm, (*Executor).rollPreflight},
	"restart":   {(*Executor).probeRestart, (*Executor).restart},
	"wait":      {(*Executor).probeRolled, (*Executor).waitRolled},
	"confirm":   {(*Executor).probeConfirm, (*Executor).confirmRolled},
	"undo":      {(*Executor).probeUndo, (*Executor).undo},
}

// replicas is a copy of a deployment with its live counts.
type replicas struct {
	Deployment
	ready int
}

func (r replicas) String() string {
	return fmt.Sprintf("%d of %d replicas updated, %d ready", r.Updated, r.Desired, r.ready)
}

func countReady(ix *index, d *Deployment) int {
	if d.Virtual {
		return d.Desired
	}
	ready := 0
	for _, p := range ix.podsByOwner[d.UID] {
		if p.Healthy() {
			ready++
		}
	}
	return min(ready, d.Desired)
}

func (e *Executor) readDeployment(t *executor.Task) (r *replicas, err error) {
	name := strings.TrimPrefix(t.Assignment.TargetName, "deployment:")
	err = e.store.view(func(w *World, ix *index) {
		d := w.Deployments[t.Assignment.TargetUID]
		if d == nil && t.Assignment.TargetUID == "" {
			for _, x := range w.Deployments {
				if x.Key() == name {
					d = x
				}
			}
		}
		if d != nil {
			r = &replicas{*d, countReady(ix, d)}
		}
	})
	return r, err
}

func deploymentGone(t *executor.Task) string {
	return fmt.Sprintf("%s (%s) is gone", t.Assignment.TargetName, t.Assignment.TargetUID)
}

func (e *Executor) rollPreflight(_ context.Context, t *executor.Task) executor.Outcome {
	d, err := e.readDeployment(t)
	switch {
	case err != nil:
		return e.broken(err)
	case d == nil:
		return executor.Permanent("deployment_gone", deploymentGone(t))
	}
	return executor.Done(fmt.Sprintf("%s has %d replicas, %d ready", d.Key(), d.Desired, d.ready))
}

// restarted tells whether this run of the operation restarted the deployment.
func (d *Deployment) restarted(t *executor.Task) bool {
	return d.Mark != nil && d.Mark.Operation == t.Assignment.Operation && d.Mark.Run == t.Assignment.Run
}

func (e *Executor) probeRestart(_ context.Context, t *executor.Task) executor.Finding {
	d, err := e.readDeployment(t)
	switch {
	case err != nil:
		return unread(err)
	case d == nil:
		return executor.Lost("deployment_gone", deploymentGone(t))
	case d.restarted(t):
		return executor.Found(fmt.Sprintf("%s was restarted by generation %d", d.Key(), d.Mark.Generation))
	}
	return executor.ToRun("this operation did not restart it yet")
}

// restart is an effect of kind (a): a patch of the pod template, conditional on
// the resourceVersion, that carries operation, run and generation. It restarts
// the deployment even if nothing changed.
func (e *Executor) restart(ctx context.Context, t *executor.Task) executor.Outcome {
	for range maxConflicts {
		d, err := e.readDeployment(t)
		switch {
		case err != nil:
			return e.broken(err)
		case d == nil:
			return executor.Permanent("deployment_gone", deploymentGone(t))
		case d.restarted(t):
			return executor.Done(d.Key() + " is restarted")
		}
		if s := executor.Halted(ctx, t); s != "" {
			return executor.Waiting(s, "stopped before the restart of "+d.Key())
		}
		r, stop := e.effect(ctx, t, DidRestart, "deployment/"+d.UID, d.Key(), func(x *tx) reply {
			by := mark(t)
			c, no := x.unchanged(&d.Deployment, by)
			if no != nil {
				return *no
			}
			r, failed, lost := fault(&c.Faults)
			if !failed {
				c.Mark = &by
				c.Template++
				c.Updated = 0
				every := c.RollFor
				if c.Desired > 0 && !c.Virtual {
					every /= time.Duration(2 * c.Desired) // the first replica goes early
				}
				c.Undone = false
				c.Roll = &Roll{Mark: by, At: x.now.UTC(), Next: *x.in(every)}
				r = ok("")
				r.lost = lost
			}
			x.deployment(c)
			return r
		})
		if stop != nil {
			return *stop
		}
		if r.category == "ok" {
			return executor.Done("restart of " + d.Key() + " accepted")
		}
	}
	return executor.Transient("conflict", "the deployment is written to all the time")
}

// unchanged is a copy of a deployment to patch, or the refusal of a patch that an
// older generation makes, or that goes by another resourceVersion.
func (x *tx) unchanged(d *Deployment, by Mark) (c Deployment, no *reply) {
	now := x.w.Deployments[d.UID]
	if now == nil {
		r := refused("deployment_gone", "%s is gone", d.Key())
		return c, &r
	}
	if r, is := stale(now.Mark, by); is {
		return c, &r
	}
	if now.Revision != d.Revision {
		r := conflict("%s was changed: resourceVersion %d is not %d", d.Key(), now.Revision, d.Revision)
		return c, &r
	}
	return *now, nil
}

// rolled tells whether the rollout that this operation began is over, or how it
// failed.
func rolled(d *replicas) (done bool, code, why string) {
	if d.Roll != nil && (d.RollFault == "progress_deadline_exceeded" || d.RollFault == "image_pull_failed") {
		why = fmt.Sprintf("%s: no replica got ready within its progress deadline (%s)", d.Key(), d)
		if d.RollFault == "image_pull_failed" {
			why = fmt.Sprintf("%s: image %s cannot be pulled (%s)", d.Key(), d.Image, d)
		}
		return false, d.RollFault, why
	}
	return d.Roll == nil && d.Updated >= d.Desired && d.ready >= d.Desired, "", ""
}

func (e *Executor) probeRolled(_ context.Context, t *executor.Task) executor.Finding {
	d, err := e.readDeployment(t)
	switch {
	case err != nil:
		return unread(err)
	case d == nil:
		return executor.Lost("deployment_gone", deploymentGone(t))
	}
	done, code, why := rolled(d)
	switch {
	case code != "" && d.restarted(t):
		return executor.Lost(code, why)
	case done && d.restarted(t):
		return executor.Found(d.String())
	}
	return executor.ToRun(d.String())
}

func (e *Executor) waitRolled(ctx context.Context, t *executor.Task) executor.Outcome {
	for {
		d, err := e.readDeployment(t)
		switch {
		case err != nil:
			return e.broken(err)
		case d == nil:
			return executor.Permanent("deployment_gone", deploymentGone(t))
		}
		done, code, why := rolled(d)
		t.Progress(d.Updated, d.Desired, "replicas", d.String())
		switch {
		case code != "":
			return executor.Permanent(code, why)
		case done:
			return executor.Done(d.String())
		}
		if s := wait(ctx, t, pollMost/4); s != "" {
			o := executor.Waiting(s, d.String())
			if s == "interrupted" {
				_, o.ActionCode, o.ActionText = executor.Action("rolling")
			}
			return o
		}
	}
}

func (e *Executor) confirmRolled(_ context.Context, t *executor.Task) executor.Outcome {
	d, err := e.readDeployment(t)
	switch {
	case err != nil:
		return e.broken(err)
	case d == nil:
		return executor.Permanent("deployment_gone", deploymentGone(t))
	case !d.restarted(t):
		return executor.Permanent("superseded", d.Key()+" was restarted by somebody else since")
	}
	switch done, code, why := rolled(d); {
	case code != "":
		return executor.Permanent(code, why)
	case !done:
		return executor.Outcome{Class: operation.OutcomeWaiting, After: retryAfter, ErrorCode: "rolling", Detail: d.String(), Retryable: true}
	}
	return executor.Done(fmt.Sprintf("%s is rolled out: %s", d.Key(), d))
}
