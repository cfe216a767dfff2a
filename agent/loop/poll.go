package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

const (
	// visibility is how long a message is ours: longer than a claim may take.
	visibility   = 60 * time.Second
	extraPollers = 3
	// incompatibleFor hides a doorbell that another agent must answer.
	incompatibleFor = 5 * time.Second
	queueCall       = 10 * time.Second
)

// burier is what a queue offers that can put messages aside by itself.
type burier interface {
	Bury(ctx context.Context, queue string, m queue.Message, reason string) error
}

// poll runs one poller that always waits on the queue, and extra ones that join
// in while it brings full batches. Nobody receives without a free slot or while
// the plane does not answer: a message that cannot be claimed would only come
// closer to its dead letter.
// Polling ends with ctx; what was received is answered for as long as work lasts.
func (a *Agent) poll(ctx, work context.Context) {
	surge := make(chan struct{}, extraPollers)
	var wg sync.WaitGroup
	for range extraPollers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-surge:
				}
				for ctx.Err() == nil && a.receive(ctx, work, &wg, 0, surge) > 0 {
				}
			}
		})
	}
	for tries := 0; ctx.Err() == nil; {
		if a.receive(ctx, work, &wg, queue.MaxWait, surge) >= 0 {
			tries = 0
			continue
		}
		tries++
		pause(ctx, backoff(tries, 200*time.Millisecond, 5*time.Second))
	}
	wg.Wait()
}

// receive takes one batch and leaves it to a goroutine. It returns the number
// of messages, or -1 when the queue did not answer.
func (a *Agent) receive(ctx, work context.Context, wg *sync.WaitGroup, wait time.Duration, surge chan<- struct{}) int {
	if a.session.waitUp(ctx) != nil {
		return 0
	}
	n := a.slots.take(ctx, queue.MaxBatch)
	if n == 0 {
		return 0
	}
	name := a.queueName()
	callCtx, cancel := context.WithTimeout(ctx, wait+queueCall)
	messages, err := a.queue.Receive(callCtx, name, n, wait, visibility)
	cancel()
	if err != nil || len(messages) == 0 {
		a.slots.give(n)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("receive failed", slog.Any("error", err))
			return -1
		}
		return 0
	}
	a.metrics.Doorbells.Add(int64(len(messages)))
	if len(messages) == n {
		select {
		case surge <- struct{}{}:
		default:
		}
	}
	wg.Go(func() { a.handle(work, name, messages, n) })
	return len(messages)
}

// queueName is the queue to poll: its URL on AWS, the cluster's id otherwise.
func (a *Agent) queueName() string {
	answer := a.session.get()
	if answer.QueueURL != "" {
		return answer.QueueURL
	}
	return answer.Cluster
}

// handle answers one batch; it owns n slots. Read the ack policy off its lines.
func (a *Agent) handle(ctx context.Context, name string, messages []queue.Message, n int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var handled []string // receipts to delete
	done := func(m queue.Message) {
		mu.Lock()
		defer mu.Unlock()
		handled = append(handled, m.Receipt)
	}
	cluster := a.session.get().Cluster
	for _, m := range messages {
		bell, err := decodeDoorbell(m.Body, cluster)
		if err != nil {
			a.metrics.BadDoorbells.Add(1)
			a.log.Warn("a doorbell is put aside", slog.String("message", m.ID), slog.String("reason", redact(err.Error(), 256)))
			if a.bury(ctx, name, m, redact(err.Error(), 256)) != nil {
				continue // left: it comes again
			}
			continue
		}
		switch bell.Kind {
		case protocol.KindAttention:
			if a.runs.holds(bell.Operation) {
				a.renewNow()
			}
			done(m)
		case protocol.KindPreview:
			wg.Go(func() {
				a.preview(ctx, bell.Preview)
				done(m)
			})
		case protocol.KindOperation:
			if a.runs.newer(bell.Operation, bell.Generation) {
				done(m) // a late copy: what it rang for is being carried out here
				continue
			}
			if n == 0 {
				continue // the queue gave more than was asked for: left
			}
			n--
			wg.Go(func() {
				if a.answerBell(ctx, name, m, bell) {
					done(m)
				}
			})
		}
	}
	a.slots.give(n) // what no message needed
	wg.Wait()
	if len(handled) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, queueCall)
	defer cancel()
	if err := a.queue.Delete(ctx, name, handled...); err != nil {
		a.log.Warn("delete failed; the doorbells come again", slog.Int("doorbells", len(handled)), slog.Any("error", err))
	}
}

// answerBell claims one operation and tells whether its doorbell is done with.
// It owns one slot.
func (a *Agent) answerBell(ctx context.Context, name string, m queue.Message, bell protocol.Doorbell) bool {
	res, started, err := a.claims.ask(ctx, bell.Operation, bell.Generation)
	if !started {
		a.slots.give(1)
	}
	// A doorbell that is left at its last delivery would become a dead letter and
	// fail its operation. It is sound, and sweep rings again for what nobody has
	// claimed, so it is deleted then.
	last := m.Receives >= queue.MaxReceives
	if err != nil {
		return last
	}
	switch res.Result {
	case protocol.ClaimGranted, protocol.ClaimGone, protocol.ClaimHeld:
		return true
	}
	if last {
		return true
	}
	switch res.Result {
	case protocol.ClaimRetry:
		a.extend(ctx, name, m, ms(res.RetryMS))
	case protocol.ClaimIncompatible:
		a.log.Info("an operation needs another agent", slog.String("operation", bell.Operation), slog.String("detail", redact(res.Detail, 256)))
		a.extend(ctx, name, m, incompatibleFor)
	default:
		a.log.Error("the plane answers a claim with an unknown result", slog.String("operation", bell.Operation))
	}
	return false
}

func (a *Agent) extend(ctx context.Context, name string, m queue.Message, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, queueCall)
	defer cancel()
	if err := a.queue.Extend(ctx, name, m.Receipt, min(d, queue.MaxDelay)); err != nil {
		a.log.Warn("extend failed; the doorbell comes again later", slog.Any("error", err))
	}
}

// bury puts a message aside: as a dead letter where the queue can, else it is
// deleted.
func (a *Agent) bury(ctx context.Context, name string, m queue.Message, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, queueCall)
	defer cancel()
	if b, ok := a.queue.(burier); ok {
		return b.Bury(ctx, name, m, reason)
	}
	return a.queue.Delete(ctx, name, m.Receipt)
}
