package device

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// TestResolve: pods that ended are no holders, and one that stops is waited for,
// whatever it is.
func TestResolve(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	ended, bare, stopping := worker("ended"), worker("bare"), worker("stopping")
	ended.Status.Phase, ended.OwnerReferences = corev1.PodFailed, nil
	bare.OwnerReferences = nil
	stopping.OwnerReferences, stopping.DeletionTimestamp = nil, &now
	e, _, _ := fakes(t, ended, bare, stopping)
	for name, c := range map[string]struct {
		pod              *corev1.Pod
		never            string
		pods, lost, uids int
	}{
		"ended": {ended, "", 0, 1, 0}, "bare": {bare, "unmanaged_pod", 0, 0, 1}, "stopping": {stopping, "", 1, 0, 1},
	} {
		h, err := e.resolve(t.Context(), target{fakeUUID, fakeNode}, &report.Answer{Device: &report.Device{UUID: fakeUUID,
			Holders: []report.Holder{{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{UID: string(c.pod.UID)}}}}})
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := h.never(); code != c.never || len(h.pods) != c.pods || h.lost != c.lost || len(h.uids) != c.uids {
			t.Errorf("%s: %s, %d pods, %d lost, %d uids", name, code, len(h.pods), h.lost, len(h.uids))
		}
	}
}
