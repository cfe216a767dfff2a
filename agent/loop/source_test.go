package loop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
)

// cloudQueue is a queue at a URL as an agent on AWS has it: it cannot bury, and
// it may refuse.
type cloudQueue struct {
	mem *memQueue

	mu       sync.Mutex
	err      error
	receives int
	names    []string
}

func (q *cloudQueue) call(name string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Contains(q.names, name) {
		q.names = append(q.names, name)
	}
	return q.err
}

func (q *cloudQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
}

func (q *cloudQueue) asked() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.receives
}

func (q *cloudQueue) Receive(ctx context.Context, name string, most int, wait, visibility time.Duration) ([]queue.Message, error) {
	q.mu.Lock()
	q.receives++
	q.mu.Unlock()
	if err := q.call(name); err != nil {
		return nil, err
	}
	return q.mem.Receive(ctx, name, most, wait, visibility)
}

func (q *cloudQueue) Delete(ctx context.Context, name string, receipts ...string) error {
	if err := q.call(name); err != nil {
		return err
	}
	return q.mem.Delete(ctx, name, receipts...)
}

func (q *cloudQueue) Extend(ctx context.Context, name, receipt string, d time.Duration) error {
	if err := q.call(name); err != nil {
		return err
	}
	return q.mem.Extend(ctx, name, receipt, d)
}

// cloud gives a bench queues at URLs; the first is the one that the plane names.
func cloud(b *bench, urls ...string) map[string]*cloudQueue {
	qs := map[string]*cloudQueue{}
	for _, u := range urls {
		qs[u] = &cloudQueue{mem: newMemQueue(b.plane)}
	}
	b.cfg.Queue = nil
	b.cfg.OpenQueue = func(url string) (queue.Receiver, error) {
		if q, ok := qs[url]; ok {
			return q, nil
		}
		return nil, errors.New("not a queue's URL")
	}
	b.plane.answer.QueueURL = urls[0]
	b.plane.queue = qs[urls[0]].mem // where the plane rings
	return qs
}

const (
	eastURL = "https://sqs.us-east-1.amazonaws.com/1/opsplane-prod-clu"
	westURL = "https://sqs.us-west-2.amazonaws.com/1/opsplane-prod-clu"
)

// An agent reads the queue that the plane names, and follows when the plane
// names another.
func TestQueueOfThePlane(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		qs := cloud(b, eastURL, westURL)
		first := b.plane.submit("first", time.Hour, drainPlan()...)
		b.start()
		if s := b.plane.ended(t, first, 10*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("first ended %s", s.Phase)
		}
		b.plane.locked(func() { b.plane.answer.QueueURL, b.plane.queue = westURL, qs[westURL].mem })
		second := b.plane.submit("second", time.Hour, drainPlan()...)
		if s := b.plane.ended(t, second, 40*time.Second); s.Phase != operation.Succeeded {
			t.Errorf("second ended %s", s.Phase)
		}
		for url, q := range qs {
			if !slices.Equal(q.names, []string{url}) {
				t.Errorf("the queue at %s was called as %q", url, q.names)
			}
			b.plane.wait(t, time.Minute, "its doorbells deleted", func() bool { return q.mem.left() == 0 })
		}
		before := qs[eastURL].asked()
		time.Sleep(time.Minute)
		if n := qs[eastURL].asked(); n != before {
			t.Errorf("the old queue was asked %d times more", n-before)
		}
	})
}

// A queue that refuses the credentials, is gone or cannot be opened costs few
// calls and neither the agent's life nor its heartbeats, and what mends it is
// noticed.
func TestQueueUnusable(t *testing.T) {
	for name, cause := range map[string]error{"refused": ErrQueueRefused, "gone": queue.ErrNoQueue} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				qs := cloud(b, eastURL)
				qs[eastURL].fail(cause)
				op := b.plane.submit("op", 2*time.Hour, drainPlan()...)
				b.start()
				time.Sleep(10 * time.Minute)
				if n := qs[eastURL].asked(); n < 5 || n > 25 {
					t.Errorf("asked %d times in ten minutes", n)
				}
				b.plane.mu.Lock()
				beats := len(b.plane.beats)
				b.plane.mu.Unlock()
				if beats < 90 {
					t.Errorf("%d heartbeats in ten minutes", beats)
				}
				if n := b.agent.Metrics().QueueErrors.Load(); n == 0 {
					t.Error("no queue error counted")
				}
				qs[eastURL].fail(nil)
				if s := b.plane.ended(t, op, 2*time.Minute); s.Phase != operation.Succeeded {
					t.Errorf("ended %s", s.Phase)
				}
			})
		})
	}
	t.Run("no URL of a queue", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bench) {
			cloud(b, eastURL)
			b.plane.answer.QueueURL = "https://elsewhere.example/x"
			b.start()
			time.Sleep(time.Minute)
			if n := b.agent.Metrics().QueueErrors.Load(); n == 0 || n > 40 {
				t.Errorf("%d queue errors in a minute", n)
			}
			// Another URL is tried at its heartbeat, not at the end of the back-off.
			b.plane.locked(func() { b.plane.answer.QueueURL = eastURL })
			op := b.plane.submit("op", time.Hour, drainPlan()...)
			if s := b.plane.ended(t, op, 10*time.Second); s.Phase != operation.Succeeded {
				t.Errorf("ended %s", s.Phase)
			}
		})
	})
	t.Run("an agent without such queues", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bench) {
			cloud(b, eastURL)
			b.cfg.OpenQueue = nil
			b.start()
			b.plane.wait(t, time.Minute, "heartbeats", func() bool { return len(b.plane.beats) > 3 })
			if n := b.agent.Metrics().QueueErrors.Load(); n == 0 {
				t.Error("no queue error counted")
			}
		})
	})
}

// Where an agent may not bury, a message that is none is left to the queue's own
// redrive: never deleted, and not received faster than its visibility time.
func TestForeignMessageIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		qs := cloud(b, eastURL)
		for _, m := range []string{"", "hello", strings.Repeat("x", queue.MaxBodyBytes)} {
			qs[eastURL].mem.send([]byte(m))
		}
		b.start()
		time.Sleep(150 * time.Second)
		mem := qs[eastURL].mem
		if mem.left() != 3 || len(b.plane.buried) != 0 {
			t.Errorf("%d of 3 left, %d buried", mem.left(), len(b.plane.buried))
		}
		mem.mu.Lock()
		defer mem.mu.Unlock()
		for _, m := range mem.items {
			if m.receives != 3 {
				t.Errorf("message %s received %d times in 150 s of a visibility of %s", m.id, m.receives, visibility)
			}
		}
	})
}

func TestCadence(t *testing.T) {
	for said, want := range map[int64]time.Duration{
		-1: heartbeatEvery, 0: heartbeatEvery, 1: heartbeatLeast, 30_000: 30 * time.Second, 3_600_000: heartbeatMost, 1 << 62: heartbeatMost,
	} {
		if got := cadence(protocol.HeartbeatAnswer{HeartbeatMS: said}); got != want {
			t.Errorf("heartbeat_ms %d: every %s, want %s", said, got, want)
		}
	}
	bubble(t, func(t *testing.T, b *bench) {
		b.plane.answer.HeartbeatMS = 30_000
		b.start()
		time.Sleep(5 * time.Minute)
		b.plane.mu.Lock()
		n := len(b.plane.beats)
		b.plane.mu.Unlock()
		if n < 9 || n > 13 {
			t.Errorf("%d heartbeats in five minutes", n)
		}
	})
}
