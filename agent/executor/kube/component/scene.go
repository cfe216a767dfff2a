package component

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/protocol"
)

// scene is the Jobs of one operation and their pods, as they are now.
type scene struct {
	jobs    []*batchv1.Job // of all verbs, runs and generations
	pods    []*corev1.Pod
	refused map[types.UID]protocol.Blocker // why Jobs got no pod, where that is said
}

// selector finds the Jobs and pods of an operation.
func selector(operation string) string {
	return cluster.LabelJob + "=" + cluster.JobUpgrade + "," + cluster.LabelOperation + "=" + operation
}

// of are the Jobs of a verb in a run, the newest generation first.
func (s scene) of(verb string, run int) []*batchv1.Job {
	var list []*batchv1.Job
	for _, j := range s.jobs {
		if j.Labels[labelVerb] == verb && j.Labels[labelRun] == strconv.Itoa(run) {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *batchv1.Job) int { return cmp.Compare(generationOf(b), generationOf(a)) })
	return list
}

func generationOf(j *batchv1.Job) int64 {
	n, _ := strconv.ParseInt(j.Labels[cluster.LabelGeneration], 10, 64) // 0 is no generation
	return n
}

func (s scene) podsOf(j *batchv1.Job) []*corev1.Pod {
	var list []*corev1.Pod
	for _, p := range s.pods {
		if metav1.IsControlledBy(p, j) {
			list = append(list, p)
		}
	}
	return list
}

// active tells whether the Job may still do something: it has not ended, or a pod
// of it was not seen to end.
func (s scene) active(j *batchv1.Job) bool {
	if _, over := ended(j); !over {
		return true
	}
	return slices.ContainsFunc(s.podsOf(j), func(p *corev1.Pod) bool {
		return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
	})
}

// ended tells how a Job ended.
func ended(j *batchv1.Job) (why string, over bool) {
	c := cluster.JobEnd(j)
	if c == nil {
		return "", false
	}
	return strings.TrimSuffix(fmt.Sprintf("%s: %s", c.Reason, c.Message), ": "), true
}

// answer is what the Job's program said.
func (s scene) answer(j *batchv1.Job) (answer.Answer, error) {
	for _, p := range s.podsOf(j) {
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil && t.Message != "" {
				return answer.Decode(t.Message)
			}
		}
	}
	return answer.Answer{}, answer.ErrNone
}

// why words how a Job ended that left no answer.
func (s scene) why(j *batchv1.Job) string {
	said, _ := ended(j)
	for _, b := range s.blockers(j) {
		said = b.Detail
	}
	for _, p := range s.podsOf(j) {
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil {
				said = fmt.Sprintf("its container ended with exit code %d (%s)", t.ExitCode, cmp.Or(t.Reason, "no reason given"))
			}
		}
		if p.Status.Reason != "" {
			said += fmt.Sprintf("; its pod failed (%s)", p.Status.Reason)
		}
	}
	return fmt.Sprintf("Job %s left no answer: %s", j.Name, cmp.Or(said, "nothing is known of it"))
}

// blockers are what keeps the Job's pod from running.
func (s scene) blockers(j *batchv1.Job) []protocol.Blocker {
	pods := s.podsOf(j)
	if len(pods) == 0 {
		if b, said := s.refused[j.UID]; said {
			return []protocol.Blocker{b}
		}
		return []protocol.Blocker{{Code: "no_pod", Resource: "job/" + j.Namespace + "/" + j.Name, Rule: "job controller",
			Detail: fmt.Sprintf("Job %s has no pod yet: its events say why", j.Name)}}
	}
	var list []protocol.Blocker
	for _, p := range pods {
		add := func(code, rule, format string, args ...any) {
			since := p.CreationTimestamp.UTC()
			list = append(list, protocol.Blocker{Code: code, Resource: "pod/" + p.Namespace + "/" + p.Name, Rule: rule, Detail: fmt.Sprintf(format, args...), Since: &since})
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				add("unschedulable", "scheduler", "pod %s cannot be placed: %s", p.Name, c.Message)
			}
		}
		for _, c := range p.Status.ContainerStatuses {
			w := c.State.Waiting
			switch {
			case w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing":
			case strings.Contains(w.Reason, "Image") || w.Reason == "RegistryUnavailable":
				add("image_pull_failed", "image "+p.Spec.Containers[0].Image, "image %s cannot be pulled (%s): %s", p.Spec.Containers[0].Image, w.Reason, w.Message)
			default:
				add("config_error", "container "+c.Name, "pod %s cannot be started (%s): %s", p.Name, w.Reason, w.Message)
			}
		}
	}
	return list
}

// settles tells whether an answer says what became of the operation's upgrade. One
// that lost to another lease, or could not read the end, does not.
func settles(a answer.Answer, operation string) bool {
	switch a.Code {
	case answer.StaleGeneration, answer.Unavailable:
		return false
	case answer.ReleasePending:
		return a.Release == nil || a.Release.Operation != operation
	}
	return true
}

// settled is the answer that says what became of the upgrade of a run: that of the
// lease that did it, whichever it was.
func (s scene) settled(operation string, run int) (answer.Answer, *batchv1.Job) {
	for _, j := range s.of(answer.Upgrade, run) {
		if a, err := s.answer(j); err == nil && settles(a, operation) && !s.active(j) {
			return a, j
		}
	}
	return answer.Answer{}, nil
}

// busy is a Job of the verb that is under way in any run.
func (s scene) busy(verb string) *batchv1.Job {
	for _, j := range s.jobs {
		if j.Labels[labelVerb] == verb && s.active(j) {
			return j
		}
	}
	return nil
}

// orphan is a pod of the verb that has not ended and whose Job is gone: a Job that is
// deleted takes its pod with it only when the pod's grace is over.
func (s scene) orphan(verb string) *corev1.Pod {
	for _, p := range s.pods {
		if p.Labels[labelVerb] == verb && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed &&
			!slices.ContainsFunc(s.jobs, func(j *batchv1.Job) bool { return metav1.IsControlledBy(p, j) }) {
			return p
		}
	}
	return nil
}

// jobOf names the Job that made a pod.
func jobOf(p *corev1.Pod) string { return cmp.Or(p.Labels[batchv1.JobNameLabel], "of pod "+p.Name) }

// tried names the Jobs that have tried the upgrade in a run.
func (s scene) tried(run int) string {
	var names []string
	for _, j := range s.of(answer.Upgrade, run) {
		names = append(names, j.Name)
	}
	return strings.Join(names, ",")
}

// dead are the generations whose upgrade can do nothing any more.
func (s scene) dead() []int64 {
	var list []int64
	for _, j := range s.jobs {
		if g := generationOf(j); j.Labels[labelVerb] == answer.Upgrade && s.gone(j) && g > 0 {
			list = append(list, g)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// gone tells whether a Job's program is known to have ended: its pod was seen to
// end, here or by the Job controller. The kubelet says so, or, of a node that is
// gone, the pod garbage collector. A pod that was deleted from a node that does not
// answer may run on: the controller forgets it at the Job's deadline, and its Job
// has ended without any pod.
// https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy
func (s scene) gone(j *batchv1.Job) bool {
	if s.active(j) {
		return false
	}
	return len(s.podsOf(j)) > 0 || slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		// With the policy Failed a pod counts as failed by its phase alone.
		failed := c.Type == batchv1.JobFailed && c.Reason == batchv1.JobReasonBackoffLimitExceeded &&
			j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || failed)
	})
}
