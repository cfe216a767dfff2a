package device

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// heard is how a Job ended.
type heard struct {
	answer *report.Answer // nil: it has none
	code   string         // why not
	why    string
	// ran: its container was started, or may have been.
	ran bool
	job *batchv1.Job
	// stopped is why the step stopped waiting for it: executor.Halted's word, or
	// "late" past the Job's own time.
	stopped string
}

const (
	// patience is how long a Job may be without a pod before that is told.
	patience   = 5 * time.Second
	nodeLook   = 10 * time.Second
	lateBy     = 10 * time.Second // after a Job's own deadline
	cancelWait = 20 * time.Second
)

// ask runs a verb on the node and returns its answer. The outcome is set when the
// Job could not be made.
func (e *devices) ask(ctx context.Context, t *executor.Task, d target, verb, name string) (heard, *executor.Outcome) {
	job := e.job(t, d, verb, name)
	r, stop := e.c.Effect(ctx, t, "create job", "job/"+e.c.Namespace+"/"+name, name, func(ctx context.Context) error {
		made, err := e.c.Client.BatchV1().Jobs(e.c.Namespace).Create(ctx, job, metav1.CreateOptions{})
		if err == nil {
			job = made
		}
		return err
	})
	if stop != nil {
		return heard{}, stop
	}
	switch r.Category {
	case cluster.OK:
	case cluster.Already: // this lease's own attempt made it: go on waiting for it
		read, cancel := e.c.Read(ctx)
		defer cancel()
		have, err := e.c.Client.BatchV1().Jobs(e.c.Namespace).Get(read, name, metav1.GetOptions{})
		if err != nil {
			o := cluster.Broken(err)
			return heard{}, &o
		}
		if on, ok := cluster.ReadMark(have.Annotations); !ok || on != cluster.MarkOf(t) {
			o := executor.Permanent("job_refused", fmt.Sprintf("job %s/%s is there and is not this lease's", e.c.Namespace, name))
			return heard{}, &o
		}
		job = have
	case cluster.Throttled:
		o := executor.Transient("api_unavailable", r.Err.Error())
		o.After, o.CommandID = r.RetryAfter, r.Command
		return heard{}, &o
	case cluster.Failed:
		o := executor.Transient("api_unavailable", r.Err.Error())
		o.CommandID = r.Command
		return heard{}, &o
	default:
		o := executor.Permanent("job_refused", fmt.Sprintf("the cluster takes no Job in namespace %s: %v", e.c.Namespace, r.Err))
		o.CommandID = r.Command
		return heard{}, &o
	}
	h := e.await(ctx, t, d, verb, job)
	h.job = job
	return h, nil
}

// await waits for a Job's answer by one watch on its pods. It always comes back:
// the Job has a deadline of its own.
func (e *devices) await(ctx context.Context, t *executor.Task, d target, verb string, job *batchv1.Job) heard {
	under, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := e.watch(under, job.Name)
	w := &waiting{e: e, t: t, d: d, verb: verb, job: job, begun: time.Now()}
	defer blocked(t)
	cancelled := t.Cancelled
	if !t.Step.Interruptible {
		cancelled = nil
	}
	late := time.NewTimer(e.limit(t, verb) + lateBy)
	defer late.Stop()
	patient := time.NewTimer(patience)
	defer patient.Stop()
	defer w.forgive()
	look := time.NewTicker(nodeLook)
	defer look.Stop()
	for {
		pods, changed := watched.look()
		_, _, failed, err := watched.State()
		if end := w.told(pods, err); end != nil {
			return *end
		}
		var end *heard
		select {
		case <-changed:
		case <-failed:
		case <-patient.C:
			w.impatient = true
			end = w.see(w.last)
		case <-w.pull():
			w.failing = true
			end = w.see(w.last)
		case <-look.C:
			w.node(ctx)
		case <-late.C:
			end = &heard{stopped: "late", ran: w.mayRun(), code: w.code, why: fmt.Sprintf("job %s did not answer in its time: %s", job.Name, w.why)}
		case <-cancelled:
			end = &heard{stopped: "cancelled", ran: w.mayRun()}
		case <-ctx.Done():
			end = &heard{stopped: "interrupted", ran: w.mayRun(), code: w.code, why: w.why}
		}
		if end != nil {
			return *end
		}
	}
}

