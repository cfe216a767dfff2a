//go:build kubetest

package device

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestProbeOfASlowNode: the host answers later than a probe lasts. However many
// leases ask, it is asked once, and the one that comes after the answer has it.
func TestProbeOfASlowNode(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{})
	const op = "op_slow"
	jobs := func() int {
		list, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{LabelSelector: labelVerb + "=" + report.VerbMark})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	for generation := range int64(3) {
		task, _ := b.task("reset", op, 1, generation+1, `{}`, func() error { return executor.ErrFenced })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		f := b.typ.Steps["reset"].Probe(ctx, task)
		cancel()
		if n := jobs(); f.Phase != operation.StepUnknown || n != 1 {
			t.Errorf("generation %d found %+v, and %d jobs ask", generation+1, f, n)
		}
	}
	b.startKubelet()
	b.jobPod(report.VerbMark)
	for generation := int64(4); ; generation++ {
		f := b.probe("reset", op, 1, generation)
		if f.Phase == operation.StepUnknown && generation < 10 { // a busy machine
			continue
		}
		if n := jobs(); f.Phase != operation.StepPending || n != 1 {
			t.Errorf("generation %d found %+v, and %d jobs ask", generation, f, n)
		}
		return
	}
}
