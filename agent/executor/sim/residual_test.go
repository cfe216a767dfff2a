package sim

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// endedAt gives the job its plan as it is left when it ended at a step.
func (j *job) endedAt(at string, phase operation.StepPhase) *job {
	j.TargetID = "tgt_1"
	j.Steps = nil
	now := operation.StepSucceeded
	for _, name := range j.plan() {
		s := protocol.Step{PlanStep: operation.PlanStep{ID: "stp_" + name, Name: name, Resources: []string{"res_1"}, Required: true}, Phase: now}
		if name == at {
			s.Phase, now = phase, operation.StepSkipped
		}
		j.Steps = append(j.Steps, s)
	}
	return j
}

// TestWhatIsLeftBehind: what an operation leaves is told by step and resource of
// its plan, and nothing is claimed beside it that it doubts.
func TestWhatIsLeftBehind(t *testing.T) {
	t.Parallel()
	gpu := func(node string, index int) func(t *testing.T, r *rig) *job {
		return func(t *testing.T, r *rig) *job {
			d := r.gpu(t, node, index)
			return newJob("op_gpu", "device.reset", "device:"+d.UID, d.UID, `{}`)
		}
	}
	drain := func(node string) func(t *testing.T, r *rig) *job {
		return func(t *testing.T, r *rig) *job {
			return newJob("op_drain", "node.drain", "node:"+node, r.node(t, node).UID, `{}`)
		}
	}
	tests := map[string]struct {
		job    func(t *testing.T, r *rig) *job
		phase  operation.StepPhase // of the step that it ended at
		left   []string            // step: part of the detail
		denied string              // what Verified must not say
		action string
	}{
		"pods not evicted": {drain("blocked-pdb"), operation.StepFailed, []string{"cordon: left cordoned", "evict: pod zoo/"}, "0 planned",
			"raise the budget of PDB zoo/blocked-pdb or add replicas, then drain again"},
		"pods stopping":    {drain("slow-pod"), operation.StepFailed, []string{"cordon: left cordoned", "wait: pod zoo/slow-0"}, "0 planned", "later deadline"},
		"finalizer":        {drain("stuck-finalizer"), operation.StepFailed, []string{"cordon: left cordoned", "wait: zoo.example.com/hold"}, "0 planned", "remove the finalizer zoo.example.com/hold of pod zoo/"},
		"nothing touched":  {drain("two-pdbs"), operation.StepFailed, nil, "planned pods", "leave one disruption budget"},
		"all done":         {drain("plain"), "", nil, "left", ""},
		"GPU unusable":     {gpu("gpus", 7), operation.StepFailed, []string{"verify: unusable"}, "usable", "reboot"},
		"reset unknown":    {gpu("gpu-answers", 1), operation.StepUnknown, nil, "GPU", ""},
		"persistence mode": {gpu("gpus", 2), operation.StepFailed, nil, "reset", "turn persistence mode off, then reset again"},
		"a process":        {gpu("gpus", 1), operation.StepFailed, nil, "reset", "stop the processes that hold the device, then reset again"},
		"a pod":            {gpu("gpu-answers", 0), operation.StepFailed, nil, "reset", "reset with drain, or move the pods away and reset again"},
		"unhealthy": {func(*testing.T, *rig) *job {
			return newJob("op_up", "component.upgrade", "cluster:zoo", "", `{"component":"platform","version":"v2.0.2"}`)
		}, operation.StepFailed, []string{"verify: platform v2.0.2 is not healthy"}, "is healthy", ""},
		"refused version": {func(*testing.T, *rig) *job {
			return newJob("op_up", "component.upgrade", "cluster:zoo", "", `{"component":"operator","version":"v1.3.0"}`)
		}, operation.StepFailed, nil, "v1.3.0", ""},
		"rollout": {func(*testing.T, *rig) *job {
			return newJob("op_roll", "deployment.roll", "deployment:zoo/stuck", "", `{}`)
		}, operation.StepFailed, []string{"wait: the rollout is incomplete"}, "rolled out", "roll again"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := open(t, "zoo", t.TempDir())
				j := tc.job(t, r)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				at, o := r.run(ctx, j)
				if !strings.Contains(o.ActionText, tc.action) || o.ActionText != "" && o.ActionText == o.Detail {
					t.Errorf("ended at %s with %+v", at, o)
				}
				end := r.Observe(t.Context(), &j.endedAt(at, tc.phase).Assignment)
				if len(end.Residual) != len(tc.left) {
					t.Fatalf("left behind: %+v", end.Residual)
				}
				for _, want := range tc.left {
					step, part, _ := strings.Cut(want, ": ")
					if !slices.ContainsFunc(end.Residual, func(x operation.Residual) bool {
						return x.Step == step && x.StepID == "stp_"+step && x.Resource == "res_1" && strings.Contains(x.Detail, part)
					}) {
						t.Errorf("%q is not among %+v", want, end.Residual)
					}
				}
				if said := strings.Join(end.Verified, "; "); strings.Contains(said, tc.denied) || strings.Contains(end.Message, "0 of 0") {
					t.Errorf("verified: %s; message: %s", said, end.Message)
				}
			})
		})
	}
}

