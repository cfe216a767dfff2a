package sim

import (
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/operation"
)

// What a drain says of evictions at its end is what became of them: none to make is
// not the same as none made.
func TestDrainSaysWhatItEvicted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		node, payload string
		message       string
	}{
		"nothing is there":    {"empty", `{}`, "node is cordoned, it had no pods to evict"},
		"refused":             {"two-pdbs", `{}`, "node is schedulable, no pod was evicted: it did not get past its step preflight"},
		"a payload":           {"plain", `{"pod_selector":"!!"}`, "node is schedulable, no pod was evicted: it did not get past its step preflight"},
		"nothing is selected": {"plain", `{"pod_selector":"app=none"}`, "node is cordoned, it had no pods to evict"},
		"all gone":            {"plain", `{}`, "planned pods gone"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := open(t, "zoo", t.TempDir())
				uid := ""
				if tc.node == "empty" {
					if err := r.Mutate(func(w *World) {
						w.Nodes["empty"] = &Node{UID: "empty", Name: "empty", Schedulable: true, Ready: true}
					}); err != nil {
						t.Fatal(err)
					}
				}
				uid = r.node(t, tc.node).UID
				j := newJob("op_says", "node.drain", "node:"+tc.node, uid, tc.payload)
				at, o := r.run(t.Context(), j)
				phase := operation.StepSucceeded
				if at != "" {
					phase = operation.StepFailed
				}
				end := r.Observe(t.Context(), &j.endedAt(at, phase).Assignment)
				if !strings.Contains(end.Message, tc.message) {
					t.Errorf("at %q with %+v: %q, want %q", at, o, end.Message, tc.message)
				}
			})
		})
	}
}
