package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	// lookTimeout bounds a question that changes nothing.
	lookTimeout = 30 * time.Second
	maxOutput   = 1 << 20
	// killWait is how long a process that was killed may take to end. One that the
	// kernel holds in the driver may not end at all.
	killWait = time.Second
)

// helper starts the host's program, in a process group of its own. When the agent
// does not wait for it any more a reset goes on: one that was begun ends by itself,
// and the host's mark remembers it. What only looks is killed: it would keep the
// driver from a reset. over is called when the process has ended, which may be after
// helper has returned.
func (e *Executor) helper(ctx context.Context, over func(), args ...string) (stdout []byte, err error) {
	cmd := exec.Command(e.o.Helper, append(args, e.o.Args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errs limited
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		over()
		return nil, fmt.Errorf("start %s: %w", e.o.Helper, err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		over()
		ended <- err
	}()
	select {
	case err = <-ended:
	case <-ctx.Done():
		if args[0] != report.VerbReset {
			kill(cmd.Process.Pid, ended)
		}
		return nil, fmt.Errorf("%s %s did not answer in time: %w", e.o.Helper, args[0], ctx.Err())
	}
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1 && out.Len() > 0) { // 1: it answers no
		return nil, fmt.Errorf("%s %s: %w: %s", e.o.Helper, args[0], err, strings.Join(strings.Fields(errs.String()), " "))
	}
	return out.Bytes(), nil
}

// kill ends a process group and waits a little for its leader.
func kill(group int, ended <-chan error) {
	select {
	case <-ended:
		return
	default:
	}
	_ = syscall.Kill(-group, syscall.SIGKILL) // it may have ended just now
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// limited keeps the first bytes of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), max(0, maxOutput-l.Len()))])
	return len(p), nil
}

// report has the host described, by one process at a time: while the last one has
// not ended, of a driver that hangs, no other is sent after it.
func (e *Executor) report(ctx context.Context) (report.Host, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	select {
	case e.reporting <- struct{}{}:
	case <-ctx.Done():
		return report.Host{}, fmt.Errorf("%s report: the one before has not ended: %w", e.o.Helper, ctx.Err())
	}
	raw, err := e.helper(ctx, func() { <-e.reporting }, "report", "--node="+e.o.Name, "--state="+e.o.State)
	if err != nil {
		return report.Host{}, err
	}
	var h report.Host
	if err := json.Unmarshal(raw, &h); err != nil {
		return report.Host{}, fmt.Errorf("read %s report: %w", e.o.Helper, err)
	}
	return report.ParseHost(h.Data())
}

// ask asks about the operation's device. What it changes, if it is a reset, goes on
// past ctx.
func (e *Executor) ask(ctx context.Context, a *protocol.Assignment, verb string) (report.Answer, error) {
	name := a.TargetUID
	args := []string{verb, "--device=" + name, "--node=" + e.o.Name, "--state=" + e.o.State}
	if a.Operation != "" {
		args = append(args, "--operation="+a.Operation, fmt.Sprintf("--run=%d", a.Run), fmt.Sprintf("--generation=%d", a.Generation))
	}
	if verb == report.VerbReset {
		args = append(args, "--timeout="+e.o.ResetTimeout.String())
	}
	raw, err := e.helper(ctx, func() {}, args...)
	if err != nil {
		return report.Answer{}, err
	}
	ans, err := report.ParseAnswer(bytes.TrimSpace(raw))
	if err == nil && ans.Verb != verb {
		err = fmt.Errorf("%s answers %s when it is asked to %s", e.o.Helper, ans.Verb, verb)
	}
	if err == nil && ans.Device != nil {
		e.keep(a.Operation, &ans)
	}
	return ans, err
}

// look asks what changes nothing.
func (e *Executor) look(ctx context.Context, t *executor.Task, verb string) (report.Answer, *executor.Outcome) {
	if s := executor.Halted(ctx, t); s != "" {
		o := executor.Waiting(s, "the driver was not asked")
		return report.Answer{}, &o
	}
	if _, ok := report.UUID(t.Assignment.TargetUID); !ok {
		o := executor.Permanent(report.CodeNotSupported, fmt.Sprintf("%q is no GPU's UUID", t.Assignment.TargetUID))
		return report.Answer{}, &o
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	a, err := e.ask(ctx, t.Assignment, verb)
	if err != nil {
		o := executor.Transient("host_error", err.Error())
		o.ActionText = "find out why opsplane-host cannot run, then reset again"
		return a, &o
	}
	return a, nil
}

// refused is the outcome of an answer that is no.
func refused(a *report.Answer) executor.Outcome {
	switch a.Code {
	case report.CodeNoDriver:
		return executor.Permanent(report.CodeNotSupported, "the host reaches no driver: "+a.Detail)
	case report.CodeStale:
		o := executor.Transient("fenced", "nothing was issued: "+a.Detail)
		_, o.ActionCode, o.ActionText = executor.Action("interrupted")
		return o
	case report.CodeInProgress, report.CodeFailed:
		return executor.Transient(a.Code, a.Detail)
	case report.CodeHost, report.CodeInvalid:
		return executor.Permanent("host_error", a.Detail)
	}
	return executor.Permanent(a.Code, a.Detail)
}

func (e *Executor) preflight(ctx context.Context, t *executor.Task) executor.Outcome {
	var p struct {
		Drain bool `json:"drain"`
	}
	if len(t.Assignment.Payload) > 0 {
		if err := json.Unmarshal(t.Assignment.Payload, &p); err != nil {
			return executor.Permanent("invalid_payload", err.Error())
		}
	}
	if p.Drain {
		return e.noDrain()
	}
	a, stop := e.look(ctx, t, report.VerbPreflight)
	switch {
	case stop != nil:
		return *stop
	case !a.OK:
		return refused(&a)
	}
	if a.Source == report.SourceRecorded {
		t.Note("recorded", "the host's answers are recorded: no GPU is touched")
	}
	return executor.Done(a.Detail)
}

// reset has the helper reset the device, once for the run.
func (e *Executor) reset(ctx context.Context, t *executor.Task) executor.Outcome {
	if ctx.Err() != nil {
		return executor.Waiting("interrupted", "the reset was not begun")
	}
	if _, ok := report.UUID(t.Assignment.TargetUID); !ok {
		return executor.Permanent(report.CodeNotSupported, fmt.Sprintf("%q is no GPU's UUID", t.Assignment.TargetUID))
	}
	t.Progress(0, 1, "devices", "resetting GPU "+t.Assignment.TargetUID)
	var a report.Answer
	var err error
	id, stop := e.effect(ctx, t, "reset device "+t.Assignment.TargetUID, "device/"+t.Assignment.TargetUID, func(context.Context) (string, string) {
		// The program's own deadline and mark bound it; the step waits as long as it
		// may.
		if a, err = e.ask(ctx, t.Assignment, report.VerbReset); err != nil {
			return "timeout", err.Error()
		}
		switch {
		case a.Already:
			return "already", a.Detail
		case a.OK:
			return "ok", a.Detail
		}
		return "refused", a.Code + ": " + a.Detail
	})
	if stop != nil {
		return *stop
	}
	var o executor.Outcome
	switch {
	case err != nil, a.Code == report.CodeUnknown, a.Code == report.CodeInProgress:
		why := a.Detail
		if err != nil {
			why = err.Error()
		}
		o = executor.Ambiguous(why)
	case a.OK:
		t.Progress(1, 1, "devices", "GPU "+t.Assignment.TargetUID+" was reset")
		return executor.Done(a.Detail)
	default:
		o = refused(&a)
	}
	o.CommandID = id
	return o
}

// probeReset asks the host's mark.
func (e *Executor) probeReset(ctx context.Context, t *executor.Task) executor.Finding {
	a, err := e.ask(ctx, t.Assignment, report.VerbMark)
	switch {
	case err != nil:
		return executor.Unknown("host_error", err.Error())
	case !a.OK || a.Mark == nil:
		return executor.Unknown(a.Code, a.Detail)
	}
	switch a.Mark.State {
	case report.MarkDone:
		return executor.Found(strings.TrimSpace(fmt.Sprintf("the host's record says that generation %d reset the GPU %s", a.Mark.Generation, a.Mark.Detail)))
	case report.MarkNone:
		return executor.ToRun("the host has no reset of this run on record")
	case report.MarkRefused:
		return executor.ToRun(fmt.Sprintf("the driver refused (%s): %s", a.Mark.Code, a.Mark.Detail))
	}
	return executor.Unknown(a.Code, a.Detail)
}

func (e *Executor) verify(ctx context.Context, t *executor.Task) executor.Outcome {
	a, stop := e.look(ctx, t, report.VerbVerify)
	switch {
	case stop != nil:
		return *stop
	case a.OK:
		return executor.Done(a.Detail)
	}
	switch a.Code {
	case report.CodeUnusable, report.CodeGone:
		return executor.Permanent(report.CodeReboot, "the GPU did not come back after the reset: "+a.Detail)
	case report.CodeErrors:
		o := executor.Permanent("device_errors", a.Detail)
		o.Retryable, o.ActionCode, o.ActionText = false, operation.ActEscalate, "take the device out of service and look at it: a reset did not help"
		return o
	}
	return refused(&a)
}
