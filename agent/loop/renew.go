package loop

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
)

// runs are the assignments that this agent holds.
type runs struct {
	mu   sync.Mutex
	held map[string]*run
	gone chan struct{} // closed and replaced when one ends
	// spoilt are generations that ended here without the plane taking any word
	// of it, the newest last: granted once more they would begin unprobed.
	spoilt []keptKey
}

func newRuns() *runs { return &runs{held: map[string]*run{}, gone: make(chan struct{})} }

func (r *runs) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}

func (r *runs) holds(op string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[op] != nil
}

// newer tells whether a doorbell of that generation was answered already: the
// claim that it led to made a higher one.
func (r *runs) newer(op string, generation int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[op]
	return held != nil && held.a.Generation > generation
}

// spoil remembers a generation that must not begin again.
func (r *runs) spoil(op string, generation int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoilt = newest(append(r.spoilt, keptKey{op, generation}), 1000)
}

// ran tells whether this very generation is held or ended badly here.
func (r *runs) ran(op string, generation int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[op]
	return held != nil && held.a.Generation == generation || slices.Contains(r.spoilt, keptKey{op, generation})
}

// add takes a run in and returns the one that it displaces.
func (r *runs) add(n *run) *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.held[n.a.Operation]
	r.held[n.a.Operation] = n
	return old
}

func (r *runs) remove(n *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[n.a.Operation] == n {
		delete(r.held, n.a.Operation)
	}
	close(r.gone)
	r.gone = make(chan struct{})
}

func (r *runs) find(op string, generation int64) *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	if held := r.held[op]; held != nil && held.a.Generation == generation {
		return held
	}
	return nil
}

func (r *runs) all() []*run {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*run, 0, len(r.held))
	for _, held := range r.held {
		out = append(out, held)
	}
	return out
}

func (r *runs) cancel(op string, generation int64) {
	if held := r.find(op, generation); held != nil {
		held.requestCancel()
	}
}

func (r *runs) lose(op string, generation int64) {
	if held := r.find(op, generation); held != nil {
		held.lease.lose(errLeaseLost)
	}
}

// renewNow asks for a renewal without waiting for its time.
func (a *Agent) renewNow() {
	select {
	case a.renewal <- struct{}{}:
	default:
	}
}

// renew renews all held leases together, three times in a lease.
func (a *Agent) renew(ctx context.Context) {
	defer a.vitals.done("renewal")
	tries := 0
	var last error
	for {
		third := ms(a.session.get().LeaseMS) / 3
		if third <= 0 {
			third = time.Second
		}
		wait := jitter(third)
		if tries > 0 {
			// A lease is lost by waiting longer than a third of it.
			wait = atLeast(backoff(tries, third/20, third), last, third)
		}
		// All that it holds is renewed in calls of MaxBatch, one after the other.
		calls := 1 + a.cfg.Concurrency/protocol.MaxBatch
		a.vitals.turn("renewal", a.mono(), wait+time.Duration(calls)*callTimeout)
		if !pause(ctx, wait, a.renewal) {
			return
		}
		if err := a.renewAll(ctx); err != nil {
			last = err
			if tries++; tries == 1 {
				a.log.Warn("renewal failed", slog.Any("err", err))
			}
			continue
		}
		tries = 0
	}
}

func (a *Agent) renewAll(ctx context.Context) error {
	held := slices.DeleteFunc(a.runs.all(), func(r *run) bool {
		err := r.lease.check() // past its deadline or its end no lease goes on
		return err != nil && !errors.Is(err, errForced)
	})
	var failed error
	for len(held) > 0 {
		n := min(len(held), protocol.MaxBatch)
		if err := a.renewBatch(ctx, held[:n]); err != nil {
			failed = err
		}
		held = held[n:]
	}
	return failed
}

func (a *Agent) renewBatch(ctx context.Context, held []*run) error {
	req := protocol.RenewRequest{AgentID: a.session.get().AgentID, Boot: a.boot}
	for _, r := range held {
		req.Renewals = append(req.Renewals, protocol.RenewalEntry{
			Operation: r.a.Operation, Generation: r.a.Generation, Progress: r.out.takeProgress(),
		})
	}
	untold := func(i int) { held[i].out.untold(req.Renewals[i].Progress) }
	var answer protocol.RenewAnswer
	sent := a.mono()
	if err := a.api.post(ctx, "/v1/agent/renewals", "", req, &answer); err != nil {
		for i := range held {
			untold(i)
		}
		return err
	}
	if len(answer.Results) != len(held) {
		return errors.New("renewals: the answer has another number of results")
	}
	for i, r := range held {
		res := answer.Results[i]
		switch {
		case res.OK:
			r.lease.renew(sent, res.LeaseMS, res.DeadlineMS)
			if res.Cancel {
				r.requestCancel()
			}
		case res.ErrorCode == codeUnavailable: // asked again in a while
			untold(i)
		default:
			if errors.Is(r.lease.check(), errDeadline) {
				continue // passed meanwhile; what is left is to tell it
			}
			if !r.lease.over() {
				r.log.Warn("lease lost", slog.String("error_code", redact(res.ErrorCode, 64)))
			}
			r.lease.lose(errLeaseLost)
		}
	}
	return nil
}
