package component

import (
	"context"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestForgottenComponent: an upgrade that was begun is seen to its end by an agent
// whose configuration names the component no longer, such as the next version of the
// agent itself.
func TestForgottenComponent(t *testing.T) {
	t.Parallel()
	done := answer.Answer{Detail: "went to version 1.1.0", Own: &answer.Release{Revision: 2, Status: "deployed"}}
	for name, tt := range map[string]struct {
		says    answer.Answer
		how     string // of the Job that was made; "none": there is none
		finds   operation.StepPhase
		code    string // that the probe gives
		outcome string // of the step, where it is carried out; its code
	}{
		"none was begun":     {how: "none", finds: operation.StepPending, outcome: "component_not_found"},
		"it is under way":    {how: "running", finds: operation.StepPending, outcome: "answer_lost"}, // its time runs out
		"it came through":    {says: done, finds: operation.StepSucceeded, outcome: ""},
		"it failed":          {says: answer.Answer{Code: answer.UpgradeFailed, Detail: "no"}, finds: operation.StepFailed, code: answer.UpgradeFailed, outcome: answer.UpgradeFailed},
		"its answer is lost": {how: "mute", finds: operation.StepUnknown, code: "component_not_found", outcome: "component_not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			if tt.how != "none" {
				s.put(t, s.assignment(1), upgradeOf, tt.says, tt.how)
			}
			s.config.Components = map[string]Component{"another": {}}
			s.reply = func(j *batchv1.Job) (answer.Answer, string) {
				t.Errorf("Job %s was made", j.Name)
				return answer.Answer{}, ""
			}
			if f := s.probe(t.Context(), s.task(2, 1)); f.Phase != tt.finds || f.ErrorCode != tt.code {
				t.Errorf("the probe finds %+v", f)
			}
			ctx, end := context.WithCancel(t.Context())
			defer end()
			task := s.task(2, 1)
			task.Progress = func(int, int, string, string) { end() }
			if o := s.upgrade(ctx, task); o.ErrorCode != tt.outcome {
				t.Errorf("the step: %+v", o)
			}
			a := s.assignment(2)
			a.Steps = []protocol.Step{{PlanStep: operation.PlanStep{ID: "stp_1", Name: "upgrade"}, Phase: operation.StepRunning}}
			var ending executor.Ending
			s.observe(t.Context(), a, &ending)
			if goesOn := tt.how == "running"; goesOn != (len(ending.Residual) == 1) || !strings.Contains(ending.Message, "lets no operation upgrade") {
				t.Errorf("the ending %+v", ending)
			}
		})
	}
}
