package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	claimWorkers = 2
	claimTries   = 3
)

// errStopping: the agent takes nothing on any more.
var errStopping = errors.New("the agent stops")

// claimCall is one operation being asked for. Doorbells for the same operation
// share it.
type claimCall struct {
	operation  string
	generation int64
	done       chan struct{}
	result     protocol.ClaimResult
	err        error
}

// claimer collects what concurrent doorbells ask for into few calls.
type claimer struct {
	lane *lane[*claimCall]

	mu    sync.Mutex
	calls map[keptKey]*claimCall
}

func newClaimer() *claimer {
	return &claimer{lane: newLane[*claimCall](), calls: map[keptKey]*claimCall{}}
}

// ask asks for an operation and waits for the answer. started tells that a run
// was started and now owns the caller's slot; it is true for one caller only.
func (c *claimer) ask(ctx context.Context, op string, generation int64) (res protocol.ClaimResult, started bool, err error) {
	key := keptKey{op, generation}
	c.mu.Lock()
	call, shared := c.calls[key]
	if !shared {
		call = &claimCall{operation: op, generation: generation, done: make(chan struct{})}
		c.calls[key] = call
	}
	c.mu.Unlock()
	if !shared {
		c.lane.push(call)
	}
	select {
	case <-call.done:
	case <-ctx.Done(): // the agent is over; nobody will answer
		return res, false, context.Cause(ctx)
	}
	return call.result, !shared && call.err == nil && call.result.Result == protocol.ClaimGranted, call.err
}

func (c *claimer) answer(call *claimCall, res protocol.ClaimResult, err error) {
	c.mu.Lock()
	delete(c.calls, keptKey{call.operation, call.generation})
	c.mu.Unlock()
	call.result, call.err = res, err
	close(call.done)
}

// claim is a worker's loop: up to 100 claims in one call.
func (a *Agent) claim(ctx context.Context) {
	for {
		batch := a.claims.lane.take(ctx, protocol.MaxBatch)
		if batch == nil {
			return
		}
		a.claimBatch(ctx, batch)
	}
}

func (a *Agent) claimBatch(ctx context.Context, batch []*claimCall) {
	if closed(a.stopping) {
		for _, call := range batch {
			a.claims.answer(call, protocol.ClaimResult{}, errStopping)
		}
		return
	}
	req := protocol.ClaimRequest{AgentID: a.session.get().AgentID, Boot: a.boot}
	for _, call := range batch {
		req.Claims = append(req.Claims, protocol.Claim{Operation: call.operation, Generation: call.generation})
	}
	a.metrics.Claims.Add(int64(len(batch)))
	var answer protocol.ClaimAnswer
	var sent time.Duration
	var err error
	for try := 1; ; try++ {
		answer, sent = protocol.ClaimAnswer{}, a.mono()
		err = a.api.post(ctx, "/v1/agent/claims", "", req, &answer)
		if err == nil && len(answer.Results) != len(batch) {
			err = errors.New("claims: the answer has another number of results")
		}
		if err == nil || refused(err) || try == claimTries || !pause(ctx, backoff(try, 100*time.Millisecond, time.Second)) {
			break
		}
	}
	if err != nil {
		if !refused(err) {
			a.session.setUp(false) // until a heartbeat is answered
		}
		a.log.Warn("claims failed", slog.Int("claims", len(batch)), slog.Any("err", err))
		for _, call := range batch {
			a.claims.answer(call, protocol.ClaimResult{}, err)
		}
		return
	}
	for i, call := range batch {
		res := answer.Results[i]
		var err error
		if res.Result == protocol.ClaimGranted {
			err = checkAssignment(call, res.Assignment)
			switch {
			case err != nil:
				a.log.Error("an assignment makes no sense and is left to its lease",
					slog.String("operation", call.operation), slog.Any("err", err))
			case a.runs.ran(call.operation, res.Assignment.Generation) || a.kept.has(call.operation, res.Assignment.Generation):
				// The plane grants a lease once more to a holder that it has heard
				// nothing of. This one has acted already.
				res = protocol.ClaimResult{Operation: call.operation, Result: protocol.ClaimHeld}
			default:
				a.metrics.Granted.Add(1)
				a.start(ctx, res.Assignment, sent)
			}
		}
		a.claims.answer(call, res, err)
	}
}

func checkAssignment(call *claimCall, as *protocol.Assignment) error {
	switch {
	case as == nil:
		return errors.New("no assignment")
	case as.Operation != call.operation || !id.Valid(id.Operation, as.Operation):
		return errors.New("another operation")
	// A lease that the deadline left nothing of ends at once, and is told.
	case as.Generation < 1 || as.LeaseMS <= 0 && as.DeadlineMS > 0:
		return errors.New("no generation or no lease")
	}
	for _, s := range as.Steps {
		switch s.Phase {
		case operation.StepPending, operation.StepRunning, operation.StepSucceeded,
			operation.StepFailed, operation.StepSkipped, operation.StepUnknown:
		default:
			return errors.New("a step has no known phase")
		}
	}
	return nil
}
