package device

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// terminated is how the container ended; nil: it has not, or never ran.
func terminated(p *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.Name == container && s.State.Terminated != nil && s.State.Terminated.Reason != "ContainerStatusUnknown" {
			return s.State.Terminated
		}
	}
	return nil
}

// started tells whether the container was started, or nobody can say.
func started(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil || s.ContainerID != "" {
			return true
		}
	}
	return p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodUnknown
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// failureCode is the code of a pod that ended without its container's word.
func failureCode(p *corev1.Pod) string {
	switch r := p.Status.Reason; {
	case r == "Evicted" || r == "Preempting" || r == "Terminated" || r == "NodeShutdown":
		return "job_evicted"
	case r == "DeadlineExceeded":
		return "job_late"
	case strings.HasPrefix(r, "OutOf") || r == "UnexpectedAdmissionError" || r == "NodeAffinity":
		return "unschedulable"
	case r == "NodeLost":
		return codeUnreachable
	}
	return "job_failed"
}

// stuck tells what keeps a pod from starting. final: it will not end by itself.
// https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
func stuck(p *corev1.Pod) (code, why string, final bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "unschedulable", fmt.Sprintf("pod %s is not placed: %s", p.Name, c.Message), false
		}
	}
	for i := range p.Status.ContainerStatuses {
		w := p.Status.ContainerStatuses[i].State.Waiting
		if w == nil {
			continue
		}
		why := fmt.Sprintf("pod %s cannot start: %s: %s", p.Name, w.Reason, w.Message)
		switch w.Reason {
		case "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable": // the kubelet tries again
			return "image_pull_failed", why, false
		case "InvalidImageName", "ErrImageNeverPull":
			return "image_pull_failed", why, true
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError":
			return "config_error", why, true
		}
	}
	return "", "", false
}
