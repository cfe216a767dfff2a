package device

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// failedCreate is the reason of the event by which the Job controller says why it could
// not make a pod.
const failedCreate = "FailedCreate"

// podless reads beside the wait why the Job's controller makes no pod; nil: it does not
// say, or it cannot be read.
func (w *waiting) podless(ctx context.Context) <-chan *protocol.Blocker {
	said := make(chan *protocol.Blocker, 1)
	go func() { said <- w.e.podless(ctx, w.job) }()
	return said
}

func (e *devices) podless(ctx context.Context, job *batchv1.Job) *protocol.Blocker {
	read, cancel := e.c.Read(ctx)
	defer cancel()
	list, err := e.c.Client.CoreV1().Events(job.Namespace).List(read, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Job", "involvedObject.name": job.Name, "reason": failedCreate}.String()})
	if err != nil { // that there is no pod is told without
		return nil
	}
	var last *corev1.Event
	for i := range list.Items {
		ev := &list.Items[i]
		if ev.Reason == failedCreate && ev.InvolvedObject.UID == job.UID && (last == nil || at(ev).After(at(last))) {
			last = ev
		}
	}
	if last == nil {
		return nil
	}
	b := protocol.Blocker{Resource: "job/" + job.Namespace + "/" + job.Name}
	b.Code, b.Rule, b.Detail = cluster.PodsRefused(last.Message)
	b.Detail = "job " + job.Name + " has no pod: " + b.Detail
	if since := last.FirstTimestamp.UTC(); !since.IsZero() {
		b.Since = &since
	}
	return &b
}

// at is when an event was seen last.
func at(e *corev1.Event) time.Time {
	if e.LastTimestamp.IsZero() {
		return e.EventTime.Time
	}
	return e.LastTimestamp.Time
}

// refused takes down why there is no pod, unless one has come.
func (w *waiting) refused(b *protocol.Blocker) {
	if b == nil || w.last.pod != nil || w.deaf {
		return
	}
	w.named = true
	w.show(*b)
}
