package cluster

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// TestEventIsTaken: whatever the object's name and the message, the API server has
// nothing to refuse, and the operation is named.
func TestEventIsTaken(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ object, message string }{
		"short":                         {"gpu-1", "Cordoned"},
		"a long message":                {"gpu-1", strings.Repeat("x", 2_000)},
		"cut inside a character":        {"gpu-1", strings.Repeat("é", 2_000)},
		"and at another byte":           {"gpu-1", "x" + strings.Repeat("é", 2_000)},
		"a long name":                   {strings.Repeat("a", 253), ""},
		"a long name, cut after a dot":  {strings.Repeat("a", 199) + "." + strings.Repeat("b", 50), ""},
		"a long name, cut after a dash": {strings.Repeat("a", 198) + "--" + strings.Repeat("b", 50), ""},
	} {
		client := fake.NewClientset()
		c := &Cluster{Client: client, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
		c.Event(t.Context(), task(&record{}), corev1.ObjectReference{Kind: "Node", Name: tt.object}, corev1.EventTypeNormal, "OpsplaneTest", tt.message)
		list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%s: %v, %d events", name, err, len(list.Items))
		}
		e := list.Items[0]
		if bad := validation.IsDNS1123Subdomain(e.Name); len(bad) > 0 {
			t.Errorf("%s: name %q: %v", name, e.Name, bad)
		}
		if len(e.Message) > maxEventMessage || !utf8.ValidString(e.Message) || !strings.Contains(e.Message, "(operation op_1 by ") {
			t.Errorf("%s: message of %d bytes, ends with %q", name, len(e.Message), e.Message[max(0, len(e.Message)-40):])
		}
	}
}

// No operation fails for want of the right to create events: it is told once in the
// log, and by Lacks as long as it is missing.
func TestMissingEventRightIsTold(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	var answer error
	granted := false
	client.PrependReactor("create", "events", func(ktesting.Action) (bool, runtime.Object, error) { return answer != nil, nil, answer })
	client.PrependReactor("create", "selfsubjectaccessreviews", func(a ktesting.Action) (bool, runtime.Object, error) {
		r := a.(ktesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		asked := r.Spec.ResourceAttributes
		r.Status.Allowed = granted || asked.Verb != "create" || asked.Resource != "events"
		return true, r, nil
	})
	var log bytes.Buffer
	c := &Cluster{Client: client, Now: time.Now, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	forbidden := apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no"))
	for i, step := range []struct {
		answer  error
		granted bool
		lacks   string
		lines   int // of the log, in all
	}{
		{nil, true, "", 0},
		{forbidden, true, "", 0}, // by admission
		{errors.New("connection refused"), false, "", 0},
		{forbidden, false, "lacks the right to create events", 1},
		{forbidden, false, "lacks the right to create events", 1},
		{errors.New("connection refused"), false, "lacks the right to create events", 1},
		{nil, true, "", 2},
		{forbidden, false, "lacks the right to create events", 3},
	} {
		answer, granted = step.answer, step.granted
		c.Event(t.Context(), task(&record{}), corev1.ObjectReference{Kind: "Node", Name: "gpu-1"}, corev1.EventTypeNormal, "OpsplaneTest", "")
		if got := c.Lacks(); (got == "") != (step.lacks == "") || !strings.Contains(got, step.lacks) {
			t.Errorf("event %d: lacks %q", i, got)
		}
		if got := strings.Count(log.String(), "\n"); got != step.lines {
			t.Errorf("event %d: %d lines in the log:\n%s", i, got, log.String())
		}
	}
	if !strings.Contains(log.String(), `right="create events"`) {
		t.Errorf("the log does not name the right:\n%s", log.String())
	}
}
