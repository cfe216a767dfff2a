package device

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/node"
	"github.com/opsplane/opsplane/shared/operation"
)

// lookAgain is when a step whose node or API server is away asks again. An API server
// that says when it is to be asked is kept to, up to askMost.
const (
	lookAgain = time.Second
	askMost   = 10 * time.Second
)

type payload struct {
	Drain bool `json:"drain"`
}

func readPayload(raw json.RawMessage) (p payload, err error) {
	if len(raw) > 0 {
		err = json.Unmarshal(raw, &p)
	}
	return p, err
}

// look asks the host about the device. A nil answer: the outcome ends the step.
func (e *devices) look(ctx context.Context, t *executor.Task, d target, verb string) (*report.Answer, *executor.Outcome) {
	if s := executor.Halted(ctx, t); s != "" {
		o := executor.Waiting(s, "the host was not asked")
		return nil, &o
	}
	away, err := e.nodeState(ctx, d.node)
	if err != nil {
		o := cluster.Broken(err)
		return nil, &o
	}
	if away != nil {
		o := e.without(t, d, away, verb == report.VerbVerify)
		return nil, &o
	}
	name := looking(cluster.MarkOf(t), verb)
	h, stop := e.ask(ctx, t, d, verb, name)
	if stop != nil {
		return nil, stop
	}
	if h.answer == nil {
		o := h.silent(verb)
		return nil, &o
	}
	return h.answer, nil
}

// refused is the outcome of an answer that is no.
func refused(a *report.Answer, d target) executor.Outcome {
	switch a.Code {
	case report.CodeNoDriver:
		return executor.Permanent(report.CodeNotSupported, fmt.Sprintf("the host program on node %s reaches no driver: %s", d.node, a.Detail))
	case report.CodeStale:
		o := executor.Transient("fenced", "nothing was issued: "+a.Detail)
		_, o.ActionCode, o.ActionText = executor.Action("interrupted")
		return o
	case report.CodeInProgress:
		return executor.Transient(a.Code, a.Detail)
	case report.CodeHost, report.CodeInvalid:
		o := executor.Permanent("host_error", fmt.Sprintf("the host program on node %s could not look: %s", d.node, a.Detail))
		o.Retryable, o.ActionCode, o.ActionText = true, operation.ActRestoreDependency, "repair the host program's mounts and folder on the node, then reset again"
		return o
	case report.CodeFailed:
		return executor.Transient(a.Code, a.Detail)
	}
	return executor.Permanent(a.Code, a.Detail)
}

// preflight has the host look at the device, before anything is touched.
func (e *devices) preflight(ctx context.Context, t *executor.Task, d target) executor.Outcome {
	p, err := readPayload(t.Assignment.Payload)
	if err != nil {
		return executor.Permanent("invalid_payload", err.Error())
	}
	if stop := e.late(t, d); stop != nil {
		return *stop
	}
	if stop := e.awaitsAnother(ctx, t, d); stop != nil { // here it can be cancelled, in the reset no more
		return *stop
	}
	a, stop := e.look(ctx, t, d, report.VerbPreflight)
	if stop != nil {
		return *stop
	}
	e.recorded(t, a)
	if a.OK {
		return executor.Done(fmt.Sprintf("GPU %s can be reset, nothing holds it", d.uuid))
	}
	if a.Code != report.CodeBusy || a.Device == nil {
		return refused(a, d)
	}
	on, err := e.resolve(ctx, d, a)
	if err != nil {
		return cluster.Broken(err)
	}
	if code, why := on.never(); p.Drain && code != "" {
		return again(executor.Permanent(code, why))
	}
	if p.Drain && on.drainable() {
		if stop := e.foresee(ctx, t, d, on.pods); stop != nil {
			return *stop
		}
		return executor.Done(fmt.Sprintf("GPU %s can be reset once its %d pods are gone: %s", d.uuid, len(on.pods), on.names()))
	}
	o := executor.Permanent(a.Code, a.Detail)
	o.ActionText = on.free(p.Drain)
	return o
}

// foresee tells what the drain of a device's pods will meet, as a dry run does; nil:
// nothing that no eviction of them gets past.
func (e *devices) foresee(ctx context.Context, t *executor.Task, d target, pods []*corev1.Pod) *executor.Outcome {
	n, away, err := e.readNode(ctx, d.node)
	var met node.Met
	if err == nil && away == nil {
		met, err = e.drains.Meet(ctx, n, pods, t.Remaining())
	}
	switch {
	case err != nil:
		o := cluster.Broken(err)
		return &o
	case away != nil:
		o := e.without(t, d, away, false)
		return &o
	case met.Code != "":
		o := again(executor.Permanent(met.Code, met.Why))
		return &o
	}
	blocked(t, met.Blockers...)
	const most = 20 // of one look, in the journal
	for _, b := range met.Blockers[:min(len(met.Blockers), most)] {
		t.Note("blocker", b.Resource+": "+b.Detail)
	}
	return nil
}

// recorded says once that no GPU is touched.
func (e *devices) recorded(t *executor.Task, a *report.Answer) {
	if a.Source == report.SourceRecorded {
		t.Note("recorded", "the host's answers are recorded: no GPU is touched")
	}
}

