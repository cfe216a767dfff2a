package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// removers are the controllers that remove finalizers of pods by themselves: the Job
// controller when it has counted a pod that ended. All are of the controller manager.
// https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-tracking-with-finalizers
var removers = map[string]string{
	batchv1.JobTrackingFinalizer:     "the Job controller",
	metav1.FinalizerDeleteDependents: "the garbage collector",
	metav1.FinalizerOrphanDependents: "the garbage collector",
}

// removedWithin is how long a pod may have ended until it is told that nobody removes
// its finalizers.
const removedWithin = 5 * time.Second

// lasting lists the finalizers that nothing is known to remove by itself.
func lasting(p *corev1.Pod) []string {
	return slices.DeleteFunc(slices.Clone(p.Finalizers), func(f string) bool { return removers[f] != "" })
}

// isReleased tells whether the API server waits for no kubelet any more, and for nothing
// but the pod's finalizers.
func isReleased(p *corev1.Pod) bool {
	g := p.DeletionGracePeriodSeconds
	return len(p.Finalizers) > 0 && g != nil && *g == 0
}

// isKept tells whether finalizers keep a pod that was told to stop: it has stopped, or
// has no grace left. Another deletion would change nothing.
func isKept(p *corev1.Pod) bool {
	return isReleased(p) || len(p.Finalizers) > 0 && isFinished(p)
}

// unremoved says which finalizers keep a pod that was told to stop; empty: none do yet.
// Of those that a controller removes that is so once the pod has ended for a while, or,
// where nobody tells when it did, its grace is over for one.
func unremoved(p *corev1.Pod, now time.Time) (rule, why string) {
	var said []string
	over, at := !now.Before(p.DeletionTimestamp.Time), endedAt(p)
	if list := lasting(p); len(list) > 0 && (over || isFinished(p)) {
		rule, said = list[0], append(said, fmt.Sprintf("its finalizer %s is not removed", strings.Join(list, ", ")))
	}
	late := !at.IsZero() && now.Sub(at) > removedWithin && now.Sub(askedAt(p)) > removedWithin ||
		at.IsZero() && isKept(p) && now.Sub(p.DeletionTimestamp.Time) > removedWithin
	for _, f := range p.Finalizers {
		who := removers[f]
		if who == "" || !late {
			continue
		}
		if rule == "" {
			rule = f
		}
		said = append(said, fmt.Sprintf("%s (of the controller manager) has not removed its finalizer %s", who, f))
		if !at.IsZero() {
			said[len(said)-1] += ", though it ended at " + at.Format(time.RFC3339)
		}
	}
	return rule, strings.Join(said, ", and ")
}

// endedAt is when the last container of a pod ended that has run to its end; zero:
// nobody tells.
func endedAt(p *corev1.Pod) (at time.Time) {
	if !isFinished(p) {
		return at
	}
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.FinishedAt.After(at) {
			at = t.FinishedAt.UTC()
		}
	}
	return at
}

// unremovedSince is since when finalizers keep a pod that was told to stop: since it
// stopped, as its kubelet did before. Of one whose end nobody saw it is the end of its
// grace.
func unremovedSince(p *corev1.Pod) time.Time {
	since := askedAt(p)
	switch at := endedAt(p); {
	case at.After(since):
		return at
	case !isFinished(p):
		return p.DeletionTimestamp.UTC()
	}
	return since
}

// toRemove is what a person can do about a finalizer that a controller removes; empty:
// what is done about any other.
func toRemove(rule string) string {
	if removers[rule] == "" {
		return ""
	}
	return fmt.Sprintf("see that the controller manager runs: %s of it removes the finalizer %s, then drain again", removers[rule], rule)
}

// wouldStay tells whether a pod that has run to its end would stand in the way once it
// was told to stop.
func wouldStay(p *corev1.Pod, now time.Time) bool {
	at := endedAt(p)
	return len(lasting(p)) > 0 || len(p.Finalizers) > 0 && !at.IsZero() && now.Sub(at) > removedWithin
}
