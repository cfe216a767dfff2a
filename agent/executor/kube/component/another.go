package component

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// another finds what may change the component's release yet and is of another operation, a
// Job or the pod of one that was deleted: an operation can end, and its lock with it, while
// its Job is asked to stop, or while nobody knows what became of it. nil: there is none.
func (u *upgrader) another(ctx context.Context, a *protocol.Assignment, c Component) (*protocol.Blocker, error) {
	s, err := u.list(ctx, cluster.LabelJob+"="+cluster.JobUpgrade+","+labelVerb+"="+answer.Upgrade)
	if err != nil {
		return nil, err
	}
	s.jobs = slices.DeleteFunc(s.jobs, func(j *batchv1.Job) bool {
		return j.Labels[cluster.LabelOperation] == a.Operation || !upgrades(j.Spec.Template.Spec, c)
	})
	s.pods = slices.DeleteFunc(s.pods, func(p *corev1.Pod) bool {
		return p.Labels[cluster.LabelOperation] == a.Operation || !upgrades(p.Spec, c)
	})
	if j := s.busy(answer.Upgrade); j != nil {
		return underWay(j.ObjectMeta, "job", "Job "+j.Name, c), nil
	}
	if p := s.orphan(answer.Upgrade); p != nil {
		return underWay(p.ObjectMeta, "pod", "pod "+p.Name+", whose Job was deleted,", c), nil
	}
	return nil, nil
}

// upgrades tells whether a program is told to change the component's release. What it is
// told is there on the Jobs of every agent, whatever they are labelled with.
func upgrades(spec corev1.PodSpec, c Component) bool {
	for _, container := range spec.Containers {
		told := func(flag, value string) bool {
			i := slices.Index(container.Args, flag)
			return i >= 0 && i+1 < len(container.Args) && container.Args[i+1] == value
		}
		if told(argRelease, c.Release) && told(argNamespace, c.Namespace) {
			return true
		}
	}
	return false
}

// underWay is what changes the component's release as what stands in the way of an upgrade.
func underWay(m metav1.ObjectMeta, kind, what string, c Component) *protocol.Blocker {
	op, since := m.Labels[cluster.LabelOperation], m.CreationTimestamp.UTC()
	return &protocol.Blocker{Code: "in_progress", Resource: kind + "/" + m.Namespace + "/" + m.Name, Rule: "operation/" + op, Since: &since,
		Detail: fmt.Sprintf("%s of operation %s has not ended and may change release %s/%s yet", what, op, c.Namespace, c.Release)}
}

// awaitsAnother keeps a step from beginning beside another operation's Job. nil: there is
// none.
func (u *upgrader) awaitsAnother(ctx context.Context, t *executor.Task, c Component) *executor.Outcome {
	b, err := u.another(ctx, t.Assignment, c)
	if err != nil {
		o := u.unread(t, err)
		return &o
	}
	if b == nil {
		return nil
	}
	tell(t, []protocol.Blocker{*b})
	o := executor.Waiting(b.Code, b.Detail)
	o.After = again
	o.ActionText = fmt.Sprintf("wait until %s and its pod have ended, or delete it if its pod cannot start", b.Resource) + operation.ThenRetry
	return &o
}
