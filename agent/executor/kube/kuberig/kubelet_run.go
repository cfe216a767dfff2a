//go:build kubetest

package kuberig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Exit codes that a container runtime gives: of a program that could not be
// started, and of one that a signal ended.
const (
	exitNotStarted = 128
	exitSignal     = 128
	exitLost       = 137
)

// Bounds of a termination message: what the kubelet keeps of it, and of the
// output in its place (FallbackToLogsOnError).
const (
	maxMessage  = 4096
	maxFallback = 2048
)

// ending is how a container ended.
type ending struct {
	code            int
	reason, message string
	started         time.Time

	podReason, podMessage string // of the pod, beside the container's
}

// run takes the pod through its life.
func (p *podRun) run(ctx context.Context) {
	end, ok := p.carryOut(ctx)
	if !ok {
		return // the node is gone, or the pod is
	}
	if end != nil && !p.retry(ctx, "final status", func(ctx context.Context) error { return p.setEnd(ctx, *end) }) {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-p.removed:
		return
	case <-p.deleted:
	}
	// Its containers have ended: the object may go.
	none := int64(0)
	p.retry(ctx, "deletion", func(ctx context.Context) error {
		err := p.k.client.CoreV1().Pods(p.pod.Namespace).Delete(ctx, p.pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &none, Preconditions: &metav1.Preconditions{UID: &p.pod.UID}})
		if apierrors.IsConflict(err) {
			return nil // another pod's name by now
		}
		return absent(err)
	})
}

// carryOut runs the container; a nil ending is of a pod that had ended before.
func (p *podRun) carryOut(ctx context.Context) (*ending, bool) {
	switch {
	case done(p.pod):
		return nil, true
	case p.pod.Status.Phase == corev1.PodRunning: // a kubelet of before ran it, and lost its containers
		return &ending{code: exitLost, reason: "ContainerStatusUnknown", message: "The container could not be located when the pod was terminated", started: time.Now()}, true
	case !p.dieBy().IsZero():
		return &ending{code: exitLost, reason: "ContainerStatusUnknown", message: "The container was not started", started: time.Now()}, true
	case len(p.pod.Spec.Containers) != 1 || len(p.pod.Spec.InitContainers) > 0 || p.pod.Spec.RestartPolicy != corev1.RestartPolicyNever:
		return &ending{code: exitNotStarted, reason: "Unsupported", started: time.Now(),
			message: "the stand-in kubelet runs pods of one container, without init containers, with restartPolicy Never"}, true
	}
	var cmd *exec.Cmd
	// As a kubelet: what the container refers to may come later.
	ok := p.retry(ctx, "container", func(ctx context.Context) (err error) {
		if !p.dieBy().IsZero() {
			return nil
		}
		if cmd, err = p.prepare(ctx); err != nil {
			return errors.Join(err, p.setWaiting(ctx, "CreateContainerConfigError", err.Error()))
		}
		return nil
	})
	if !ok {
		return nil, false
	}
	began := time.Now()
	if cmd == nil {
		return &ending{code: exitLost, reason: "ContainerStatusUnknown", message: "The container was not started", started: began}, true
	}
	if err := p.startProcess(cmd); err != nil {
		return &ending{code: exitNotStarted, reason: "StartError", message: "failed to create containerd task: " + err.Error(), started: began}, true
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	over := make(chan struct{})
	var status sync.WaitGroup
	status.Go(func() {
		p.retryUntil(ctx, over, "status", func(ctx context.Context) error { return p.setRunning(ctx, began) })
	})
	err, alive := p.watch(ctx, cmd, ended, began)
	close(over)
	status.Wait()
	p.mu.Lock()
	p.process = nil
	p.mu.Unlock()
	if !alive {
		return nil, false
	}
	return p.judge(cmd, err, began), true
}

// errDeadline ends a pod that was active for too long.
var errDeadline = errors.New("DeadlineExceeded")

// watch waits until the process ends, and ends it when the pod is deleted or past
// its deadline. It is not alive when the node itself is gone.
func (p *podRun) watch(ctx context.Context, cmd *exec.Cmd, ended <-chan error, began time.Time) (err error, alive bool) {
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it may have ended
	var deadline <-chan time.Time
	if s := p.pod.Spec.ActiveDeadlineSeconds; s != nil {
		timer := time.NewTimer(time.Until(began.Add(time.Duration(*s) * time.Second)))
		defer timer.Stop()
		deadline = timer.C
	}
	late := false
	var dieBy <-chan time.Time
	for {
		select {
		case err := <-ended:
			kill() // what it left behind
			if late {
				return errDeadline, true
			}
			return err, true
		case <-ctx.Done():
			kill()
			<-ended
			return nil, false
		case <-p.removed: // deleted by force: the kubelet ends it at once
			kill()
			return <-ended, true
		case <-deadline:
			late, deadline = true, nil
			_ = cmd.Process.Signal(syscall.SIGTERM)
			dieBy = time.After(p.grace())
		case <-p.moved:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			dieBy = time.After(time.Until(p.dieBy()))
		case <-dieBy:
			kill()
		}
	}
}

func (p *podRun) grace() time.Duration {
	if s := p.pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}

// judge reads how the process ended and what it left.
func (p *podRun) judge(cmd *exec.Cmd, err error, began time.Time) *ending {
	e := &ending{started: began, reason: "Completed"}
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		e.code = exitSignal + int(s.Signal())
	} else {
		e.code = cmd.ProcessState.ExitCode()
	}
	if e.code != 0 {
		e.reason = "Error"
	}
	if errors.Is(err, errDeadline) {
		e.podReason, e.podMessage = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
	}
	if b, err := os.ReadFile(p.terminationLog()); err == nil {
		e.message = string(b[:min(len(b), maxMessage)])
	}
	if e.message == "" && e.code != 0 && p.pod.Spec.Containers[0].TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		out := p.output()
		e.message = out[max(0, len(out)-maxFallback):]
	}
	return e
}

