package sweep_test

import (
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestWhatIsLeftIsNamed: a drain that ends without anybody looking at the node names the
// cordon that it placed, and the node is probed next time; an agent that looked says so
// itself.
func TestWhatIsLeftIsNamed(t *testing.T) {
	t.Parallel()
	seen := &protocol.Inventory{Nodes: []protocol.Node{node("n0", 2)}}
	for name, c := range map[string]struct {
		final *protocol.Final // nil: its agent is dead
		want  string
	}{
		"dead":       {nil, "cordon evict"},
		"API silent": {&protocol.Final{Outcome: protocol.FinalTimedOut, Message: "the node could not be read"}, "cordon evict"},
		"it looked":  {&protocol.Final{Outcome: protocol.FinalTimedOut, Observed: seen}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			a := p.agent("a")
			f := drain("n0")
			f["deadline"] = t0.Add(20 * time.Second).Format(time.RFC3339)
			op := p.create(f)
			p.settle()
			as := a.granted(op)
			r := protocol.Report{Operation: op, Generation: as.Generation, N: 1}
			for _, step := range []string{"preflight", "cordon", "evict"} {
				r.Steps = append(r.Steps, steps(as, operation.StepRunning, step)...)
				r.Steps = append(r.Steps, steps(as, operation.StepSucceeded, step)...)
			}
			r.Steps = append(r.Steps, steps(as, operation.StepRunning, "wait")...)
			a.told(r)
			a.renew(op, as.Generation)
			p.pass(20 * time.Second)
			if c.final != nil {
				a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 2, Final: c.final})
			}
			p.pass(20 * time.Second)
			p.sweepAll()
			o := p.want(op, operation.TimedOut)
			var got []string
			for _, r := range o.State.Result.Residual {
				if r.Resource != p.nodeID("n0") || !strings.HasSuffix(r.Detail, "not verified") {
					t.Errorf("residual %+v", r)
				}
				got = append(got, r.Step)
			}
			if strings.Join(got, " ") != c.want || (p.unsettledBy(p.nodeID("n0")) == op) != (c.want != "") {
				t.Errorf("left behind by %v, want %s; unsettled by %q", got, c.want, p.unsettledBy(p.nodeID("n0")))
			}
			p.sound()
		})
	}
}