// verify proves that the device works: that a reset was carried out is not yet
// success.
func (e *devices) verify(ctx context.Context, t *executor.Task, d target) executor.Outcome {
	a, stop := e.look(ctx, t, d, report.VerbVerify)
	if stop != nil {
		return *stop
	}
	if a.OK {
		e.note(t.Assignment, func(o *outcome) { o.proof = a })
		return executor.Done(a.Detail)
	}
	switch a.Code {
	case report.CodeUnusable, report.CodeGone:
		return executor.Permanent(report.CodeReboot, fmt.Sprintf("GPU %s did not come back after the reset: %s", d.uuid, a.Detail))
	case report.CodeErrors:
		return escalate(executor.Permanent("device_errors", a.Detail), "take the device out of service and look at it: a reset did not help")
	}
	return refused(a, d)
}

// reset has the host reset the device. See the package's text for its fencing.
func (e *devices) reset(ctx context.Context, t *executor.Task, d target) executor.Outcome {
	if ctx.Err() != nil { // a cancel does not stop this step
		return executor.Waiting("interrupted", "the reset was not begun")
	}
	away, err := e.nodeState(ctx, d.node)
	if err != nil {
		o := cluster.Broken(err)
		o.Detail = "the reset was not begun: " + o.Detail
		return o
	}
	if away != nil {
		return e.without(t, d, away, false)
	}
	// Whatever was probed or said before: this is where the harm would be done.
	if stop := e.awaitsAnother(ctx, t, d); stop != nil {
		stop.Detail = "the reset was not begun: " + stop.Detail
		return *stop
	}
	name := resetting(t)
	if stop := e.tooLate(ctx, t, d, name); stop != nil {
		return *stop
	}
	t.Progress(0, 1, "devices", "resetting GPU "+d.uuid)
	h, stop := e.ask(ctx, t, d, report.VerbReset, name)
	if stop != nil {
		return *stop
	}
	if h.answer != nil {
		return e.wasReset(ctx, t, d, h.answer)
	}
	if !h.ran && h.stopped == "" || h.stopped == "late" {
		// It did not start. It is taken away, so that it never does.
		ran, stop := e.takeAway(ctx, t, h.job)
		if stop != nil {
			return executor.Ambiguous(fmt.Sprintf("the reset's job %s did not start and could not be taken away: %s", name, stop.Detail))
		}
		if !ran && (!h.ran || h.unseen) {
			o := h.silent(report.VerbReset)
			o.Detail += "; nothing was reset"
			return o
		}
	}
	return executor.Ambiguous(strings.TrimSuffix(fmt.Sprintf("the reset's job %s was made and its answer has not come: %s", name, strings.TrimSpace(h.code+" "+h.why)), ": "))
}

// wasReset reads the answer to a reset.
func (e *devices) wasReset(ctx context.Context, t *executor.Task, d target, a *report.Answer) executor.Outcome {
	if a.OK {
		e.note(t.Assignment, func(o *outcome) { o.reset, o.already, o.took = true, a.Already, a.Took })
		t.Progress(1, 1, "devices", "GPU "+d.uuid+" was reset")
		e.c.Event(ctx, t, reference(d.node), corev1.EventTypeNormal, "DeviceReset", "Opsplane reset GPU "+d.uuid)
		return executor.Done(a.Detail)
	}
	switch a.Code {
	case report.CodeUnknown, report.CodeInProgress:
		return executor.Ambiguous(a.Detail)
	case report.CodeBusy:
		o := executor.Permanent(a.Code, a.Detail)
		if p, err := readPayload(t.Assignment.Payload); err == nil && p.Drain {
			o.ActionText = "a pod came to the device after it was drained: cordon the node, then reset again"
		}
		return o
	}
	return refused(a, d)
}

// reference names a node in an event. Events of a node carry its name as UID, as the
// kubelet's do: kubectl describe looks them up by it.
func reference(node string) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: types.UID(node)}
}

// probeReset finds out what became of a reset. It reads the answer of whatever
// lease's Job of the run; where that is gone, the host is asked.
func (e *devices) probeReset(ctx context.Context, t *executor.Task) executor.Finding {
	ctx = cluster.Operation(ctx, t.Assignment)
	d, code, why := e.target(t.Assignment)
	if code != "" {
		return executor.Lost(code, why)
	}
	jobs, err := e.jobs(ctx, t, report.VerbReset)
	if err != nil {
		return cluster.Unread(err)
	}
	for _, j := range jobs { // the newest first
		h, err := e.glance(ctx, t, d, report.VerbReset, j)
		switch {
		case err != nil:
			return cluster.Unread(err)
		case h.answer != nil:
			if f, final := found(h.answer); final {
				if h.answer.OK {
					e.note(t.Assignment, func(o *outcome) { o.reset, o.already, o.took = true, h.answer.Already, h.answer.Took })
				}
				return f
			}
		case h.stopped != "":
			return executor.Unknown("in_progress", fmt.Sprintf("job %s has not answered yet: %s", j.Name, h.why))
		}
	}
	switch j, err := e.another(ctx, t, d); {
	case err != nil:
		return cluster.Unread(err)
	case j != nil:
		b := underWay(j, d)
		f := executor.Unknown(b.Code, b.Detail)
		f.Blocker = &b
		return f
	}
	return e.probeMark(ctx, t, d, jobs)
}

// found reads an answer to a reset as a finding; final false: another Job, or the
// host, has to say.
func found(a *report.Answer) (f executor.Finding, final bool) {
	switch {
	case a.OK:
		return executor.Found(a.Detail), true
	case slices.Contains([]string{report.CodeStale, report.CodeInProgress, report.CodeUnknown}, a.Code):
		return executor.Finding{}, false
	}
	// The driver or the host refused: nothing was reset, and it may be tried.
	return executor.ToRun(fmt.Sprintf("the host refused the reset (%s): %s", a.Code, a.Detail)), true
}
