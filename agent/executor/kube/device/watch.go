package device

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/opsplane/opsplane/agent/executor/kube/follow"
)

// seenPod is a pod as it is, or as it was last when it is gone.
type seenPod struct {
	pod  *corev1.Pod
	gone bool
}

// watched are the pods of a Job, and those of them that went.
type watched struct{ *follow.Feed[*corev1.Pod] }

// watch follows a Job's pods until ctx ends.
func (e *devices) watch(ctx context.Context, job string) watched {
	f := follow.New(follow.Of("the pods of job "+job, e.c.Read, e.c.Client.CoreV1().Pods(e.c.Namespace),
		metav1.ListOptions{LabelSelector: labelJobName + "=" + job}), func(o runtime.Object) (string, *corev1.Pod) { return "", o.(*corev1.Pod) })
	f.Remember = true
	go f.Run(ctx)
	return watched{f}
}

// look returns the pods that were seen, those that are there last, and what is
// closed when that changes.
func (w watched) look() (pods []seenPod, changed <-chan struct{}) {
	there, gone, changed := w.Seen("")
	for _, p := range gone {
		pods = append(pods, seenPod{p, true})
	}
	for _, p := range there {
		pods = append(pods, seenPod{p, false})
	}
	return pods, changed
}
