package sweep_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// gpu puts a device on a node into the inventory and returns its id.
func (p *plane) gpu(uid, node string) string {
	p.t.Helper()
	objects, _ := fleet.Objects(p.cl, &protocol.Inventory{Devices: []protocol.Device{{UID: uid, NodeName: node, NodeUID: "uid-" + node, Revision: 1}}}, p.now())
	ws, err := p.store.MergeObjects(context.Background(), objects)
	p.no(err)
	p.no(p.store.Ledger.Commit(context.Background(), ws...))
	return objects[slices.IndexFunc(objects, func(o fleet.Object) bool { return o.Kind == operation.KindDevice })].ID
}

// unsettledBy are the operations that left a resource unproven.
func (p *plane) unsettledBy(resource string) string {
	p.t.Helper()
	locks, err := p.store.Locks(context.Background(), []string{resource})
	p.no(err)
	return strings.Join(locks[resource].Unsettled, " ")
}

func (p *plane) resolve(op, step, outcome string) {
	p.t.Helper()
	_, err := p.ctl.Resolve(context.Background(), call(""), op, control.ResolveInput{Step: step, Outcome: outcome, Evidence: "looked at the host", Reason: "its agent is gone"})
	p.no(err)
}

// TestResolvedStaysUnsettled: the Job of a reset outlives the agent that made it. A
// person may settle the step, and the device stays marked until an operation that
// probed it has come through.
func TestResolvedStaysUnsettled(t *testing.T) {
	t.Parallel()
	for _, says := range []string{operation.ResolveFailed, operation.ResolveDone, operation.ResolveNotDone} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			a := p.agent("a")
			device := p.gpu("GPU-1", "n0")
			ask := func() string {
				op := p.create(map[string]any{"type": "device.reset", "target": device, "reason": "XID 79"})
				p.settle()
				return op
			}
			whole := func(as *protocol.Assignment) protocol.Report {
				return protocol.Report{Operation: as.Operation, Generation: as.Generation, N: 1, Settled: as.Probe,
					Steps: steps(as, operation.StepSucceeded, "preflight", "reset", "verify"), Final: &protocol.Final{Outcome: protocol.FinalSucceeded}}
			}
			op := ask()
			as := a.granted(op)
			a.told(protocol.Report{Operation: op, Generation: as.Generation, N: 1,
				Steps: append(steps(as, operation.StepSucceeded, "preflight"), steps(as, operation.StepRunning, "reset")...)})
			p.pass(25 * time.Second)
			p.no(a.beat())
			p.sweepAll()
			p.want(op, operation.Reconciling)
			p.resolve(op, "reset", says)
			phase := operation.Failed
			if says != operation.ResolveFailed { // an agent looks at the device; nobody has looked for the Job
				p.settle()
				as := a.granted(op)
				r := whole(as)
				r.Steps, r.Settled = steps(as, operation.StepSucceeded, "verify"), false
				if says == operation.ResolveNotDone { // nor does it where the reset is issued once more
					r.Steps = slices.Concat(steps(as, operation.StepRunning, "reset"), steps(as, operation.StepSucceeded, "reset"), r.Steps)
				}
				a.told(r)
				phase = operation.Succeeded
			}
			o := p.want(op, phase)
			if rs := o.State.Result.Residual; len(rs) != 1 || rs[0].Step != "reset" || rs[0].Resource != device {
				t.Errorf("residual %+v", rs)
			}
			if got := p.unsettledBy(device); got != op {
				t.Errorf("the device is unsettled by %q, want %s", got, op)
			}
			if got := p.unsettledBy(p.nodeID("n0")); got != "" {
				t.Errorf("the node, which was shared, is unsettled by %s", got)
			}
			next := ask()
			if as = a.granted(next); !as.Probe || as.StartedStep != "" {
				t.Errorf("the next one does not probe first: %+v", as)
			}
			a.told(whole(as))
			if got := p.unsettledBy(device); got != "" {
				t.Errorf("unsettled by %s after a probe found nothing and all came through", got)
			}
			p.sound()
		})
	}
}
