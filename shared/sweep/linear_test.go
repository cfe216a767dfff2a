package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/opsplane/opsplane/shared/control"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// asked is what a client asks about a node: to acquire it, or to dispatch,
// claim, finish or cancel one of its operations.
type asked struct {
	what, node, op string
	agent          string
	generation     int64
}

// answered is what the plane said. Op is the operation that was made, or that
// holds the node.
type answered struct {
	what, op   string
	generation int64
}

// right is the state of a node in the model: who has the lock, and who the lease.
type right struct {
	op         string
	dispatched bool
	agent      string
	generation int64
}

// rights is the model: a lock of one holder, and a lease of one agent whose
// generation counts up.
var rights = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range history {
			n := o.Input.(asked).node
			by[n] = append(by[n], o)
		}
		var out [][]porcupine.Operation
		for _, part := range by {
			out = append(out, part)
		}
		return out
	},
	Init: func() any { return right{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(right), input.(asked), output.(answered)
		mine := s.op == in.op && in.op != ""
		switch in.what + " " + out.what {
		case "acquire made":
			return s.op == "", right{op: out.op}
		case "acquire conflict":
			return s.op != "" && s.op == out.op, s
		case "dispatch done":
			s.dispatched = s.dispatched || mine
			return true, s
		case "claim granted":
			ok := mine && s.dispatched && (s.agent == "" && out.generation == s.generation+1 || s.agent == in.agent && out.generation == s.generation)
			s.agent, s.generation = in.agent, out.generation
			return ok, s
		case "claim held":
			return mine && s.agent != "" && s.agent != in.agent, s
		case "claim retry":
			return mine && !s.dispatched, s
		case "claim gone", "cancel 204":
			return !mine, s
		case "finish ok":
			return mine && s.agent == in.agent && s.generation == in.generation, right{}
		case "finish lease_lost":
			return !(mine && s.agent == in.agent && s.generation == in.generation), s
		case "cancel 200":
			return mine && s.agent == "", right{}
		case "cancel 202":
			return mine && s.agent != "", s
		}
		return false, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// TestLocksAndLeasesAreLinearizable: clients at once acquire nodes, claim, finish
// and cancel what they know of; what they were told has an order in which one
// lock and one lease at a time explain it.
func TestLocksAndLeasesAreLinearizable(t *testing.T) {
	t.Parallel()
	// The model is checked node by node, and the time that takes grows fast with
	// the calls that overlap on one: enough nodes keep it to milliseconds.
	const clients, rounds, nodes = 32, 12, 8
	// Few of the clients' draws get all the way, so that on a busy machine a
	// history may lack one of the kinds: then another is made.
	for seed := uint64(7); ; seed++ {
		seen := linearHistory(t, clients, rounds, nodes, seed)
		missing := ""
		for _, what := range []string{"acquire made", "acquire conflict", "claim granted", "finish ok"} {
			if seen[what] == 0 {
				missing = what
			}
		}
		if missing == "" || t.Failed() {
			return
		}
		if seed == 12 {
			t.Fatalf("no %q in %v: the test tells nothing", missing, seen)
		}
	}
}

// linearHistory lets clients loose, checks what they were told, and returns how
// often they were told what.
func linearHistory(t *testing.T, clients, rounds, nodes int, seed uint64) map[string]int {
	t.Helper()
	p := setup(t)
	for i := 3; i < nodes; i++ { // the others are there
		p.nodes(fmt.Sprint("n", i))
	}
	agents := make([]*agent, clients)
	for i := range agents {
		agents[i] = p.agent(fmt.Sprint("a", i))
	}
	var (
		mu      sync.Mutex
		history []porcupine.Operation
		wg      sync.WaitGroup
	)
	began := time.Now()
	for i, a := range agents {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), seed))
			known := map[string][]string{} // operations by node
			leases := map[string]int64{}   // of this agent
			ask := func(in asked) answered {
				in.agent = a.id
				call := time.Since(began).Nanoseconds()
				out := p.ask(a, in)
				mu.Lock()
				defer mu.Unlock()
				history = append(history, porcupine.Operation{ClientId: i, Input: in, Call: call, Output: out, Return: time.Since(began).Nanoseconds()})
				return out
			}
			for range rounds {
				node := fmt.Sprint("n", rnd.IntN(nodes))
				op := ""
				if ops := known[node]; len(ops) > 0 {
					op = ops[max(0, len(ops)-1-rnd.IntN(2))] // mostly the latest
				}
				gen, held := leases[op]
				switch x := rnd.IntN(10); {
				case op == "" || x < 3:
					out := ask(asked{what: "acquire", node: node})
					known[node] = append(known[node], out.op)
					if out.what == "made" {
						ask(asked{what: "dispatch", node: node, op: out.op})
					}
				case held:
					ask(asked{what: "finish", node: node, op: op, generation: gen})
					delete(leases, op)
					known[node] = nil
				case x < 8:
					if out := ask(asked{what: "claim", node: node, op: op}); out.what == "granted" {
						leases[op] = out.generation
					}
				default:
					ask(asked{what: "cancel", node: node, op: op})
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, o := range history {
		seen[o.Input.(asked).what+" "+o.Output.(answered).what]++
	}
	if res := porcupine.CheckOperationsTimeout(rights, history, 2*time.Minute); res != porcupine.Ok {
		t.Errorf("the history is %s: %v", res, seen)
	}
	p.settle()
	p.sound()
	return seen
}

// ask asks the plane and says what it answered.
func (p *plane) ask(a *agent, in asked) answered {
	ctx := context.Background()
	failed := func(err error) answered {
		p.t.Errorf("%+v: %v", in, err)
		return answered{what: "failed"}
	}
	switch in.what {
	case "acquire":
		f := drain(in.node)
		f["type"] = "node.cordon"
		got, err := p.adm.Admit(ctx, call(""), record.Encode(f))
		var r *operation.Refusal
		switch {
		case err == nil:
			return answered{what: "made", op: got.Operation.Spec.ID}
		case errors.As(err, &r) && r.ErrorCode == "operation_conflict":
			return answered{what: "conflict", op: r.OperationID}
		}
		return failed(err)
	case "dispatch":
		if _, err := p.relay.Dispatch(ctx, []string{in.op}); err != nil {
			return failed(err)
		}
		return answered{what: "done"}
	case "claim":
		res, err := p.api.Claim(ctx, p.cl, protocol.ClaimRequest{AgentID: a.id, Boot: a.boot, Claims: []protocol.Claim{{Operation: in.op}}})
		if err != nil {
			return failed(err)
		}
		out := answered{what: res.Results[0].Result}
		if as := res.Results[0].Assignment; as != nil {
			out.generation = as.Generation
		}
		return out
	case "finish":
		o, err := p.store.Load(ctx, in.op)
		if err != nil {
			return failed(err)
		}
		r := protocol.Report{Operation: in.op, Generation: in.generation, N: 1, Final: &protocol.Final{Outcome: protocol.FinalSucceeded}}
		for _, st := range o.Spec.Steps {
			r.Steps = append(r.Steps, protocol.StepReport{StepID: st.ID, Phase: operation.StepSucceeded})
		}
		res, err := p.api.Report(ctx, p.cl, protocol.ReportRequest{AgentID: a.id, Boot: a.boot, Reports: []protocol.Report{r}})
		if err != nil {
			return failed(err)
		}
		if res.Results[0].OK {
			return answered{what: "ok"}
		}
		return answered{what: res.Results[0].ErrorCode}
	}
	_, status, err := p.ctl.Cancel(ctx, call(""), in.op, control.CancelInput{})
	if err != nil {
		return failed(err)
	}
	return answered{what: fmt.Sprint(status)}
}

// TestTheModelFindsFaults: histories that no plane may give are found out.
func TestTheModelFindsFaults(t *testing.T) {
	t.Parallel()
	type step struct {
		in  asked
		out answered
	}
	made := step{asked{what: "acquire", node: "n"}, answered{what: "made", op: "x"}}
	sent := step{asked{what: "dispatch", node: "n", op: "x"}, answered{what: "done"}}
	claim := func(agent string, gen int64) step {
		return step{asked{what: "claim", node: "n", op: "x", agent: agent}, answered{what: "granted", generation: gen}}
	}
	done := step{asked{what: "finish", node: "n", op: "x", agent: "a", generation: 1}, answered{what: "ok"}}
	other := step{asked{what: "acquire", node: "n"}, answered{what: "made", op: "y"}}
	for name, c := range map[string]struct {
		steps []step
		want  porcupine.CheckResult
	}{
		"sound":                  {[]step{made, sent, claim("a", 1), done, other}, porcupine.Ok},
		"two hold the node":      {[]step{made, sent, claim("a", 1), other}, porcupine.Illegal},
		"two hold the lease":     {[]step{made, sent, claim("a", 1), claim("b", 2)}, porcupine.Illegal},
		"a generation twice":     {[]step{made, sent, claim("a", 1), claim("b", 1)}, porcupine.Illegal},
		"finished without lease": {[]step{made, sent, done}, porcupine.Illegal},
		"finished twice":         {[]step{made, sent, claim("a", 1), done, done}, porcupine.Illegal},
	} {
		var history []porcupine.Operation
		for i, s := range c.steps {
			history = append(history, porcupine.Operation{Input: s.in, Output: s.out, Call: int64(2 * i), Return: int64(2*i + 1)})
		}
		if got := porcupine.CheckOperationsTimeout(rights, history, time.Minute); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
