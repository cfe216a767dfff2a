package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
)

// MakeJob makes a Job for a step, as patient as admission may be slow: a webhook that
// hangs is named as one is that is not there, and the step waits for it under its lease.
//
// One that only looks does no harm where its making is not heard of: it is asked for, and
// whoever asks again may have two. Another is an effect of kind (a) by its name. It is
// rehearsed first, so that while admission says nothing, nothing is begun either, and
// nothing has to be found out of it.
//
// The outcome is set when the step cannot go on, as Effect's is; all other answers are
// the caller's to judge. made is nil unless the Job was made by this call.
func (c *Cluster) MakeJob(ctx context.Context, t *executor.Task, job *batchv1.Job, looks bool) (made *batchv1.Job, r Reply, stop *executor.Outcome) {
	x := changeOf(job)
	create := func(ctx context.Context) (err error) {
		made, err = c.create(ctx, job)
		return err
	}
	const what = "create job"
	if looks {
		var o *executor.Outcome
		_, err := c.Patiently(ctx, t, x, func(ctx context.Context) error {
			r, o = c.RepeatableWithin(ctx, t, AdmissionMost, what, x.Resource, job.Name, create)
			return r.Err
		})
		stop = o
		switch h, hook := hungBy(err), UncalledBy(err); {
		case h != nil:
			o := h.Outcome(ctx, t)
			stop = &o
		case stop != nil && stop.ErrorCode == "fenced" && !errors.Is(r.Err, executor.ErrFenced): // its own time was over
			o := c.cameToNothing(ctx, t, r.Err, x)
			stop = &o
		case stop != nil:
			o := Patient(*stop, askAgain)
			stop = &o
		case hook != nil: // it is shown
			o := hook.Outcome()
			stop = &o
		case r.Category == Timeout:
			o := c.cameToNothing(ctx, t, r.Err, x)
			stop = &o
		}
	} else {
		begun := c.Now()
		limit, o := c.rehearseJob(ctx, t, job)
		if o != nil {
			return nil, Reply{Category: Failed}, o
		}
		if has := job.Spec.ActiveDeadlineSeconds; has != nil { // what the operation had left then
			*has = max(1, *has-int64(c.Now().Sub(begun)/time.Second))
		}
		if r, stop = c.EffectWithin(ctx, t, limit, what, x.Resource, job.Name, create); stop == nil {
			stop = r.Uncalled(t, x.Resource)
		}
	}
	if stop != nil && stop.CommandID == "" {
		stop.CommandID = r.Command
	}
	if r.Category != OK {
		made = nil
	}
	return made, r, stop
}

func changeOf(job *batchv1.Job) Change {
	return Change{What: fmt.Sprintf("Job %s/%s", job.Namespace, job.Name), Resource: "job/" + job.Namespace + "/" + job.Name, About: "Jobs in namespace " + job.Namespace}
}

func (c *Cluster) create(ctx context.Context, job *batchv1.Job, dry ...string) (*batchv1.Job, error) {
	return c.Client.BatchV1().Jobs(job.Namespace).Create(ctx, job, metav1.CreateOptions{FieldManager: ManagedBy, DryRun: dry})
}

// rehearseJob tells how long the making of a Job may take, or that it waits: for a
// webhook that takes long to fail, or an API server that does not answer. What is answered
// soon the making itself meets, as a command of the operation.
func (c *Cluster) rehearseJob(ctx context.Context, t *executor.Task, job *batchv1.Job) (limit time.Duration, stop *executor.Outcome) {
	x := changeOf(job)
	took, err := c.Patiently(ctx, t, x, func(ctx context.Context) error {
		_, err := c.create(ctx, job, metav1.DryRunAll)
		return err
	})
	var o executor.Outcome
	switch h, hook := hungBy(err), UncalledBy(err); {
	case h != nil:
		o = h.Outcome(ctx, t)
	case hook != nil && took >= SlowFrom:
		o = hook.Outcome()
	case err != nil && ctx.Err() != nil || executor.Halted(ctx, t) != "":
		o = c.cameToNothing(ctx, t, err, x)
	case err != nil && took >= SlowFrom && unavailable(err):
		o = Patient(Broken(err), askAgain)
	case TakesNoDryRun(err) || took >= SlowFrom:
		return AdmissionMost, nil
	default:
		return 0, nil
	}
	return 0, &o
}

