package device

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// jobs lists the Jobs of this run with the verb, of every lease, the newest
// first.
func (e *devices) jobs(ctx context.Context, t *executor.Task, verb string) ([]*batchv1.Job, error) {
	ctx, cancel := e.c.Read(ctx)
	defer cancel()
	list, err := e.c.Client.BatchV1().Jobs(e.c.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: cluster.LabelOperation + "=" + t.Assignment.Operation + "," + labelVerb + "=" + verb})
	if err != nil {
		return nil, err
	}
	var out []*batchv1.Job
	for i := range list.Items {
		if on, ok := cluster.ReadMark(list.Items[i].Annotations); ok && on.SameRun(cluster.MarkOf(t)) {
			out = append(out, &list.Items[i])
		}
	}
	slices.SortFunc(out, func(a, b *batchv1.Job) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return out, nil
}

// another finds a Job that may reset the device yet and is of no lease of this run: an
// operation, or a run, can end while nobody knows what became of its reset, and its Job
// lives on to its own deadline. nil: there is none.
func (e *devices) another(ctx context.Context, t *executor.Task, d target) (*batchv1.Job, error) {
	ctx, cancel := e.c.Read(ctx)
	defer cancel()
	list, err := e.c.Client.BatchV1().Jobs(e.c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labelVerb + "=" + report.VerbReset})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		j := &list.Items[i]
		if on, ok := cluster.ReadMark(j.Annotations); ok && !on.SameRun(cluster.MarkOf(t)) && !over(j) && resets(j, d) {
			return j, nil
		}
	}
	return nil, nil
}

// underWay is another's Job as what stands in the way of a reset.
func underWay(j *batchv1.Job, d target) protocol.Blocker {
	op, since := j.Labels[cluster.LabelOperation], j.CreationTimestamp.UTC()
	return protocol.Blocker{Code: report.CodeInProgress, Resource: "job/" + j.Namespace + "/" + j.Name, Rule: "operation/" + op, Since: &since,
		Detail: fmt.Sprintf("job %s of operation %s has not ended and may reset GPU %s yet", j.Name, op, d.uuid)}
}

// awaitsAnother keeps a step from beginning while a Job that is not of this run may
// reset the device yet: with an answer for this run's own in hand the device would be
// used again, and reset under whoever uses it. nil: there is none.
func (e *devices) awaitsAnother(ctx context.Context, t *executor.Task, d target) *executor.Outcome {
	j, err := e.another(ctx, t, d)
	if err != nil {
		o := cluster.Broken(err)
		return &o
	}
	if j == nil {
		return nil
	}
	b := underWay(j, d)
	blocked(t, b)
	o := executor.Waiting(b.Code, b.Detail)
	o.After = lookAgain
	o.ActionText = fmt.Sprintf("wait until job %s/%s has ended, or delete it if its pod cannot start", j.Namespace, j.Name) + operation.ThenRetry
	return &o
}

// resets tells whether a Job that resets is for the device.
func resets(j *batchv1.Job, d target) bool {
	return slices.ContainsFunc(j.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return slices.Contains(c.Args, argDevice+d.uuid) })
}

// glance waits for a Job's answer until ctx ends: a reset ends by itself. A Job
// that is over and whose pod is gone has none.
func (e *devices) glance(ctx context.Context, t *executor.Task, d target, verb string, j *batchv1.Job) (heard, error) {
	if over(j) {
		read, cancel := e.c.Read(ctx)
		defer cancel()
		list, err := e.c.Client.CoreV1().Pods(e.c.Namespace).List(read, metav1.ListOptions{LabelSelector: labelJobName + "=" + j.Name})
		if err != nil {
			return heard{}, err
		}
		w := &waiting{e: e, t: quiet(t), d: d, verb: verb, job: j}
		for i := range list.Items {
			if h := w.see(seenPod{pod: &list.Items[i]}); h != nil && h.answer != nil {
				return *h, nil
			}
		}
		return heard{ran: true}, nil
	}
	return e.await(ctx, quiet(t), d, verb, j), nil
}

// over tells whether the Job has come to its end.
func over(j *batchv1.Job) bool {
	_, ended := cluster.JobEndOf(j)
	return ended
}

// quiet is the task of a probe: it shows nothing.
func quiet(t *executor.Task) *executor.Task {
	c := *t
	c.Blocked, c.Cancelled = nil, nil
	return &c
}

