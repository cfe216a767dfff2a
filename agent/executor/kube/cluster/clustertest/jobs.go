package clustertest

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedbatchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
)

// BeforeJobs is a client that calls before ahead of each creation ("create") and rehearsal
// ("rehearse") of a Job; its error is the answer. It may sleep, as that of BeforeNodes may.
// Rehearsals do not reach the client, which would carry them out. nil: nothing is called.
func BeforeJobs(client kubernetes.Interface, before func(ctx context.Context, verb string) error) kubernetes.Interface {
	if before == nil {
		before = func(context.Context, string) error { return nil }
	}
	return jobsClient{client, before}
}

type jobsClient struct {
	kubernetes.Interface
	before func(ctx context.Context, verb string) error
}

func (c jobsClient) BatchV1() typedbatchv1.BatchV1Interface {
	return jobsBatch{c.Interface.BatchV1(), c.before}
}

type jobsBatch struct {
	typedbatchv1.BatchV1Interface
	before func(ctx context.Context, verb string) error
}

func (c jobsBatch) Jobs(namespace string) typedbatchv1.JobInterface {
	return jobs{c.BatchV1Interface.Jobs(namespace), c.before}
}

type jobs struct {
	typedbatchv1.JobInterface
	before func(ctx context.Context, verb string) error
}

func (j jobs) Create(ctx context.Context, job *batchv1.Job, o metav1.CreateOptions) (*batchv1.Job, error) {
	if len(o.DryRun) > 0 {
		return job.DeepCopy(), j.before(ctx, "rehearse")
	}
	if err := j.before(ctx, "create"); err != nil {
		return nil, err
	}
	return j.JobInterface.Create(ctx, job, o)
}
