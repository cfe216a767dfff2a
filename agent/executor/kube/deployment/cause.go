package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
)

// Codes of what keeps a rollout from its end.
const (
	codeImagePull     = "image_pull_failed"
	codeCrashLoop     = "crash_loop"
	codeConfig        = "config_error"
	codeQuota         = cluster.CodeQuota
	codeCreateRefused = cluster.CodeCreateRefused
	codeUnschedulable = "unschedulable"
	codeGated         = "scheduling_gated" // no scheduler may place it yet
	codeNoScheduler   = "scheduler_silent" // none has said anything of it
	codeNotStarted    = "not_started"      // it is on a node, and no container was begun
	codeNotReady      = "not_ready"        // it runs, and that is all that is known
	codeDeadline      = "progress_deadline_exceeded"
	codeTerminating   = "terminating"  // a pod that has not gone
	codeOverdue       = "stop_overdue" // one whose grace is over
	codeFinalizer     = "finalizer"    // of one
	codePaused        = "paused"
	codeOnDelete      = "on_delete"
	codePartition     = "partition_raised"
	codeScaled        = "scaled_down"
	codeSilent        = "controller_silent"
)

// What holds a rollout by the object's own word.
const (
	onDelete      = "OnDelete"
	ruleStrategy  = "spec.updateStrategy"
	rulePartition = "partition"
)

// slowCrashes is how many restarts of a container that is not ready count as a
// crash loop between two back-offs.
const slowCrashes = 3

// cause is one thing that keeps new pods from getting ready.
type cause struct {
	code     string
	resource string    // the first one it was seen on
	uid      types.UID // of that pod, where more can be asked about it
	rule     string    // image, container, quota, scheduler, scheduling gate, node or spec.paused
	detail   string
	since    time.Time // zero: the API server does not say
	pods     int
	rest     string    // what becomes of the rollout if nobody waits for it; "": restGoesOn
	held     bool      // it is somebody's will
	old      bool      // it is of a pod of before
	due      time.Time // of what is not started or not ready: when it becomes a cause
	ending   bool      // it never does, and is only what an end is explained by
	next     string    // what becomes of the rollout if it stays so
}

const restGoesOn = "the cluster rolls on by itself"

// hopeless tells whether no waiting mends it.
func (c cause) hopeless() bool {
	return !c.old && (c.code == codeImagePull || c.code == codeCrashLoop || c.code == codeConfig)
}

func (c cause) key() string { return c.code + "\x00" + c.rule }

// ranks are the order of causes: what the pods themselves say comes before what
// somebody wants, and that before what keeps pods from going, being made, placed or
// started. That one runs and is not ready comes last: where there is more, it is why.
var ranks = []string{codeConfig, codeImagePull, codeCrashLoop, codePaused, codeOnDelete, codePartition, codeScaled, codeSilent,
	codeFinalizer, codeOverdue, codeQuota, codeCreateRefused, codeUnschedulable, codeGated, codeNoScheduler, codeNotStarted, codeNotReady}

// standstills are those that say what becomes of the rollout while they last.
var standstills = []string{codeGated, codeNoScheduler, codeNotStarted, codeNotReady}

// heldCodes are those of rollout.holds.
var heldCodes = []string{codePaused, codeOnDelete, codePartition, codeScaled}

func (c cause) rank() int { return slices.Index(ranks, c.code) }

// podCauses reads a pod that is not ready.
func podCauses(p *corev1.Pod) []cause {
	if p.DeletionTimestamp != nil || ready(p) {
		return nil
	}
	resource := "pod/" + p.Namespace + "/" + p.Name
	var list []cause
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated {
			why := bound(c.Message)
			if c.Reason != corev1.PodReasonUnschedulable { // the scheduler failed at it, or it is one of another kind
				why = fmt.Sprintf("%s (%s)", why, cmp.Or(c.Reason, "no reason given"))
			}
			list = append(list, cause{code: codeUnschedulable, resource: resource, rule: "scheduler", since: c.LastTransitionTime.Time,
				detail: fmt.Sprintf("pod %s cannot be placed: %s", p.Name, why)})
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c, is := containerCause(p, s); is {
			c.resource = resource
			list = append(list, c)
		}
	}
	return list
}