// probeMark asks the host what it remembers of the run's reset, by a Job that
// changes nothing. It is made without a fence: harmless whoever makes it, and
// however often. A Job may take longer than a probe, and so may its making: what an
// earlier probe asked for is read first, and waited for while it is owed. resets are the
// Jobs of the run that reset.
func (e *devices) probeMark(ctx context.Context, t *executor.Task, d target, resets []*batchv1.Job) executor.Finding {
	asked, err := e.jobs(ctx, t, report.VerbMark)
	if err != nil {
		return cluster.Unread(err)
	}
	var owed *batchv1.Job
	for _, j := range asked { // the newest first
		switch {
		case !tells(j, resets):
			continue
		case !over(j):
			owed = cmp.Or(owed, j)
			continue
		}
		h, err := e.glance(ctx, t, d, report.VerbMark, j)
		if err != nil {
			return cluster.Unread(err)
		}
		if h.answer != nil && settled(h.answer) {
			return e.marked(t, h.answer, len(resets))
		}
	}
	never := neverBegun(t, resets)
	away, err := e.nodeState(ctx, d.node)
	switch {
	case err != nil:
		return cluster.Unread(err)
	case away != nil && never:
		return executor.ToRun(away.why + ": " + preflightSays)
	case away != nil && away.code == report.CodeGone:
		return executor.Unknown(away.code, away.why+": what became of the reset cannot be read any more")
	case away != nil:
		return executor.Unknown(away.code, away.why)
	}
	if owed == nil {
		job := e.job(t, d, report.VerbMark, looking(cluster.MarkOf(t), report.VerbMark))
		if owed, err = e.c.AskJob(ctx, report.VerbMark+" "+runOf(t.Assignment), job); err != nil {
			return cluster.Unread(err)
		}
	}
	h := e.await(ctx, quiet(t), d, report.VerbMark, owed)
	if h.answer == nil {
		return executor.Unknown("no_answer", strings.TrimSpace(fmt.Sprintf("the host was asked for its mark by job %s and has not answered: %s %s", owed.Name, h.code, h.why)))
	}
	if a := h.answer; never && !a.OK && (a.Code == report.CodeHost || a.Code == report.CodeInvalid) {
		return executor.ToRun(fmt.Sprintf("the host could not tell of a reset (%s): %s: %s", a.Code, a.Detail, preflightSays))
	}
	return e.marked(t, h.answer, len(resets))
}

// preflightSays ends what keeps a reset that was never begun: of that there is nothing to
// find out, and the preflight meets the same, waits for it as long as is of use, and says
// what to do. Another operation's Job is waited for before it comes to that.
const preflightSays = "the preflight says so"

// neverBegun tells whether no lease of the run began a reset.
func neverBegun(t *executor.Task, resets []*batchv1.Job) bool {
	return len(resets) == 0 && t.Step.Attempts == 0 && !operation.FromBackup(t.Assignment.Generation)
}

// tells whether a Job that asked for the mark was made after all that reset had
// ended, so that its answer holds. The API counts whole seconds.
func tells(asked *batchv1.Job, resets []*batchv1.Job) bool {
	return !slices.ContainsFunc(resets, func(r *batchv1.Job) bool {
		end, over := cluster.JobEndOf(r)
		return !over || !asked.CreationTimestamp.After(end)
	})
}

// settled tells that an answer is as good later as it was: that a reset is under way
// is not, and what the device shows of one whose process died may come to be.
func settled(a *report.Answer) bool { return a.OK && a.Mark != nil }

// marked reads the host's answer.
func (e *devices) marked(t *executor.Task, a *report.Answer, begun int) executor.Finding {
	if !a.OK || a.Mark == nil {
		return executor.Unknown(a.Code, a.Detail)
	}
	switch a.Mark.State {
	case report.MarkDone:
		e.note(t.Assignment, func(o *outcome) { o.reset = true })
		s := fmt.Sprintf("the host's record says that generation %d reset the GPU", a.Mark.Generation)
		if a.Mark.Detail != "" {
			s += ": " + a.Mark.Detail
		}
		return executor.Found(s)
	case report.MarkRefused:
		return executor.ToRun(fmt.Sprintf("the host's record says that the driver refused (%s): %s", a.Mark.Code, a.Mark.Detail))
	case report.MarkNone:
		return executor.ToRun(fmt.Sprintf("the host has no reset of this run on record (%d jobs were made)", begun))
	}
	return executor.Unknown(a.Code, a.Detail)
}
