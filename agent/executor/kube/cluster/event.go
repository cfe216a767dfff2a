package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
)

const (
	eventTimeout = 2 * time.Second
	// maxEventMessage is the API's limit of a note.
	// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
	maxEventMessage = 1024
)

// Event puts a Kubernetes event on an object, naming the operation, for whoever
// looks at the cluster and not at the plane. It is best effort and no effect: the
// journal is the record.
func (c *Cluster) Event(ctx context.Context, t *executor.Task, on corev1.ObjectReference, typ, reason, message string) {
	ctx, cancel := context.WithTimeout(Operation(ctx, t.Assignment), eventTimeout)
	defer cancel()
	now := metav1.NewTime(c.Now())
	message = fmt.Sprintf("%s (operation %s by %s)", message, t.Assignment.Operation, t.Assignment.Actor.ID)
	if len(message) > maxEventMessage {
		message = message[:maxEventMessage]
	}
	name := on.Name
	if len(name) > 200 {
		name = name[:200]
	}
	_, err := c.Client.CoreV1().Events(cmp.Or(on.Namespace, metav1.NamespaceDefault)).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", name, now.UnixNano()), Namespace: cmp.Or(on.Namespace, metav1.NamespaceDefault),
			Labels:      map[string]string{LabelManagedBy: ManagedBy, LabelOperation: t.Assignment.Operation},
			Annotations: map[string]string{AnnotationMark: MarkOf(t).String()},
		},
		InvolvedObject: on, Type: typ, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: ManagedBy}, ReportingController: ManagedBy, ReportingInstance: c.PodName,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil {
		c.Log.Debug("an event was not taken by the cluster", slog.String("operation", t.Assignment.Operation), slog.Any("err", err))
	}
}

// EventRight is what Event needs.
var EventRight = Right{Verb: "create", Resource: "events", Why: "to say on the object which operation touched it"}