// told judges what the watch has brought; nil: go on waiting.
func (w *waiting) told(pods []seenPod, away error) *heard {
	w.deaf = away != nil
	for _, s := range pods {
		if end := w.see(s); end != nil {
			return end
		}
	}
	if away == nil {
		return nil
	}
	o := cluster.Broken(away)
	if o.ErrorCode == "forbidden" {
		return &heard{ran: true, code: o.ErrorCode, why: o.Detail}
	}
	w.block(o.ErrorCode, o.Detail)
	return nil
}

// waiting is a wait for one Job.
type waiting struct {
	e         *devices
	t         *executor.Task
	d         target
	verb      string
	job       *batchv1.Job
	begun     time.Time
	last      seenPod
	impatient bool
	deaf      bool // the API server does not answer
	// pulling runs since the image's pull was seen to fail, nil: it does not; failing:
	// it has failed for as long as is waited for a registry.
	pulling   *time.Timer
	failing   bool
	code, why string // what it waits for
}

func (w *waiting) block(code, why string) {
	if w.code == code && w.why == why {
		return
	}
	w.code, w.why = code, why
	blocked(w.t, protocol.Blocker{Code: code, Resource: "job/" + w.job.Namespace + "/" + w.job.Name, Detail: why})
}

// pull is told when the image's pull has failed for long enough.
func (w *waiting) pull() <-chan time.Time {
	if w.pulling == nil {
		return nil
	}
	return w.pulling.C
}

// forgive ends the count of a pull that failed.
func (w *waiting) forgive() {
	if w.pulling != nil {
		w.pulling.Stop()
	}
	w.pulling, w.failing = nil, false
}

// node names a node that does not answer: its pods are frozen as they were.
func (w *waiting) node(ctx context.Context) {
	if code, why, err := w.e.nodeState(ctx, w.d.node); err == nil && code != "" {
		w.block(code, why)
	}
}

// mayRun tells whether the Job's container may have been started.
func (w *waiting) mayRun() bool {
	if w.last.pod == nil {
		return true // its pod may come at any moment
	}
	return !w.last.gone && !finished(w.last.pod) || started(w.last.pod)
}

// see judges the Job's pod; nil: go on waiting.
func (w *waiting) see(s seenPod) *heard {
	if s.pod != nil && !metav1.IsControlledBy(s.pod, w.job) {
		return nil // anybody's pod may have the label
	}
	w.last = s
	p := s.pod
	if p == nil {
		if w.impatient {
			w.block("no_pod", fmt.Sprintf("the cluster made no pod for job %s: does the namespace's pod security level allow privileged pods, and is service account %q there?",
				w.job.Name, w.e.cfg.ServiceAccount))
		}
		return nil
	}
	if st := terminated(p); st != nil {
		a, err := w.e.read(w.t, w.d, w.verb, p, st)
		if err != nil {
			return &heard{ran: true, code: "bad_answer", why: fmt.Sprintf("pod %s ended with code %d (%s): %v", p.Name, st.ExitCode, st.Reason, err)}
		}
		return &heard{answer: &a, ran: true}
	}
	if s.gone || finished(p) {
		why := strings.TrimSpace(p.Status.Reason + " " + p.Status.Message)
		if s.gone && why == "" {
			why = "it was deleted"
		}
		return &heard{ran: started(p), code: failureCode(p), why: fmt.Sprintf("pod %s of job %s ended without an answer: %s", p.Name, w.job.Name, why)}
	}
	if code, why, final := stuck(p); code != "" {
		if final || w.failing && code == "image_pull_failed" {
			return &heard{ran: started(p), code: code, why: why}
		}
		if code == "image_pull_failed" && w.pulling == nil {
			w.pulling = time.NewTimer(w.e.cfg.PullPatience)
		}
		w.block(code, why)
		return nil
	}
	w.forgive()
	if started(p) && w.code != "node_unreachable" && !w.deaf {
		w.code, w.why = "", ""
		blocked(w.t)
	}
	return nil
}