// containerCause reads the status of one container.
// https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff and
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy
func containerCause(p *corev1.Pod, s corev1.ContainerStatus) (cause, bool) {
	if w := s.State.Waiting; w != nil {
		switch w.Reason {
		case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
			return cause{code: codeImagePull, rule: "image " + imageOf(p, s),
				detail: fmt.Sprintf("image %s cannot be pulled (%s): %s", imageOf(p, s), w.Reason, bound(w.Message))}, true
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			return cause{code: codeConfig, rule: "container " + s.Name,
				detail: fmt.Sprintf("container %s of pod %s cannot be started (%s): %s", s.Name, p.Name, w.Reason, bound(w.Message))}, true
		case "CrashLoopBackOff":
			return crash(p, s), true
		}
	}
	if s.RestartCount >= slowCrashes && !s.Ready && s.LastTerminationState.Terminated != nil {
		return crash(p, s), true
	}
	return cause{}, false
}

func crash(p *corev1.Pod, s corev1.ContainerStatus) cause {
	c := cause{code: codeCrashLoop, rule: "container " + s.Name,
		detail: fmt.Sprintf("container %s of pod %s crashes, %d restarts", s.Name, p.Name, s.RestartCount)}
	last := s.LastTerminationState.Terminated
	if last == nil {
		last = s.State.Terminated
	}
	if last != nil {
		c.since = last.FinishedAt.Time
		c.detail += fmt.Sprintf("; last it ended with exit code %d (%s)", last.ExitCode, cmp.Or(last.Reason, "no reason given"))
		if last.Message != "" {
			c.detail += ": " + bound(last.Message)
		}
	}
	return c
}

// imageOf is the image as the pod asks for it: a status may carry a digest or
// nothing.
func imageOf(p *corev1.Pod, s corev1.ContainerStatus) string {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name == s.Name {
			return c.Image
		}
	}
	return s.Image
}

// refusedPods reads why a controller could not make pods.
func refusedPods(resource, message string, since time.Time) cause {
	code, rule, detail := cluster.PodsRefused(message)
	return cause{code: code, resource: resource, rule: rule, since: since, detail: detail}
}

// pausedCause says that nothing goes on: a paused Deployment rolls nothing, and its
// controller stops the clock of the progress deadline.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pausing-and-resuming-a-deployment
func pausedCause(r *rollout) cause {
	c := cause{code: codePaused, resource: "deployment/" + r.name(), rule: "spec.paused",
		detail: fmt.Sprintf("the rollout of %s is paused (spec.paused): nothing goes on until somebody resumes it", r.name()),
		rest:   "the cluster rolls on once it is resumed", held: true}
	for _, k := range conditionsOf(r.object) {
		if k.Type == "Progressing" && k.Reason == "DeploymentPaused" {
			c.since = k.LastTransitionTime.Time
		}
	}
	return c
}

// sum joins causes of one kind and rule, in the order in which they count.
func sum(list []cause) []cause {
	var out []cause
	for _, c := range list {
		i := slices.IndexFunc(out, func(o cause) bool { return o.key() == c.key() })
		if i < 0 {
			c.pods = 1
			out = append(out, c)
			continue
		}
		out[i].pods++
		if !c.since.IsZero() && (out[i].since.IsZero() || c.since.Before(out[i].since)) {
			out[i].since = c.since
		}
	}
	for i, c := range out {
		if c.pods > 1 {
			out[i].detail += fmt.Sprintf(" (%d pods)", c.pods)
		}
	}
	slices.SortStableFunc(out, func(a, b cause) int { return cmp.Compare(a.rank(), b.rank()) })
	return out
}

// ready tells whether the pod is ready.
func ready(p *corev1.Pod) bool {
	c := condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// bound makes one short line of a message from outside.
func bound(s string) string { return cluster.Bound(s) }