// cameToNothing is the outcome of a step whose question came to nothing, and nobody hangs.
func (c *Cluster) cameToNothing(ctx context.Context, t *executor.Task, err error, x Change) executor.Outcome {
	if halt := executor.Halted(ctx, t); halt != "" {
		return executor.Waiting(halt, "stopped before "+x.What+" was made")
	}
	return Patient(Broken(err), askAgain)
}

// TakesNoDryRun tells whether an answer says that a webhook cannot be asked in a dry run,
// for it has side effects. It is asked about the change itself.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#side-effects
func TakesNoDryRun(err error) bool {
	return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run")
}

// JobEnd is the condition by which a Job has ended; nil: it has not.
// https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup
func JobEnd(j *batchv1.Job) *batchv1.JobCondition {
	for i, c := range j.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return &j.Status.Conditions[i]
		}
	}
	return nil
}

// JobEndOf tells when a Job ended.
func JobEndOf(j *batchv1.Job) (at time.Time, over bool) {
	c := JobEnd(j)
	if c == nil {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Time, true
}

// AskJob makes a Job that only looks for a probe, which may be shorter than admission
// takes: the making goes on without it, and whoever asks next under the key has what became
// of it. It is made without a fence.
func (c *Cluster) AskJob(ctx context.Context, key string, job *batchv1.Job) (*batchv1.Job, error) {
	made, err := c.asked.wait(ctx, key, changeOf(job), func(ctx context.Context) (*batchv1.Job, error) { return c.create(ctx, job) })
	if silent, _ := c.Pulse.State(); silent != nil && hungBy(err) != nil {
		return nil, silent
	}
	return made, err
}

// outlasting are Jobs that are being made for who may be gone. The zero value is ready.
type outlasting struct {
	mu sync.Mutex
	of map[string]*making
}

// making is one of them; job, err and over are set when done is closed.
type making struct {
	since time.Time
	done  chan struct{}
	over  time.Time
	job   *batchv1.Job
	err   error
}

// answerKept is how long what became of a Job is kept for who asks again: longer than a
// pause between two probes.
const answerKept = 30 * time.Second

func (a *outlasting) wait(ctx context.Context, key string, x Change, f func(ctx context.Context) (*batchv1.Job, error)) (*batchv1.Job, error) {
	m := a.join(ctx, key, x, f)
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil, &Hung{Change: x, Since: m.since, Within: time.Since(m.since)}
	}
	a.mu.Lock()
	if a.of[key] == m {
		delete(a.of, key)
	}
	a.mu.Unlock()
	return m.job, m.err
}

// join returns what is under way, or begins it.
func (a *outlasting) join(ctx context.Context, key string, x Change, f func(ctx context.Context) (*batchv1.Job, error)) *making {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, m := range a.of {
		select {
		case <-m.done:
			if time.Since(m.over) > answerKept {
				delete(a.of, k)
			}
		default:
		}
	}
	if m := a.of[key]; m != nil {
		return m
	}
	m := &making{since: time.Now(), done: make(chan struct{})}
	if a.of == nil {
		a.of = map[string]*making{}
	}
	a.of[key] = m
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), AdmissionMost)
	go func() {
		defer cancel()
		m.job, m.err = f(ctx)
		m.over = time.Now()
		if timedOut(m.err) || m.err != nil && ctx.Err() != nil {
			m.err = &Hung{Change: x, Since: m.since, Within: m.over.Sub(m.since)}
		}
		close(m.done)
	}()
	return m
}