func (p *podRun) terminationLog() string { return filepath.Join(p.dir, "termination-log") }

// forks are the starts of processes. Linux ends a child with the thread that
// started it (prctl(2), PR_SET_PDEATHSIG), so one thread starts them all and
// stays.
var forks = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for fork := range c {
			fork()
		}
	}()
	return c
})

func (p *podRun) startProcess(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	done := make(chan error)
	forks() <- func() { done <- cmd.Start() }
	if err := <-done; err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = cmd.Process
	return nil
}

func (p *podRun) setWaiting(ctx context.Context, reason, message string) error {
	return p.setStatus(ctx, map[string]any{"phase": corev1.PodPending},
		map[string]any{"waiting": map[string]string{"reason": reason, "message": message}}, false)
}

func (p *podRun) setRunning(ctx context.Context, began time.Time) error {
	return p.setStatus(ctx, map[string]any{"phase": corev1.PodRunning, "startTime": metav1.NewTime(began), "hostIP": "127.0.0.1", "podIP": "127.0.0.1"},
		map[string]any{"waiting": nil, "running": map[string]any{"startedAt": metav1.NewTime(began)}}, true)
}

func (p *podRun) setEnd(ctx context.Context, e ending) error {
	phase := corev1.PodSucceeded
	if e.code != 0 || e.podReason != "" {
		phase = corev1.PodFailed
	}
	pod := map[string]any{"phase": phase, "startTime": metav1.NewTime(e.started)}
	if e.podReason != "" {
		pod["reason"], pod["message"] = e.podReason, e.podMessage
	}
	return p.setStatus(ctx, pod, map[string]any{"waiting": nil, "running": nil, "terminated": map[string]any{
		"exitCode": e.code, "reason": e.reason, "message": e.message, "startedAt": metav1.NewTime(e.started), "finishedAt": metav1.Now(),
	}}, false)
}

// setStatus writes the pod's status with the one container's state.
func (p *podRun) setStatus(ctx context.Context, status, state map[string]any, ready bool) error {
	c := p.pod.Spec.Containers[0]
	condition := corev1.ConditionFalse
	if ready {
		condition = corev1.ConditionTrue
	}
	var conditions []map[string]any
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady} {
		s := condition
		if t == corev1.PodInitialized {
			s = corev1.ConditionTrue
		}
		conditions = append(conditions, map[string]any{"type": t, "status": s, "lastTransitionTime": metav1.Now()})
	}
	status["conditions"] = conditions
	status["containerStatuses"] = []map[string]any{{
		"name": c.Name, "image": c.Image, "imageID": "", "ready": ready, "started": ready, "restartCount": 0, "state": state,
	}}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = p.k.client.CoreV1().Pods(p.pod.Namespace).Patch(ctx, p.pod.Name, types.StrategicMergePatchType, b, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		p.remove() // gone, or another pod's name by now
		return nil
	}
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// program finds what is started for the container's command, or for its image.
func (k *Kubelet) program(c *corev1.Container, command []string) (string, error) {
	name := c.Image
	if len(command) > 0 {
		name = filepath.Base(command[0])
	}
	if path, ok := k.opts.Programs[name]; ok {
		return path, nil
	}
	if len(command) == 0 {
		return "", fmt.Errorf("no command, and no program stands for image %q", c.Image)
	}
	path, err := exec.LookPath(command[0])
	if err == nil {
		return path, nil
	}
	if path, other := exec.LookPath(name); other == nil { // elsewhere than in the image
		return path, nil
	}
	return "", err
}
