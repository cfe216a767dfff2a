package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/protocol"
)

// awaitDetach waits until the node's volumes are detached, those of pods that stay
// on it apart. The attachments are what the attach-detach controller and the CSI
// drivers go by.
// https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/volume-attachment-v1/
func (e *drainer) awaitDetach(ctx context.Context, t *executor.Task, s *session, p payload, done executor.Outcome) executor.Outcome {
	feed := e.attachments.Acquire()
	defer e.attachments.Release()
	rctx, cancel := e.c.Read(ctx)
	err := feed.Ready(rctx)
	cancel()
	if err != nil {
		return broken(err)
	}
	items, _, err := e.list(ctx, s.node.Name)
	if err != nil {
		return broken(err)
	}
	stay, err := e.volumesOf(ctx, asPods(items))
	if err != nil {
		return broken(err)
	}
	moving := func(a *storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == s.node.Name && (a.Spec.Source.PersistentVolumeName == nil || !stay[*a.Spec.Source.PersistentVolumeName])
	}
	defer e.c.Pulse.Listen()()
	for {
		_, beat := e.c.Pulse.State()
		away, denied := follow.Trouble(e.c.Pulse, feed)
		if denied != nil {
			return broken(denied)
		}
		attached, changed := feed.In(s.node.Name)
		attached = slices.DeleteFunc(attached, func(a *storagev1.VolumeAttachment) bool { return !moving(a) })
		if len(attached) == 0 && away == nil { // by a watch that may be behind: what it shows proves nothing
			if attached, err = e.readAttached(ctx, moving); err != nil {
				return broken(err)
			}
			if len(attached) == 0 {
				t.Blocked(nil)
				return executor.Done(done.Detail + ", volumes detached")
			}
		}
		slices.SortFunc(attached, func(a, b *storagev1.VolumeAttachment) int { return strings.Compare(a.Name, b.Name) })
		list := make([]protocol.Blocker, len(attached))
		for i, a := range attached {
			list[i] = protocol.Blocker{Code: "volume_attached", Resource: "volume/" + volumeOf(a), Rule: "attacher/" + a.Spec.Attacher, Detail: attachedWhy(a)}
		}
		message := fmt.Sprintf("%s, waiting for %d volumes to be detached", done.Detail, len(attached))
		if len(attached) > 0 {
			message += ": " + attachedWhy(attached[0])
		}
		code := "volume_attached"
		if away != nil {
			code, message = cluster.CodeUnavailable, done.Detail+"; "+away.Error()
			list = slices.Insert(list, 0, away.Blocker())
		}
		t.Blocked(ahead(t, payload{}, list))
		t.Progress(0, len(attached), "volumes", message)
		timer := time.NewTimer(heartbeat)
		select {
		case <-changed:
		case <-beat:
		case <-timer.C:
		case <-ctx.Done():
		case <-t.Cancelled:
		}
		timer.Stop()
		if h := executor.Halted(ctx, t); h != "" {
			if h == "interrupted" {
				h = code
			}
			return executor.Waiting(h, message)
		}
	}
}

// readAttached reads the attachments anew, and returns those that is picks.
func (e *drainer) readAttached(ctx context.Context, is func(a *storagev1.VolumeAttachment) bool) ([]*storagev1.VolumeAttachment, error) {
	items, _, err := attachmentSource(e.c).Once(ctx)
	if err != nil {
		return nil, err
	}
	var list []*storagev1.VolumeAttachment
	for _, o := range items {
		if _, a := takeAttachment(o); is(a) {
			list = append(list, a)
		}
	}
	return list, nil
}

func volumeOf(a *storagev1.VolumeAttachment) string {
	if v := a.Spec.Source.PersistentVolumeName; v != nil {
		return *v
	}
	return a.Name
}

func attachedWhy(a *storagev1.VolumeAttachment) string {
	s := fmt.Sprintf("volume %s is attached to node %s by %s", volumeOf(a), a.Spec.NodeName, a.Spec.Attacher)
	if a.DeletionTimestamp != nil {
		s += ", its detachment was asked for at " + a.DeletionTimestamp.UTC().Format(time.RFC3339)
	}
	if a.Status.DetachError != nil && a.Status.DetachError.Message != "" {
		s += " and failed: " + a.Status.DetachError.Message
	}
	return s
}

// volumesOf finds the persistent volumes that pods on the node claim.
func (e *drainer) volumesOf(ctx context.Context, pods []*corev1.Pod) (map[string]bool, error) {
	volumes := map[string]bool{}
	for _, pod := range pods {
		if isFinished(pod) {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			claim := ""
			switch {
			case v.PersistentVolumeClaim != nil:
				claim = v.PersistentVolumeClaim.ClaimName
			case v.Ephemeral != nil: // its claim is named after pod and volume
				claim = pod.Name + "-" + v.Name
			default:
				continue
			}
			rctx, cancel := e.c.Read(ctx)
			c, err := e.c.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(rctx, claim, metav1.GetOptions{})
			cancel()
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read claim %s/%s: %w", pod.Namespace, claim, err)
			}
			if v.Ephemeral != nil && !metav1.IsControlledBy(c, pod) {
				continue // it has the name and is somebody else's
			}
			volumes[c.Spec.VolumeName] = true
		}
	}
	return volumes, nil
}
