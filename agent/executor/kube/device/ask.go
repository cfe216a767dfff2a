package device

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
)

// heard is how a Job ended.
type heard struct {
	answer *report.Answer // nil: it has none
	code   string         // why not
	why    string
	// ran: its container was started, or may have been. unseen: no pod of it was seen,
	// which says nothing of one that comes or that the watch missed.
	ran, unseen bool
	job         *batchv1.Job
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
	if verb == report.VerbReset { // what was begun is not asked for anew: admission may hang by now
		job, stop := e.made(ctx, t, name)
		if stop != nil {
			return heard{}, stop
		}
		if job != nil {
			blocked(t)
			return e.follow(ctx, t, d, verb, job), nil
		}
	}
	job, r, stop := e.c.MakeJob(ctx, t, e.job(t, d, verb, name), verb != report.VerbReset)
	if stop != nil {
		return heard{}, stop
	}
	blocked(t) // what an earlier try waited for
	switch r.Category {
	case cluster.OK:
	case cluster.Already: // this lease's own attempt made it: go on waiting for it
		have, stop := e.made(ctx, t, name)
		if stop != nil {
			return heard{}, stop
		}
		if have == nil { // nobody knows what it has done
			o := executor.Ambiguous(fmt.Sprintf("job %s/%s was made and is gone, without an answer", e.c.Namespace, name))
			return heard{}, &o
		}
		job = have
	case cluster.Throttled:
		o := executor.Transient("api_unavailable", r.Err.Error())
		o.After, o.CommandID = min(r.RetryAfter, askMost), r.Command
		return heard{}, &o
	case cluster.Failed:
		o := executor.Transient("api_unavailable", r.Err.Error())
		o.CommandID = r.Command
		return heard{}, &o
	default:
		o := executor.Permanent(cluster.CodeJobRefused, fmt.Sprintf("the cluster takes no Job in namespace %s: %v", e.c.Namespace, r.Err))
		o.CommandID = r.Command
		return heard{}, &o
	}
	return e.follow(ctx, t, d, verb, job), nil
}

func (e *devices) follow(ctx context.Context, t *executor.Task, d target, verb string, job *batchv1.Job) heard {
	h := e.await(ctx, t, d, verb, job)
	h.job = job
	return h
}

// made reads the Job that this lease made under the name; nil: there is none.
func (e *devices) made(ctx context.Context, t *executor.Task, name string) (*batchv1.Job, *executor.Outcome) {
	read, cancel := e.c.Read(ctx)
	defer cancel()
	have, err := e.c.Client.BatchV1().Jobs(e.c.Namespace).Get(read, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		o := cluster.Broken(err)
		return nil, &o
	}
	if on, ok := cluster.ReadMark(have.Annotations); !ok || on != cluster.MarkOf(t) {
		o := executor.Permanent(cluster.CodeJobRefused, fmt.Sprintf("job %s/%s is there and is not this lease's", e.c.Namespace, name))
		return nil, &o
	}
	return have, nil
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
// tells whether its container was started after all, or may have been.
func (e *devices) takeAway(ctx context.Context, t *executor.Task, job *batchv1.Job) (ran bool, stop *executor.Outcome) {
	name := job.Name
	under, cancel := context.WithTimeout(ctx, cancelWait)
	defer cancel()
	watched := e.watch(under, name)
	blind := watched.Ready(under) != nil
	bare := e.neverHadPod(under, job)
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
			if !any { // none was made, unless there was one before or nobody was told of it
				_, _, _, err := watched.State()
				return !bare || blind || err != nil, nil
			}
		case <-under.Done():
			return true, nil
		}
	}
}

// neverHadPod tells that the Job has counted no pod, as far as can be read. None that is
// not there any more was left out: each holds the finalizer
// batch.kubernetes.io/job-tracking until its Job counts it.
// https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-tracking-with-finalizers
func (e *devices) neverHadPod(ctx context.Context, job *batchv1.Job) bool {
	read, cancel := e.c.Read(ctx)
	defer cancel()
	have, err := e.c.Client.BatchV1().Jobs(job.Namespace).Get(read, job.Name, metav1.GetOptions{})
	if err != nil || have.UID != job.UID {
		return false
	}
	s := have.Status
	left := s.UncountedTerminatedPods
	return s.Active+s.Succeeded+s.Failed == 0 && (left == nil || len(left.Succeeded)+len(left.Failed) == 0)
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
	case h.code == cluster.CodeQuota:
		o := executor.Permanent(h.code, h.why)
		o.ActionText = "raise the quota of the agent's namespace or free some of it, then reset again"
		return o
	case h.code == "config_error" || h.code == codeNoPod || h.code == cluster.CodeCreateRefused:
		o := executor.Permanent(h.code, h.why)
		o.Retryable, o.ActionCode, o.ActionText = true, operation.ActRestoreDependency, "make the namespace take the host program's pods (deviceReset), then reset again"
		return o
	case h.code == "unschedulable":
		o := executor.Permanent(h.code, h.why)
		o.ActionText = "make room for one more pod on the node, then reset again"
		return o
	case h.code == codeUnreachable:
		o := executor.Permanent(h.code, h.why)
		o.ActionText = nodeAction
		return o
	}
	code := h.code
	if code == "" {
		code = "no_answer"
	}
	return executor.Transient(code, h.why)
}
