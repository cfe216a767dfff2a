package cluster

import (
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
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
