package loop

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// reachEvery is how often the executor is asked whether what it works on answers.
	reachEvery = time.Second
	// cutOffPoll is how often an agent that is cut off looks for doorbells that no
	// other agent has taken.
	cutOffPoll = 5 * time.Second
	// offeredFor is how long an agent that is cut off leaves new work to other agents,
	// which wait on the queue and take it within a second. A lone agent takes it after
	// that, for the operation to say what it waits for.
	offeredFor = 10 * time.Second
	// offeredAgain is how long a doorbell that is left to others is hidden from them.
	offeredAgain = time.Second
)

// healthy is an executor that can lose what it acts on; its error says why nothing can
// be carried out now, and has a Code where operations name the reason. It answers from
// what it knows already.
type healthy interface{ Healthy() error }

// reach is whether what the executor works on answers this agent, as it knows itself
// without any operation. Another agent may have another way to it.
type reach struct {
	mu      sync.Mutex
	away    bool
	changed chan struct{} // closed and replaced at each change
}

func newReach() *reach { return &reach{changed: make(chan struct{})} }

func (r *reach) set(away bool) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away == away {
		return false
	}
	r.away = away
	close(r.changed)
	r.changed = make(chan struct{})
	return true
}

// cutOff tells whether nothing answers now, and is closed when that changes.
func (r *reach) cutOff() (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.away, r.changed
}

// watchReach asks the executor until ctx ends.
func (a *Agent) watchReach(ctx context.Context) {
	e, can := a.cfg.Executor.(healthy)
	for can {
		var named interface{ Code() string }
		away := errors.As(e.Healthy(), &named) && named.Code() == codeSilent
		switch turned := a.reach.set(away); {
		case turned && away:
			a.log.Warn("new work is left to other agents while what this one works on does not answer")
		case turned:
			a.log.Info("new work is taken on again")
		}
		can = pause(ctx, reachEvery)
	}
}

// othersTake is how long the doorbell of an operation is hidden that another agent is to
// take: it was handed over, or is new and this agent is cut off. 0: this one may take it.
func (a *Agent) othersTake(op string) time.Duration {
	if left := a.aside.left(op, a.mono()); left > 0 {
		return min(left, incompatibleFor)
	}
	if away, _ := a.reach.cutOff(); !away {
		return 0
	}
	return min(a.aside.offer(op, a.mono(), offeredFor), offeredAgain)
}
