package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/remote"
)

const (
	// visibility is how long a message is ours: longer than a claim may take.
	visibility   = 60 * time.Second
	extraPollers = 3
	// unusableMost bounds the wait before a queue is asked again that is gone or
	// refuses this agent: somebody has to mend it, and each try is billed.
	unusableMost = time.Minute
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
// One that is cut off from what it works on does not wait on the queue: it looks now
// and then for what no other agent of the cluster has taken.
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
				for ctx.Err() == nil {
					if away, _ := a.reach.cutOff(); away {
						break
					}
					if n, err := a.receive(ctx, work, &wg, 0, surge); n == 0 || err != nil {
						break // the poller that always waits tells the error
					}
				}
			}
		})
	}
	for tries := 0; ctx.Err() == nil; {
		url := a.session.get().QueueURL
		wait := queue.MaxWait
		if away, changed := a.reach.cutOff(); away {
			pause(ctx, cutOffPoll, changed)
			if away, _ = a.reach.cutOff(); away {
				wait = 0
			}
		}
		_, err := a.receive(ctx, work, &wg, wait, surge)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			if tries > 0 {
				a.log.Info("the queue answers again", slog.Int("tries", tries))
			}
			tries = 0
			continue
		}
		tries++
		a.metrics.QueueErrors.Add(1)
		a.unanswered(ctx, url, tries, err)
	}
	wg.Wait()
}

// unanswered tells why the queue did not answer, at first and then now and
// again, and waits before the next try: for less when the plane names another
// queue.
func (a *Agent) unanswered(ctx context.Context, url string, tries int, err error) {
	wait := backoff(tries, 200*time.Millisecond, 5*time.Second)
	level, says := slog.LevelWarn, "the queue does not answer"
	switch {
	case errors.Is(err, ErrQueueRefused), errors.Is(err, remote.ErrRefused):
		level, says = slog.LevelError, "the queue refuses this agent's credentials: no operation reaches it until they are mended"
		wait = backoff(tries, 5*time.Second, unusableMost)
	case errors.Is(err, queue.ErrNoQueue):
		level, says = slog.LevelError, "the queue does not exist: no operation reaches this agent until its cluster has one"
		wait = backoff(tries, 5*time.Second, unusableMost)
	}
	if tries == 1 || tries%20 == 0 {
		a.log.Log(ctx, level, says, slog.Int("tries", tries), slog.String("queue", url), slog.String("err", redact(err.Error(), 512)))
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_ = a.session.wait(ctx, func(answer protocol.HeartbeatAnswer, _ bool) bool { return answer.QueueURL != url })
}

// receive takes one batch and leaves it to a goroutine. It returns the number
// of messages.
func (a *Agent) receive(ctx, work context.Context, wg *sync.WaitGroup, wait time.Duration, surge chan<- struct{}) (int, error) {
	if a.session.waitUp(ctx) != nil {
		return 0, nil
	}
	n := a.slots.take(ctx, queue.MaxBatch)
	if n == 0 {
		return 0, nil
	}
	src, err := a.sources.of(a.session.get())
	if err != nil {
		a.slots.give(n)
		a.vitals.queueAnswered(a.mono(), err)
		return 0, err
	}
	callCtx, cancel := context.WithTimeout(ctx, wait+queueCall)
	messages, err := src.Receive(callCtx, src.name, n, wait, visibility)
	cancel()
	if ctx.Err() == nil {
		a.vitals.queueAnswered(a.mono(), err)
	}
	if err == nil {
		a.metrics.QueuePolls.Add(1)
	}
	if err != nil || len(messages) == 0 {
		a.slots.give(n)
		return 0, err
	}
	a.metrics.Doorbells.Add(int64(len(messages)))
	if len(messages) == n {
		select {
		case surge <- struct{}{}:
		default:
		}
	}
	wg.Go(func() { a.handle(work, src, messages, n) })
	return len(messages), nil
}

// handle answers one batch; it owns n slots. Read the ack policy off its lines.
func (a *Agent) handle(ctx context.Context, src source, messages []queue.Message, n int) {
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
			a.bury(ctx, src, m, redact(err.Error(), 256))
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
			if hide := a.othersTake(bell.Operation); hide > 0 {
				wg.Go(func() {
					if m.Receives >= queue.MaxReceives {
						done(m) // sound, and sweep rings again
						return
					}
					a.extend(ctx, src, m, hide)
				})
				continue
			}
			if n == 0 {
				continue // the queue gave more than was asked for: left
			}
			n--
			wg.Go(func() {
				if a.answerBell(ctx, src, m, bell) {
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
	if err := src.Delete(ctx, src.name, handled...); err != nil {
		a.log.Warn("delete failed; the doorbells come again", slog.Int("doorbells", len(handled)), slog.Any("err", err))
	}
}

// answerBell claims one operation and tells whether its doorbell is done with.
// It owns one slot.
func (a *Agent) answerBell(ctx context.Context, src source, m queue.Message, bell protocol.Doorbell) bool {
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
		a.extend(ctx, src, m, ms(res.RetryMS))
	case protocol.ClaimIncompatible:
		a.log.Info("an operation needs another agent", slog.String("operation", bell.Operation), slog.String("detail", redact(res.Detail, 256)))
		a.extend(ctx, src, m, incompatibleFor)
	default:
		a.log.Error("the plane answers a claim with an unknown result", slog.String("operation", bell.Operation))
	}
	return false
}

func (a *Agent) extend(ctx context.Context, src source, m queue.Message, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, queueCall)
	defer cancel()
	if err := src.Extend(ctx, src.name, m.Receipt, min(d, queue.MaxDelay)); err != nil {
		a.log.Warn("extend failed; the doorbell comes again later", slog.Any("err", err))
	}
}

// bury puts a message aside, as a dead letter with its reason where the queue can
// do that for an agent. Elsewhere it is left as it is: it stays hidden for the
// visibility time, and the queue makes it a dead letter itself at its last
// delivery (SQS: the redrive policy's maxReceiveCount). It is never deleted.
func (a *Agent) bury(ctx context.Context, src source, m queue.Message, reason string) {
	told := []any{slog.String("message", m.ID), slog.Int("receives", m.Receives), slog.String("reason", reason)}
	b, ok := src.Receiver.(burier)
	if !ok {
		a.log.Warn("a doorbell is left to become a dead letter", told...)
		return
	}
	a.log.Warn("a doorbell is put aside", told...)
	ctx, cancel := context.WithTimeout(ctx, queueCall)
	defer cancel()
	if err := b.Bury(ctx, src.name, m, reason); err != nil {
		a.log.Warn("a doorbell could not be put aside; it comes again", slog.String("message", m.ID), slog.Any("err", err))
	}
}
