package cluster

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/shared/protocol"
)

// CodeJobRefused is the code of a Job that the cluster does not take.
const CodeJobRefused = "job_refused"

// ForeseeJob tells, for a preview, what stands in the way of making a Job: who refuses it,
// or does not answer. nil: it would be taken, or that cannot be told beforehand. The role
// has the right to make it. Of its pod nothing is told: no controller is asked.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
func (c *Cluster) ForeseeJob(ctx context.Context, job *batchv1.Job) (*protocol.Blocker, error) {
	x := Change{What: "Job in namespace " + job.Namespace, Resource: "namespace/" + job.Namespace, About: "Jobs in namespace " + job.Namespace}
	_, err := c.Patiently(ctx, nil, x, func(ctx context.Context) error {
		_, err := c.create(ctx, job, metav1.DryRunAll)
		return err
	})
	b := protocol.Blocker{Code: CodeJobRefused, Resource: x.Resource, Rule: "admission"}
	switch h, hook := hungBy(err), UncalledBy(err); {
	case err == nil || TakesNoDryRun(err):
		return nil, nil
	case h != nil:
		b = h.Blocker()
		return &b, nil
	case hook != nil:
		b = hook.Blocker(x.Resource)
		return &b, nil
	case apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err), apierrors.IsConflict(err):
	default:
		return nil, err
	}
	if kind, name := DeniedBy(err); kind != "" {
		b.Rule = kind + "/" + name
	} else if code, rule, _ := PodsRefused(err.Error()); code == CodeQuota {
		b.Rule = rule
	}
	b.Detail = fmt.Sprintf("the cluster takes no Job in namespace %s: %s", job.Namespace, Bound(err.Error()))
	return &b, nil
}
