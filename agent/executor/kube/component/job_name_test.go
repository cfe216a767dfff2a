package component

import (
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestJobNamesFit: the name of a Job is a label of its pods.
func TestJobNamesFit(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, q := range []request{{verb: answer.Preflight}, {verb: answer.Upgrade}, {verb: answer.Status}, {verb: answer.Status, after: "x"}, {verb: answer.Status, attempt: 12}} {
		for _, generation := range []int64{1, 1 << 40, math.MaxInt64} {
			for run := range 2 {
				name := q.name(&protocol.Assignment{Operation: "op_01HZZZZZZZZZZZZZZZZZZZZZZZ", Run: 1000 + run, Generation: generation})
				if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 || seen[name] {
					t.Errorf("%s (%d bytes): %v, there before: %v", name, len(name), wrong, seen[name])
				}
				seen[name] = true
			}
		}
	}
}
