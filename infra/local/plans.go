package local

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/relay"
)

// planners takes plans on, each by one goroutine at a time: two that advance the
// same plan lose races to each other all the way, and a plan of many children is
// rung for with each child's end.
type planners struct {
	queue queue.Queue
	// take deals with a message: with what it asks for all others of its plan are
	// dealt with that were received before.
	take func(context.Context, queue.Message) error
	warn func(ctx context.Context, msg string, err error)

	mu   sync.Mutex
	rung map[string][]queue.Message // of the plans that somebody is at
}

// run receives until ctx ends, and returns when nobody is at a plan any more.
func (p *planners) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, planWorkers)
	for ctx.Err() == nil {
		ms, err := p.queue.Receive(ctx, relay.PlaneQueue, queue.MaxBatch, queue.MaxWait, planVisibility)
		if err != nil {
			p.warn(ctx, "cannot read the plane's queue", err)
			sleep(ctx, time.Second)
			continue
		}
		for _, m := range ms {
			plan := m.ID // what cannot be read is put aside by itself
			if pm, err := relay.ParsePlane(m.Body); err == nil {
				plan = pm.Operation
			}
			if p.join(plan, m) {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				p.advance(ctx, plan)
			})
		}
	}
}

// join leaves a message to whoever is at its plan; false: nobody was, and the
// caller is to see to it.
func (p *planners) join(plan string, m queue.Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ms, busy := p.rung[plan]
	p.rung[plan] = append(ms, m)
	return busy
}

// advance brings a plan on until no message for it is left. Messages are deleted
// after what they rang for is done; where it failed they are left to come again.
func (p *planners) advance(ctx context.Context, plan string) {
	for {
		p.mu.Lock()
		ms := p.rung[plan]
		if len(ms) == 0 {
			delete(p.rung, plan)
			p.mu.Unlock()
			return
		}
		p.rung[plan] = nil
		p.mu.Unlock()
		if err := p.take(ctx, ms[0]); err != nil {
			p.warn(ctx, "plan not advanced", err)
			continue
		}
		for some := range slices.Chunk(ms, queue.MaxBatch) {
			receipts := make([]string, len(some))
			for i, m := range some {
				receipts[i] = m.Receipt
			}
			if err := p.queue.Delete(ctx, relay.PlaneQueue, receipts...); err != nil {
				p.warn(ctx, "cannot delete messages", err)
			}
		}
	}
}

// planLoop runs what never reaches a cluster.
func (e *Engine) planLoop(ctx context.Context) {
	p := planners{queue: e.queue, rung: map[string][]queue.Message{},
		take: func(ctx context.Context, m queue.Message) error { return e.Plans.Take(ctx, e.queue, m) },
		warn: func(ctx context.Context, msg string, err error) {
			if ctx.Err() == nil {
				e.opts.Logger.WarnContext(ctx, msg, "err", err)
			}
		}}
	p.run(ctx)
}
