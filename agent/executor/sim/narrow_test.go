package sim

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
)

// TestDrainOfOneDevice: only the pods on it go; the node is cordoned all the same,
// and a device that the node has not is refused before anything is touched.
func TestDrainOfOneDevice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		held := -1
		for i := range 5 {
			if len(r.gpu(t, "gpu-answers", i).Pods) > 0 {
				held = i
			}
		}
		if held < 0 {
			t.Fatal("no GPU is held by a pod")
		}
		drain := func(op, device string) (string, string) {
			j := newJob(op, "node.drain", "node:gpu-answers", "", `{"device":"`+device+`"}`)
			step, o := r.run(t.Context(), j)
			return step + " " + o.Class + " " + o.ErrorCode, strings.Join(j.commands, "; ")
		}
		if got, did := drain("op_none", "GPU-none"); got != "preflight permanent device_gone" || did != "" {
			t.Errorf("a device that is not there: %s, did %q", got, did)
		}
		free := r.gpu(t, "gpu-answers", (held+1)%5)
		if got, did := drain("op_free", strings.ToUpper(free.UID)); got != " done " || did != "cordon gpu-answers" {
			t.Errorf("a free device: %s, did %q", got, did)
		}
		if got, did := drain("op_held", r.gpu(t, "gpu-answers", held).Aliases[0]); got != " done " || did != "evict zoo/holder-0" {
			t.Errorf("the held device: %s, did %q", got, did)
		}
	})
}

// TestUndo takes a rollout that failed back, once, and touches none that is over.
func TestUndo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		j := newJob("op_undo", "deployment.roll", "deployment:zoo/progress-deadline", "", `{"undo":"on_failure"}`)
		if step, o := r.run(t.Context(), j); step != "wait" || o.ErrorCode != "progress_deadline_exceeded" {
			t.Fatalf("ended at %q with %+v", step, o)
		}
		for range 2 {
			if o := r.Execute(t.Context(), j.task("undo")); o.Class != operation.OutcomeDone || o.Nothing {
				t.Fatalf("undo: %+v", o)
			}
		}
		if f := r.Probe(t.Context(), j.task("undo")); f.Phase != operation.StepSucceeded || f.Nothing {
			t.Errorf("undo probed: %+v", f)
		}
		n := 0
		for _, e := range r.effects(t) {
			if e.What == DidUndo && e.Accepted {
				n++
			}
		}
		d, err := r.readDeployment(j.task("undo"))
		if err != nil || d.Template != 1 || d.Updated != d.Desired || d.Roll != nil || n != 1 {
			t.Errorf("%+v, %v, undone %d times", d, err, n)
		}
		fine := newJob("op_fine", "deployment.roll", "deployment:zoo/fine", "", `{"undo":"on_failure"}`)
		if step, o := r.run(t.Context(), fine); step != "" {
			t.Fatalf("ended at %q with %+v", step, o)
		}
		if f := r.Probe(t.Context(), fine.task("undo")); f.Phase != operation.StepSucceeded || !f.Nothing {
			t.Errorf("undo of a rollout that is over, probed: %+v", f)
		}
		if o := r.Execute(t.Context(), fine.task("undo")); o.Class != operation.OutcomeDone || !o.Nothing || !strings.Contains(o.Detail, "no rollout") {
			t.Errorf("undo of a rollout that is over: %+v", o)
		}
	})
}

// TestHindrancesAreTold: which pod, which rule, and what becomes of it.
func TestHindrancesAreTold(t *testing.T) {
	for node, want := range map[string]string{
		"blocked-pdb":     "pdb pod/zoo/blocked-",
		"stuck-finalizer": "finalizer pod/zoo/held-0 zoo.example.com/hold",
		"slow-pod":        "terminating pod/zoo/slow-0",
		"unreachable":     "node_unreachable pod/zoo/unseen-0",
	} {
		t.Run(node, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := open(t, "zoo", t.TempDir())
				j := newJob("op_"+node, "node.drain", "node:"+node, "", `{}`)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, _ = r.run(ctx, j)
				j.mu.Lock()
				defer j.mu.Unlock()
				if len(j.blocked) != 1 {
					t.Fatalf("told %+v", j.blocked)
				}
				b := j.blocked[0]
				if got := strings.TrimSpace(b.Code + " " + b.Resource + " " + b.Rule); !strings.HasPrefix(got, want) || !strings.Contains(b.Detail, "at its deadline") {
					t.Errorf("told %+v, want %s", b, want)
				}
			})
		})
	}
}

// TestRollThatRestartedNothing claims no replicas that are updated.
func TestRollThatRestartedNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := open(t, "zoo", t.TempDir())
		end := r.Observe(t.Context(), &newJob("op_refused", "deployment.roll", "deployment:zoo/fine", "", `{}`).Assignment)
		if len(end.Verified) > 0 || !strings.Contains(end.Message, "zoo/fine does not carry a restart of this operation") || len(end.Observed.Deployments) != 1 {
			t.Errorf("%q, verified %q", end.Message, end.Verified)
		}
	})
}
