package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestDetachedIsRead: that no volume is attached is believed of a read, not of a watch
// that lingers from an earlier drain and may be behind, or is known not to keep up.
func TestDetachedIsRead(t *testing.T) {
	t.Parallel()
	on := func(name, node string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{NodeName: node, Attacher: "csi.example.com"}}
	}
	detached := 3 * time.Second
	for name, c := range map[string]struct {
		attached []*storagev1.VolumeAttachment // as a read shows; the watch shows none
		away     time.Duration                 // the watch does not begin for so long
		blocker  string
		least    time.Duration
	}{
		"the watch is behind":        {attached: []*storagev1.VolumeAttachment{on("v", "n"), on("w", "other")}, blocker: "volume_attached", least: detached},
		"the watch does not keep up": {away: 2 * time.Second, blocker: "api_unavailable", least: 2 * time.Second},
		"none of this node":          {attached: []*storagev1.VolumeAttachment{on("w", "other")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				client := fake.NewClientset(theNode(true))
				for _, a := range c.attached {
					if err := client.Tracker().Add(a); err != nil {
						t.Fatal(err)
					}
				}
				time.AfterFunc(detached, func() { // which the watch does not show either
					_ = client.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "", "v")
				})
				e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
				feed := follow.New(follow.Source{What: "the volume attachments", Read: e.c.Read,
					List: func(context.Context, metav1.ListOptions) ([]runtime.Object, string, error) { return nil, "1", nil },
					Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
						if time.Since(begun) < c.away {
							return nil, errors.New("connection refused")
						}
						return watch.NewFake(), nil
					}}, takeAttachment)
				e.attachments.Open = func() *follow.Feed[*storagev1.VolumeAttachment] { return feed }
				e.attachments.Acquire() // an earlier drain
				e.attachments.Release()
				synctest.Wait()
				var told []protocol.Blocker
				task := stuckTask(lease("op_1"), &told)
				all := map[string]bool{}
				task.Blocked = func(now []protocol.Blocker) {
					for _, b := range now {
						all[b.Code] = true
					}
				}
				o := e.awaitDetach(t.Context(), task, &session{node: theNode(true)}, payload{}, executor.Outcome{Detail: "2 of 2 pods gone"})
				if o.Class != operation.OutcomeDone || !strings.HasSuffix(o.Detail, "volumes detached") {
					t.Errorf("it ended with %+v", o)
				}
				if took := time.Since(begun); took < c.least || took > c.least+heartbeat {
					t.Errorf("it took %s", took)
				}
				if c.blocker != "" && !all[c.blocker] || len(all) > 1 {
					t.Errorf("told %v", all)
				}
				time.Sleep(2 * linger)
			})
		})
	}
}

// The claim of an ephemeral volume is the one that its pod owns: another of its name
// keeps the pod from starting, and its volume is nobody's here.
func TestVolumesOfPods(t *testing.T) {
	t.Parallel()
	pod := aPod("p", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
			{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "foreign", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "none", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}
	})
	claim := func(name, volume string, owners ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, OwnerReferences: owners}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	client := fake.NewClientset(claim("data", "pv-data"), claim("p-own", "pv-own", *metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))), claim("p-foreign", "pv-foreign"))
	e := newDrainer(&cluster.Cluster{Client: client, Now: time.Now}, Options{})
	got, err := e.volumesOf(t.Context(), []*corev1.Pod{pod})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"pv-data": true, "pv-own": true}, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}
