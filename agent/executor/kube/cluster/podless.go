package cluster

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/opsplane/opsplane/shared/protocol"
)

// FailedCreate is the reason of the event by which the Job controller says why it could
// not make a pod.
const FailedCreate = "FailedCreate"

// Podless reads why a Job's controller makes no pod; nil: it does not say, or it cannot
// be read.
func (c *Cluster) Podless(ctx context.Context, job *batchv1.Job) *protocol.Blocker {
	read, cancel := c.Read(ctx)
	defer cancel()
	list, err := c.Client.CoreV1().Events(job.Namespace).List(read, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Job", "involvedObject.name": job.Name, "reason": FailedCreate}.String()})
	if err != nil { // that there is no pod is told without
		return nil
	}
	var last *corev1.Event
	for i := range list.Items {
		ev := &list.Items[i]
		if ev.Reason == FailedCreate && ev.InvolvedObject.UID == job.UID && (last == nil || at(ev).After(at(last))) {
			last = ev
		}
	}
	if last == nil {
		return nil
	}
	b := protocol.Blocker{Resource: "job/" + job.Namespace + "/" + job.Name}
	b.Code, b.Rule, b.Detail = PodsRefused(last.Message)
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
