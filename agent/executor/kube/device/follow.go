package device

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// seenPod is a pod as it is, or as it was last when it is gone.
type seenPod struct {
	pod  *corev1.Pod
	gone bool
}

const (
	followAgain = 250 * time.Millisecond
	followMost  = 5 * time.Second
	// watchSeconds ends a watch that says nothing: one whose connection died
	// without a word is begun anew by then.
	watchSeconds = 60
)

// follow tells of the pods that o selects, first of those that are there and then
// of each change, until ctx ends. A watch that breaks is begun anew from a list;
// pods that went meanwhile are told as gone. An error of a list is told on failed
// and tried again.
func (e *devices) follow(ctx context.Context, namespace string, o metav1.ListOptions) (<-chan seenPod, <-chan error) {
	out, failed := make(chan seenPod), make(chan error, 1)
	go func() {
		defer close(out)
		known := map[string]*corev1.Pod{}
		tell := func(s seenPod) bool {
			if s.gone {
				delete(known, string(s.pod.UID))
			} else {
				known[string(s.pod.UID)] = s.pod
			}
			select {
			case out <- s:
				return true
			case <-ctx.Done():
				return false
			}
		}
		wait := followAgain
		for ctx.Err() == nil {
			version, err := e.listed(ctx, namespace, o, known, tell)
			if err == nil {
				wait = followAgain
				err = e.watched(ctx, namespace, o, version, tell)
			}
			if err == nil {
				continue
			}
			select {
			case failed <- err:
			default:
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			wait = min(2*wait, followMost)
		}
	}()
	return out, failed
}

func (e *devices) listed(ctx context.Context, namespace string, o metav1.ListOptions, known map[string]*corev1.Pod, tell func(seenPod) bool) (string, error) {
	read, cancel := e.c.Read(ctx)
	defer cancel()
	list, err := e.c.Client.CoreV1().Pods(namespace).List(read, o)
	if err != nil {
		return "", err
	}
	there := map[string]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		there[string(p.UID)] = true
		if !tell(seenPod{pod: p}) {
			return "", ctx.Err()
		}
	}
	for uid, p := range known {
		if !there[uid] && !tell(seenPod{pod: p, gone: true}) {
			return "", ctx.Err()
		}
	}
	return list.ResourceVersion, nil
}

func (e *devices) watched(ctx context.Context, namespace string, o metav1.ListOptions, version string, tell func(seenPod) bool) error {
	seconds := int64(watchSeconds)
	o.ResourceVersion, o.TimeoutSeconds = version, &seconds
	w, err := e.c.Client.CoreV1().Pods(namespace).Watch(ctx, o)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ev, ok := <-w.ResultChan():
			if !ok || ev.Type == watch.Error {
				return nil // too old, or over: list again
			}
			if p, is := ev.Object.(*corev1.Pod); is && !tell(seenPod{pod: p, gone: ev.Type == watch.Deleted}) {
				return ctx.Err()
			}
		}
	}
}
