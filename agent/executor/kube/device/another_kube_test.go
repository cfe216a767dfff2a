//go:build kubetest

package device

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/kuberig"
	"github.com/opsplane/opsplane/shared/operation"
)

// TestResetsOneAfterTheOther: an agent dies once the Job of its reset is made, and the
// Job's pod does not start. The reset of the next operation, which a person has said may
// go on, waits for that Job, and comes after it.
func TestResetsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	b := setup(t, benchOptions{})
	first, _ := b.task("reset", "op_dead", 1, 1, `{}`, nil)
	stop, outcome := b.begin(first)
	b.jobPod(report.VerbReset)
	stop()
	want(t, <-outcome, operation.OutcomeAmbiguous, "answer_lost")

	for _, step := range []string{"preflight", "reset"} {
		o, tell := b.run(step, "op_next", 1, 2, `{}`)
		want(t, o, operation.OutcomeWaiting, report.CodeInProgress)
		if len(tell.blockers) != 1 || tell.blockers[0][0].Rule != "operation/op_dead" {
			t.Errorf("%s: blockers %+v", step, tell.blockers)
		}
	}
	jobs, err := b.r.Client(kuberig.Admin).BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(jobs.Items) != 1 || b.resets() != 0 {
		t.Fatalf("%d jobs, %d resets: %v", len(jobs.Items), b.resets(), err)
	}

	b.startKubelet()
	var o executor.Outcome
	for end := time.Now().Add(time.Minute); ; { // as the loop does: in one attempt
		if o, _ = b.run("reset", "op_next", 1, 2, `{}`); o.Class != operation.OutcomeWaiting || time.Now().After(end) {
			break
		}
		if n := b.resets(); n > 1 {
			t.Fatalf("%d resets while the next one waits", n)
		}
		time.Sleep(o.After)
	}
	want(t, o, operation.OutcomeDone, "")
	if n := b.resets(); n != 2 {
		t.Errorf("%d resets", n)
	}
	if f := b.probe("reset", "op_dead", 1, 3); f.Phase != operation.StepSucceeded {
		t.Errorf("the first: %+v", f)
	}
}
