package deployment

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/protocol"
)

// clearPause is between two tries to delete a pod that was not taken: each is a command
// in the journal.
const clearPause = 5 * time.Second

// clearing is what an undo knows of the broken pods that it deletes.
type clearing struct {
	gone map[types.UID]bool // the deletion was taken
	next time.Time          // when one that was not taken is asked for again; zero: none
	held *protocol.Blocker  // why it was not
}

// wake is when there is something to do: until, or before.
func (c *clearing) wake(until time.Time) time.Time {
	if !c.next.IsZero() && c.next.Before(until) {
		return c.next
	}
	return until
}

// made tells whether the set has as many ready pods as it is to have, where any was
// deleted: until its controller has seen that, its status counts the pod, too.
func (c *clearing) made(s *scene) bool {
	if len(c.gone) == 0 {
		return true
	}
	n := 0
	for _, p := range s.pods {
		if s.owned(p) && ready(p) && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n >= s.desired
}

// clear deletes the restart's broken pods where the controller waits for them to
// get ready before it goes on. A deletion names the pod's UID: it is harmless
// when repeated. One that is not taken is told, and asked for again at a pace: a pod
// that runs and is not ready has the watch say nothing.
func (r *roller) clear(ctx context.Context, t *executor.Task, s *scene, c *clearing) *executor.Outcome {
	if s.kind != statefulSets || !s.ordered || r.Now().Before(c.next) {
		return nil
	}
	had := c.held
	c.next, c.held = time.Time{}, nil
	for _, p := range s.pods {
		if c.gone[p.UID] || !s.owned(p) || !s.renewed(p, cluster.MarkOf(t)) || ready(p) || p.DeletionTimestamp != nil {
			continue
		}
		reply, stop := r.remove(ctx, t, p)
		switch {
		case stop != nil:
			return stop
		case reply.Category == cluster.OK || reply.Category == cluster.Conflict || reply.NotFound():
			c.gone[p.UID] = true
			continue
		}
		b := notRemoved(p, reply)
		if had != nil {
			b.Since = had.Since
		} else {
			b.Since = new(r.Now().UTC())
		}
		c.held, c.next = &b, r.Now().Add(max(reply.RetryAfter, clearPause))
		tell(t, []protocol.Blocker{b})
		return nil // what refused one refuses the others
	}
	if had != nil {
		tell(t, nil)
	}
	return nil
}

// remove deletes one pod. It may take as long as admission does: that the pod is gone a
// little later is as right.
func (r *roller) remove(ctx context.Context, t *executor.Task, p *corev1.Pod) (cluster.Reply, *executor.Outcome) {
	uid := p.UID
	return r.RepeatableWithin(ctx, t, cluster.AdmissionMost, "delete", "pod/"+string(uid), p.Namespace+"/"+p.Name, func(ctx context.Context) error {
		return r.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	})
}

// notRemoved is why a broken pod was not deleted.
func notRemoved(p *corev1.Pod, reply cluster.Reply) protocol.Blocker {
	name := "pod/" + p.Namespace + "/" + p.Name
	if u := cluster.UncalledBy(reply.Err); u != nil {
		return u.Blocker(name)
	}
	b := protocol.Blocker{Code: "api_error", Resource: name, Rule: "api_server"}
	switch kind, by := cluster.DeniedBy(reply.Err); {
	case kind != "":
		b.Code, b.Rule = cluster.CodeAdmission, kind+"/"+by
	case reply.Category == cluster.Throttled:
		b.Code = "throttled"
	}
	b.Detail = fmt.Sprintf("%s, which the restart made and which is not ready, is not deleted yet: %s", name, reply.Err.Error())
	return b
}
