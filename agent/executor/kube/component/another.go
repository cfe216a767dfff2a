package component

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// another finds a Job that may change the component's release yet and is of another
// operation: one can end, and its lock with it, while its Job is asked to stop, or while
// nobody knows what became of it. nil: there is none.
func (u *upgrader) another(ctx context.Context, a *protocol.Assignment, c Component) (*batchv1.Job, error) {
	s, err := u.list(ctx, cluster.LabelJob+"="+cluster.JobUpgrade+","+labelVerb+"="+answer.Upgrade)
	if err != nil {
		return nil, err
	}
	for _, j := range s.jobs {
		if j.Labels[cluster.LabelOperation] != a.Operation && upgrades(j, c) && s.active(j) {
			return j, nil
		}
	}
	return nil, nil
}

// upgrades tells whether a Job's program is told to change the component's release. What
// it is told is there on the Jobs of every agent, whatever they are labelled with.
func upgrades(j *batchv1.Job, c Component) bool {
	for _, container := range j.Spec.Template.Spec.Containers {
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

// underWay is another's Job as what stands in the way of an upgrade.
func underWay(j *batchv1.Job, c Component) protocol.Blocker {
	op, since := j.Labels[cluster.LabelOperation], j.CreationTimestamp.UTC()
	return protocol.Blocker{Code: "in_progress", Resource: "job/" + j.Namespace + "/" + j.Name, Rule: "operation/" + op, Since: &since,
		Detail: fmt.Sprintf("Job %s of operation %s has not ended and may change release %s/%s yet", j.Name, op, c.Namespace, c.Release)}
}

// awaitsAnother keeps a step from beginning beside another operation's Job. nil: there is
// none.
func (u *upgrader) awaitsAnother(ctx context.Context, t *executor.Task, c Component) *executor.Outcome {
	j, err := u.another(ctx, t.Assignment, c)
	if err != nil {
		o := u.unread(t, err)
		return &o
	}
	if j == nil {
		return nil
	}
	b := underWay(j, c)
	tell(t, []protocol.Blocker{b})
	o := executor.Waiting(b.Code, b.Detail)
	o.After = again
	o.ActionText = fmt.Sprintf("wait until Job %s/%s and its pod have ended, or delete it if its pod cannot start", j.Namespace, j.Name) + operation.ThenRetry
	return &o
}
