package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
)

const (
	eventTimeout = 2 * time.Second
	// maxEventMessage is the API's limit of a note.
	// https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
	maxEventMessage = 1024
	// maxEventName leaves room for the time in the 253 bytes of a name.
	maxEventName = 200
)

// Event puts a Kubernetes event on an object, naming the operation, for whoever
// looks at the cluster and not at the plane. It is best effort and no effect: the
// journal is the record.
func (c *Cluster) Event(ctx context.Context, t *executor.Task, on corev1.ObjectReference, typ, reason, message string) {
	ctx, cancel := context.WithTimeout(Operation(ctx, t.Assignment), eventTimeout)
	defer cancel()
	now := metav1.NewTime(c.Now())
	by := fmt.Sprintf(" (operation %s by %s)", t.Assignment.Operation, t.Assignment.Actor.ID)
	message = cut(cut(message, max(0, maxEventMessage-len(by)))+by, maxEventMessage)
	name := strings.TrimRight(cut(on.Name, maxEventName), ".-") // a dot follows, which goes after neither
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
	c.eventAnswered(ctx, err)
}

// eventAnswered keeps whether the agent's role lets it put events on objects, and
// tells in the log when that turns: nothing else would, since no operation fails of
// it. A 403 of admission is about one event.
func (c *Cluster) eventAnswered(ctx context.Context, err error) {
	denied := ""
	if err != nil {
		if !apierrors.IsForbidden(err) {
			return
		}
		if has, unknown := c.Allowed(ctx, EventRight.Attributes()); has || unknown != nil {
			return
		}
		denied = fmt.Sprintf("the agent's role lacks the right to %s, which it needs %s", EventRight, EventRight.Why)
	}
	c.mu.Lock()
	was := c.noEvents
	c.noEvents = denied
	c.mu.Unlock()
	switch {
	case denied != "" && was == "":
		c.Log.Error("the agent's role lacks a right; no object says which operation touched it", slog.String("right", EventRight.String()), slog.Any("err", err))
	case denied == "" && was != "":
		c.Log.Info("events on objects are taken again")
	}
}

// Lacks names the rights without which operations go on and something is left out;
// "": none is known to be missing. It is known from the first time that it was needed.
func (c *Cluster) Lacks() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noEvents
}

// cut bounds a text to n bytes of whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// EventRight is what Event needs.
var EventRight = Right{Verb: "create", Resource: "events", Why: "to say on the object which operation touched it"}