// read reads a terminated container's answer, and believes it only if it is the
// answer to this question.
func (e *devices) read(t *executor.Task, d target, verb string, p *corev1.Pod, st *corev1.ContainerStateTerminated) (report.Answer, error) {
	if p.Spec.NodeName != d.node {
		return report.Answer{}, fmt.Errorf("it ran on node %s, not on %s", p.Spec.NodeName, d.node)
	}
	if st.Message == "" {
		return report.Answer{}, fmt.Errorf("it left no answer")
	}
	a, err := report.ParseAnswer([]byte(st.Message))
	switch {
	case err != nil:
		return a, err
	case a.Verb != verb || a.Operation != t.Assignment.Operation || a.Run != t.Assignment.Run || a.Generation > t.Assignment.Generation:
		return a, fmt.Errorf("it answers another question (%s of %s, run %d, generation %d)", a.Verb, a.Operation, a.Run, a.Generation)
	case a.Node != d.node && !cutOff(a, "everything else"):
		return a, fmt.Errorf("it speaks of node %q, not of %s", a.Node, d.node)
	case a.OK && a.Device == nil && verb != report.VerbMark && !cutOff(a, "device", "everything else"):
		return a, fmt.Errorf("it does not say of which device it speaks")
	case a.Device != nil && a.Device.UUID != d.uuid:
		return a, fmt.Errorf("it speaks of device %s, not of %s", a.Device.UUID, d.uuid)
	}
	if a.Device != nil || a.Source != "" {
		e.note(t.Assignment, func(o *outcome) {
			if a.Device != nil {
				o.device = a.Device
			}
			o.source, o.driver = a.Source, a.Driver
		})
	}
	return a, nil
}

// cutOff tells that the answer was too long and what was cut off, by the names of
// report.Answer's Message.
func cutOff(a report.Answer, what ...string) bool {
	return slices.ContainsFunc(a.Cut, func(c string) bool { return slices.Contains(what, c) })
}

// takeAway deletes a Job that cannot start, so that it does not start late, and
// tells whether its container was started after all.
func (e *devices) takeAway(ctx context.Context, t *executor.Task, job *batchv1.Job) (ran bool, stop *executor.Outcome) {
	name := job.Name
	under, cancel := context.WithTimeout(ctx, cancelWait)
	defer cancel()
	watched := e.watch(under, name)
	blind := watched.Ready(under) != nil
	background := metav1.DeletePropagationBackground
	o := metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &job.UID}}
	r, stop := e.c.Repeatable(ctx, t, "delete job", "job/"+e.c.Namespace+"/"+name, name, func(ctx context.Context) error {
		return e.c.Client.BatchV1().Jobs(e.c.Namespace).Delete(ctx, name, o)
	})
	if stop != nil {
		return true, stop
	}
	if r.Category != cluster.OK && !r.NotFound() {
		return true, nil
	}
	// A pod that was made a moment before the Job went is here soon.
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		pods, changed := watched.look()
		there, any := false, false
		for _, s := range pods {
			if !metav1.IsControlledBy(s.pod, job) {
				continue
			}
			any, there, ran = true, there || !s.gone, ran || started(s.pod)
		}
		if any && !there {
			return ran, nil
		}
		select {
		case <-changed:
		case <-late.C:
			if !any { // none was made, unless nobody was told of it
				_, _, _, err := watched.State()
				return blind || err != nil, nil
			}
		case <-under.Done():
			return true, nil
		}
	}
}

// silent is the outcome of a question that only looks and was not answered.
func (h heard) silent(verb string) executor.Outcome {
	switch {
	case h.stopped == "cancelled" || h.stopped == "interrupted":
		code := h.stopped
		if h.stopped == "interrupted" && h.code != "" {
			code = h.code
		}
		o := executor.Waiting(code, fmt.Sprintf("waiting for the host's answer to %s", verb))
		if h.why != "" {
			o.Detail += ": " + h.why
		}
		return o
	case h.code == "forbidden":
		return executor.Permanent(h.code, h.why)
	case h.code == "image_pull_failed":
		o := executor.Permanent(h.code, h.why)
		o.ActionText = "make the host program's image available to the node (deviceReset.image), then reset again"
		return o
	case h.code == "config_error" || h.code == "no_pod":
		o := executor.Permanent(h.code, h.why)
		o.Retryable, o.ActionCode, o.ActionText = true, operation.ActRestoreDependency, "make the namespace take the host program's pods (deviceReset), then reset again"
		return o
	case h.code == "unschedulable":
		o := executor.Permanent(h.code, h.why)
		o.ActionText = "make room for one more pod on the node, then reset again"
		return o
	case h.code == "node_unreachable":
		o := executor.Permanent(h.code, h.why)
		o.ActionText = "bring the node back, then reset again"
		return o
	}
	code := h.code
	if code == "" {
		code = "no_answer"
	}
	return executor.Transient(code, h.why)
}
