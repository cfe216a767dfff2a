package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

// Waits inside steps.
const (
	pollLeast  = 5 * time.Millisecond
	pollMost   = 100 * time.Millisecond
	retryAfter = 200 * time.Millisecond
)

func (e *Executor) broken(err error) executor.Outcome {
	return executor.Transient("simulation", err.Error())
}

func mark(t *executor.Task) Mark {
	return Mark{Operation: t.Assignment.Operation, Run: t.Assignment.Run, Generation: t.Assignment.Generation}
}

// effect asks the world for one side effect: it records the command, asks the
// fence, and lets f judge and stage the change. The world answers under its own
// lock, so what f sees is the truth at the moment of the change.
//
// The returned outcome is set when the step cannot go on: the fence said no,
// the call failed, its answer was lost, or the world refused it for good. A
// conflict is for the caller to read again.
func (e *Executor) effect(ctx context.Context, t *executor.Task, what, resource, name string, f func(x *tx) reply) (reply, *executor.Outcome) {
	id, end := t.Begin(what+" "+name, resource)
	e.pause(BeforeFence, t)
	call, cancel, err := t.Fence(ctx)
	if err != nil {
		end("refused", err.Error())
		return reply{}, e.fenced(id, err)
	}
	defer cancel()
	e.pause(AfterFence, t)
	if d := e.callTime(); d > 0 && !sleep(call, d) {
		end("timeout", "not sent")
		return reply{}, e.fenced(id, context.Cause(call))
	}
	var r reply
	late := false
	err = e.store.mutate(func(x *tx) {
		// The server's side of the call's deadline: a holder that was stopped
		// since the fence comes too late here, whatever it believes.
		if d, bounded := call.Deadline(); call.Err() != nil || (bounded && !time.Now().Before(d)) {
			late = true
			r = reply{category: "timeout", code: "late", why: "the call came after its deadline"}
			x.e = entry{}
		} else {
			r = f(x)
		}
		if r.category != "ok" {
			// Whatever was staged is dropped, but for a knob that was used up.
			x.e = entry{Nodes: x.e.Nodes, Pods: x.e.Pods, Devices: x.e.Devices, Deployments: x.e.Deployments, Components: x.e.Components}
		}
		m := mark(t)
		x.e.Effect = &Effect{Operation: m.Operation, Run: m.Run, Generation: m.Generation, StepID: t.Step.ID, Step: t.Step.Name,
			Command: id, What: what, Resource: resource, Name: name, Accepted: r.category == "ok", Category: r.category, Why: r.why, Lost: r.lost}
	})
	if err != nil {
		end("error", err.Error())
		o := e.broken(err)
		o.CommandID = id
		return r, &o
	}
	if late {
		end("timeout", r.why)
		return r, e.fenced(id, executor.ErrFenced)
	}
	if r.lost {
		end("timeout", "the answer was lost")
		return r, &executor.Outcome{Class: operation.OutcomeAmbiguous, ErrorCode: "answer_lost", CommandID: id,
			Detail: fmt.Sprintf("%s %s: the answer never came", what, name), Retryable: true,
			ActionCode: operation.ActRetry, ActionText: "wait until the cluster was read"}
	}
	end(r.category, r.why)
	var o executor.Outcome
	switch {
	case r.category == "throttled":
		o = executor.Transient(r.code, r.why)
	case r.category == "refused" && r.code == "stale_generation":
		o = *e.fenced(id, fmt.Errorf("%w: %s", executor.ErrFenced, r.why))
	case r.category == "refused" && r.code != "pdb_blocked":
		o = executor.Permanent(r.code, r.why)
	default:
		return r, nil
	}
	o.CommandID = id
	return r, &o
}

// fenced: nothing was issued, and nothing more may be.
func (e *Executor) fenced(id string, err error) *executor.Outcome {
	o := executor.Transient("fenced", "nothing was issued: "+err.Error())
	_, o.ActionCode, o.ActionText = executor.Action("interrupted")
	if !errors.Is(err, executor.ErrFenced) {
		o = executor.Waiting("interrupted", "nothing was issued: "+err.Error())
	}
	o.CommandID = id
	return &o
}

func (e *Executor) pause(point string, t *executor.Task) {
	if e.opts.Pause != nil {
		e.opts.Pause(point, t)
	}
}

func (e *Executor) callTime() time.Duration {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	return scaled(e.store.w.Speeds.Call.D(), e.store.w.TimeScale)
}

// sleep waits, and tells whether ctx lasted.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait waits until the world may have moved on. It returns why the step has to
// stop instead: the end of ctx or a cancel.
func wait(ctx context.Context, t *executor.Task, d time.Duration) (stopped string) {
	timer := time.NewTimer(min(max(d, pollLeast), pollMost))
	defer timer.Stop()
	select {
	case <-timer.C:
		return executor.Halted(ctx, t)
	case <-ctx.Done():
		return "interrupted"
	case <-t.Cancelled:
		return "cancelled"
	}
}

// nodeName is the name of the node that the assignment is about.
func nodeName(t *executor.Task) string {
	if t.Assignment.NodeName != "" {
		return t.Assignment.NodeName
	}
	return strings.TrimPrefix(t.Assignment.TargetName, "node:")
}

func unread(err error) executor.Finding {
	return executor.Finding{Phase: operation.StepUnknown, ErrorCode: "simulation", Detail: err.Error()}
}