// TestForcedIsNoted: a removal against a rule is in the journal, once a pod.
func TestForcedIsNoted(t *testing.T) {
	t.Parallel()
	for node, want := range map[string]string{
		"blocked-pdb": "PDB zoo/blocked-pdb allows 0 disruptions", "two-pdbs": "zoo/twice-a and zoo/twice-b",
		"slow-pod": "stopping for", "unmanaged-pod": "force: true", "plain": "",
	} {
		t.Run(node, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := open(t, "zoo", t.TempDir())
				j := newJob("op_force", "node.drain", "node:"+node, r.node(t, node).UID, `{"force":true,"on_deadline":"force","force_window_seconds":10}`)
				j.remaining = 11 * time.Second
				details := map[string]string{}
				for _, step := range j.plan() {
					o := r.Execute(t.Context(), j.task(step))
					if o.Class != operation.OutcomeDone {
						t.Fatalf("%s: %+v", step, o)
					}
					details[step] = o.Detail
				}
				var notes []string
				for _, n := range j.notes {
					if strings.HasPrefix(n, "forced: pod zoo/") {
						notes = append(notes, n)
					}
				}
				said := strings.Contains(details["evict"]+details["wait"], "1 forced")
				ended := strings.Contains(r.Observe(t.Context(), &j.Assignment).Message, "1 forced")
				if want == "" {
					if len(notes) > 0 || said || ended {
						t.Errorf("notes %q, details %v", notes, details)
					}
					return
				}
				if len(notes) != 1 || !strings.Contains(notes[0], want) || !said || !ended {
					t.Errorf("notes %q, details %v, ended %v", notes, details, ended)
				}
			})
		})
	}
}

// TestProbeNamesWhatHolds: after a crash the first word on what holds a drain up
// is the probe's.
func TestProbeNamesWhatHolds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		for node, want := range map[string]string{
			"blocked-pdb": "PDB zoo/blocked-pdb allows 0 disruptions", "stuck-finalizer": "its finalizer zoo.example.com/hold", "two-pdbs": "zoo/twice-a",
		} {
			j := newJob("op_"+node, "node.drain", "node:"+node, r.node(t, node).UID, `{"on_deadline":"force"}`)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, _ = r.run(ctx, j)
			cancel()
			var f executor.Finding
			for _, step := range []string{"evict", "wait"} {
				if f = r.Probe(t.Context(), j.generation(2).task(step)); f.Phase == operation.StepPending {
					break
				}
			}
			if f.Phase != operation.StepPending || !strings.Contains(f.Detail, "pod zoo/") || !strings.Contains(f.Detail, want) {
				t.Errorf("%s was probed as %+v", node, f)
			}
		}
	})
}
