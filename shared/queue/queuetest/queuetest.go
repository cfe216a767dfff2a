// Package queuetest holds every engine of the queue seam to the same promises.
//
// It asks only for what all engines can keep: whole seconds, delivery at least
// once, no order, stale deletes that are ignored, dead letters that appear only
// when somebody receives, counts that are about right.
package queuetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/queue"
)

// Options fit the suite to an engine.
type Options struct {
	// Slack is how late a message may be before the suite calls it lost; zero
	// means 10 s.
	Slack time.Duration
	// Repeats says that the engine may, rarely, hand one message to two
	// receivers at once (SQS standard queues). The suite then only counts them.
	Repeats bool
	// Messages is how many the concurrent test sends; zero means 500.
	Messages int
}

// Run runs the suite. open gives each test an engine; it may be the same one.
func Run(t *testing.T, open func(t *testing.T) queue.Queue, o Options) {
	if o.Slack == 0 {
		o.Slack = 10 * time.Second
	}
	if o.Messages == 0 {
		o.Messages = 500
	}
	tests := []struct {
		name string
		run  func(*rig)
	}{
		{"SendReceiveDelete", testSendReceiveDelete},
		{"ReceiveEmpty", testReceiveEmpty},
		{"Batches", testBatches},
		{"Delay", testDelay},
		{"DelayEach", testDelayEach},
		{"LongPollWakesEarly", testLongPollWakesEarly},
		{"LongPollSeesDelayed", testLongPollSeesDelayed},
		{"LongPollEndsWithContext", testLongPollEndsWithContext},
		{"Visibility", testVisibility},
		{"Extend", testExtend},
		{"ExtendZero", testExtendZero},
		{"StaleReceipt", testStaleReceipt},
		{"DeadAfterMaxReceives", testDeadAfterMaxReceives},
		{"Bury", testBury},
		{"NoQueue", testNoQueue},
		{"EnsureRemove", testEnsureRemove},
		{"QueuesAreApart", testQueuesAreApart},
		{"Limits", testLimits},
		{"OneReceiverAtATime", testOneReceiverAtATime},
		{"Hammer", testHammer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := &rig{T: t, q: open(t), o: o, name: "test-" + strings.ToLower(rand.Text())}
			r.ensure(r.name)
			tt.run(r)
		})
	}
}

// rig is one test's engine and its queue.
type rig struct {
	*testing.T
	q    queue.Queue
	o    Options
	name string
}

func (r *rig) ensure(name string) {
	r.Helper()
	if err := r.q.Ensure(r.Context(), name); err != nil {
		r.Fatalf("Ensure: %v", err)
	}
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 30*time.Second)
		defer cancel()
		if err := r.q.Remove(ctx, name); err != nil && !errors.Is(err, queue.ErrUnavailable) {
			r.Errorf("Remove: %v", err)
		}
	})
}

func body(n int) []byte { return fmt.Appendf(nil, `{"n":%d}`, n) }

func (r *rig) send(ms ...queue.Outgoing) {
	r.Helper()
	if err := r.q.Send(r.Context(), r.name, ms...); err != nil {
		r.Fatalf("Send: %v", err)
	}
}

func (r *rig) receive(max int, wait, visibility time.Duration) []queue.Message {
	r.Helper()
	ms, err := r.q.Receive(r.Context(), r.name, max, wait, visibility)
	if err != nil {
		r.Fatalf("Receive: %v", err)
	}
	if len(ms) > max {
		r.Fatalf("Receive gave %d messages, asked for %d", len(ms), max)
	}
	return ms
}

// one receives the only message of the queue, within the slack.
func (r *rig) one(visibility time.Duration) queue.Message {
	r.Helper()
	for end := time.Now().Add(r.o.Slack); time.Now().Before(end); {
		switch ms := r.receive(queue.MaxBatch, min(r.o.Slack, queue.MaxWait), visibility); len(ms) {
		case 0:
		case 1:
			return ms[0]
		default:
			r.Fatalf("Receive gave %d messages, want one", len(ms))
		}
	}
	r.Fatalf("no message within %s", r.o.Slack)
	return queue.Message{}
}

// none checks that nothing is visible now.
func (r *rig) none() {
	r.Helper()
	if ms := r.receive(queue.MaxBatch, 0, time.Minute); len(ms) > 0 {
		r.Fatalf("received %d messages, want none: %s", len(ms), ms[0].Body)
	}
}

func (r *rig) delete(receipts ...string) {
	r.Helper()
	if err := r.q.Delete(r.Context(), r.name, receipts...); err != nil {
		r.Fatalf("Delete: %v", err)
	}
}

// dead waits for this queue's dead letter, receiving so that engines which only
// then count find it.
func (r *rig) dead() queue.DeadLetter {
	r.Helper()
	for end := time.Now().Add(3 * r.o.Slack); time.Now().Before(end); {
		if ms := r.receive(1, 200*time.Millisecond, time.Second); len(ms) > 0 {
			r.Fatalf("message handed out %d times, the limit is %d", ms[0].Receives, queue.MaxReceives)
		}
		letters, err := r.q.TakeDead(r.Context(), queue.MaxBatch)
		if err != nil {
			r.Fatalf("TakeDead: %v", err)
		}
		for _, d := range letters {
			if d.Queue == r.name {
				return d
			}
		}
	}
	r.Fatal("no dead letter")
	return queue.DeadLetter{}
}

func testSendReceiveDelete(r *rig) {
	want := body(1)
	r.send(queue.Outgoing{Body: want})
	m := r.one(time.Minute)
	if !bytes.Equal(m.Body, want) || m.Receives != 1 || m.ID == "" || m.Receipt == "" {
		r.Fatalf("received %+v (body %s)", m, m.Body)
	}
	r.none()
	r.delete(m.Receipt)
	r.delete(m.Receipt) // stale now, and no error
	r.none()
}

func testReceiveEmpty(r *rig) {
	r.none()
	start := time.Now()
	if ms := r.receive(1, time.Second, time.Minute); len(ms) > 0 {
		r.Fatalf("received %d messages from an empty queue", len(ms))
	}
	if took := time.Since(start); took < 900*time.Millisecond || took > time.Second+r.o.Slack {
		r.Errorf("an empty receive waited %s, asked for 1s", took)
	}
}

func testBatches(r *rig) {
	const n = 25
	sent := map[string]bool{}
	for i := 0; i < n; i += queue.MaxBatch {
		var ms []queue.Outgoing
		for j := i; j < min(i+queue.MaxBatch, n); j++ {
			ms = append(ms, queue.Outgoing{Body: body(j)})
			sent[string(body(j))] = true
		}
		r.send(ms...)
	}
	if depth, err := r.q.Depth(r.Context(), r.name); err != nil || depth < 0 {
		r.Errorf("Depth: %d, %v", depth, err)
	}
	for end := time.Now().Add(r.o.Slack); len(sent) > 0; {
		if time.Now().After(end) {
			r.Fatalf("%d of %d messages did not come", len(sent), n)
		}
		ms := r.receive(queue.MaxBatch, time.Second, time.Minute)
		var receipts []string
		for _, m := range ms {
			if !sent[string(m.Body)] && !r.o.Repeats {
				r.Fatalf("received twice or never sent: %s", m.Body)
			}
			delete(sent, string(m.Body))
			receipts = append(receipts, m.Receipt)
		}
		if len(receipts) > 0 {
			r.delete(receipts...)
		}
	}
	r.none()
}

func testDelay(r *rig) {
	start := time.Now()
	r.send(queue.Outgoing{Body: body(1), Delay: 1500 * time.Millisecond}) // rounded up to 2 s
	m := r.next()
	if took := time.Since(start); took < 1500*time.Millisecond {
		r.Errorf("a message delayed by 1.5s came after %s", took)
	}
	r.delete(m.Receipt)
}

// next receives the only message of the queue, first without waiting for it.
func (r *rig) next() queue.Message {
	r.Helper()
	if ms := r.receive(1, 0, time.Minute); len(ms) > 0 {
		return ms[0]
	}
	return r.one(time.Minute)
}

// testDelayEach: the messages of one send have each their own delay. However late
// they are received, none comes before its time, and those that come apart come in
// the order of their times.
func testDelayEach(r *rig) {
	delays := map[int]time.Duration{1: 3 * time.Second, 2: 0, 3: 2 * time.Second}
	start := time.Now()
	r.send(queue.Outgoing{Body: body(1), Delay: delays[1]}, queue.Outgoing{Body: body(2)}, queue.Outgoing{Body: body(3), Delay: delays[3]})
	var last time.Duration
	for end := start.Add(delays[1] + r.o.Slack); len(delays) > 0; {
		ms := r.receive(queue.MaxBatch, time.Second, time.Minute)
		took, latest := time.Since(start), last
		for _, m := range ms {
			for n, delay := range delays {
				if !bytes.Equal(m.Body, body(n)) {
					continue
				}
				delete(delays, n)
				if latest = max(latest, delay); took < delay-100*time.Millisecond || delay < last {
					r.Errorf("received %s after %s, and after one of %s", m.Body, took, last)
				}
			}
			r.delete(m.Receipt)
		}
		if last = latest; time.Now().After(end) {
			r.Fatalf("not within %s: %v", time.Since(start), delays)
		}
	}
}

func testLongPollWakesEarly(r *rig) {
	type answer struct {
		ms  []queue.Message
		err error
		at  time.Time
	}
	got := make(chan answer, 1)
	go func() {
		ms, err := r.q.Receive(r.Context(), r.name, 1, queue.MaxWait, time.Minute)
		got <- answer{ms, err, time.Now()}
	}()
	time.Sleep(200 * time.Millisecond) // engines far away have no other sign that a receive waits
	sent := time.Now()
	r.send(queue.Outgoing{Body: body(1)})
	a := <-got
	if a.err != nil || len(a.ms) != 1 {
		r.Fatalf("Receive gave %d messages, %v", len(a.ms), a.err)
	}
	if took := a.at.Sub(sent); took > r.o.Slack {
		r.Errorf("the waiting receive ended %s after the send", took)
	}
	r.delete(a.ms[0].Receipt)
}

func testLongPollSeesDelayed(r *rig) {
	start := time.Now()
	r.send(queue.Outgoing{Body: body(1), Delay: time.Second})
	ms := r.receive(1, queue.MaxWait, time.Minute)
	if took := time.Since(start); len(ms) != 1 || took > time.Second+r.o.Slack {
		r.Fatalf("%d messages after %s, want the one delayed by 1s", len(ms), took)
	}
	r.delete(ms[0].Receipt)
}

func testLongPollEndsWithContext(r *rig) {
	ctx, cancel := context.WithTimeout(r.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	ms, err := r.q.Receive(ctx, r.name, 1, queue.MaxWait, time.Minute)
	if err == nil || len(ms) > 0 {
		r.Errorf("Receive gave %d messages, %v; want the context's error", len(ms), err)
	}
	if took := time.Since(start); took > r.o.Slack {
		r.Errorf("Receive ended %s after a context of 300ms", took)
	}
}

func testVisibility(r *rig) {
	r.send(queue.Outgoing{Body: body(1)})
	began := time.Now()
	first := r.one(time.Second)
	second := r.next()
	if took := time.Since(began); took < 900*time.Millisecond {
		r.Errorf("a message of a second's visibility came again after %s", took)
	}
	if second.ID != first.ID || second.Receives != 2 || second.Receipt == first.Receipt {
		r.Errorf("first delivery %+v, second %+v", first, second)
	}
	r.delete(second.Receipt)
}

func testExtend(r *rig) {
	r.send(queue.Outgoing{Body: body(1)})
	m := r.one(2 * time.Second)
	if err := r.q.Extend(r.Context(), r.name, m.Receipt, time.Minute); err != nil {
		r.Fatalf("Extend: %v", err)
	}
	if ms := r.receive(1, 3*time.Second, time.Minute); len(ms) > 0 {
		r.Errorf("received a message whose visibility time was extended")
	}
	r.delete(m.Receipt)
}

func testExtendZero(r *rig) {
	r.send(queue.Outgoing{Body: body(1)})
	m := r.one(time.Minute)
	if err := r.q.Extend(r.Context(), r.name, m.Receipt, 0); err != nil {
		r.Fatalf("Extend: %v", err)
	}
	again := r.one(time.Minute)
	if again.ID != m.ID || again.Receives != 2 {
		r.Errorf("first %+v, then %+v", m, again)
	}
	r.delete(again.Receipt)
}

func testStaleReceipt(r *rig) {
	r.send(queue.Outgoing{Body: body(1)})
	first := r.one(time.Second)
	second := r.one(time.Minute)
	r.delete(second.Receipt)
	// Engines differ in whether they tell; none may fail otherwise.
	if err := r.q.Extend(r.Context(), r.name, first.Receipt, time.Second); err != nil && !errors.Is(err, queue.ErrStaleReceipt) {
		r.Errorf("Extend with a stale receipt: %v", err)
	}
	if err := r.q.Delete(r.Context(), r.name, first.Receipt, second.Receipt); err != nil {
		r.Errorf("Delete with stale receipts: %v", err)
	}
	if ms := r.receive(1, 2*time.Second, time.Minute); len(ms) > 0 {
		r.Error("a deleted message came back")
	}
}

func testDeadAfterMaxReceives(r *rig) {
	r.send(queue.Outgoing{Body: body(7)})
	for i := range queue.MaxReceives {
		m := r.one(time.Second)
		if m.Receives != i+1 {
			r.Fatalf("delivery %d says %d", i+1, m.Receives)
		}
		if i < queue.MaxReceives-1 {
			if err := r.q.Extend(r.Context(), r.name, m.Receipt, 0); err != nil {
				r.Fatalf("Extend: %v", err)
			}
		}
	}
	d := r.dead()
	if !bytes.Equal(d.Body, body(7)) || d.Reason != "max_receives" || d.ID == "" || time.Since(d.At) > time.Minute {
		r.Errorf("dead letter %+v (body %s)", d, d.Body)
	}
	r.dropDead(d)
}

func (r *rig) dropDead(d queue.DeadLetter) {
	r.Helper()
	if err := r.q.DropDead(r.Context(), d.ID); err != nil {
		r.Fatalf("DropDead: %v", err)
	}
	letters, err := r.q.TakeDead(r.Context(), queue.MaxBatch)
	if err != nil {
		r.Fatalf("TakeDead: %v", err)
	}
	if slices.ContainsFunc(letters, func(l queue.DeadLetter) bool { return l.Queue == r.name }) {
		r.Error("a dropped dead letter was handed over again")
	}
	r.none()
}

func testBury(r *rig) {
	r.send(queue.Outgoing{Body: body(3)})
	m := r.one(time.Second)
	if err := r.q.Bury(r.Context(), r.name, m, "unknown kind"); err != nil {
		r.Fatalf("Bury: %v", err)
	}
	d := r.dead()
	if !bytes.Equal(d.Body, body(3)) || d.Reason != "unknown kind" || time.Since(d.At) > time.Minute {
		r.Errorf("dead letter %+v (body %s)", d, d.Body)
	}
	r.dropDead(d)
	if ms := r.receive(1, 2*time.Second, time.Minute); len(ms) > 0 {
		r.Error("a buried message came back")
	}
}

func testNoQueue(r *rig) {
	const none = "test-never-made"
	ctx := r.Context()
	calls := map[string]func() error{
		"Send":    func() error { return r.q.Send(ctx, none, queue.Outgoing{Body: body(1)}) },
		"Receive": func() error { _, err := r.q.Receive(ctx, none, 1, 0, time.Minute); return err },
		"Delete":  func() error { return r.q.Delete(ctx, none, "x") },
		"Extend":  func() error { return r.q.Extend(ctx, none, "x", time.Second) },
		"Depth":   func() error { _, err := r.q.Depth(ctx, none); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, queue.ErrNoQueue) {
			r.Errorf("%s on a queue that was never made: %v", name, err)
		}
	}
	if err := r.q.Remove(ctx, none); err != nil {
		r.Errorf("Remove of a queue that was never made: %v", err)
	}
}

func testEnsureRemove(r *rig) {
	r.send(queue.Outgoing{Body: body(1)})
	r.ensure(r.name)
	r.delete(r.one(time.Minute).Receipt)
	if err := r.q.Remove(r.Context(), r.name); err != nil {
		r.Fatalf("Remove: %v", err)
	}
	// SQS takes up to a minute to delete a queue.
	for end := time.Now().Add(time.Minute + r.o.Slack); ; {
		err := r.q.Send(r.Context(), r.name, queue.Outgoing{Body: body(2)})
		if errors.Is(err, queue.ErrNoQueue) {
			return
		}
		if err != nil || time.Now().After(end) {
			r.Fatalf("Send to a removed queue: %v", err)
		}
		time.Sleep(time.Second)
	}
}

func testQueuesAreApart(r *rig) {
	other := r.name + "-b"
	r.ensure(other)
	if err := r.q.Send(r.Context(), other, queue.Outgoing{Body: body(1)}); err != nil {
		r.Fatalf("Send: %v", err)
	}
	if ms := r.receive(1, time.Second, time.Minute); len(ms) > 0 {
		r.Error("received a message of another queue")
	}
}

func testLimits(r *rig) {
	ctx := r.Context()
	big := []byte(strings.Repeat("x", queue.MaxBodyBytes))
	r.send(queue.Outgoing{Body: big})
	m := r.one(time.Minute)
	if !bytes.Equal(m.Body, big) {
		r.Errorf("a body of the largest size came back with %d bytes", len(m.Body))
	}
	r.delete(m.Receipt)
	tooMany := make([]queue.Outgoing, queue.MaxBatch+1)
	for i := range tooMany {
		tooMany[i].Body = body(i)
	}
	send := func(ms ...queue.Outgoing) func() error {
		return func() error { return r.q.Send(ctx, r.name, ms...) }
	}
	receive := func(max int, wait, visibility time.Duration) func() error {
		return func() error { _, err := r.q.Receive(ctx, r.name, max, wait, visibility); return err }
	}
	calls := map[string]func() error{
		"send nothing":             send(),
		"send too many":            send(tooMany...),
		"send empty body":          send(queue.Outgoing{}),
		"send large body":          send(queue.Outgoing{Body: append(big, 'x')}),
		"send a zero byte":         send(queue.Outgoing{Body: []byte("a\x00")}),
		"send no text":             send(queue.Outgoing{Body: []byte("\xff\xfe")}),
		"send long delay":          send(queue.Outgoing{Body: body(1), Delay: queue.MaxDelay + time.Second}),
		"send negative delay":      send(queue.Outgoing{Body: body(1), Delay: -time.Second}),
		"send one bad of two":      send(queue.Outgoing{Body: body(1)}, queue.Outgoing{}),
		"receive none":             receive(0, 0, time.Minute),
		"receive too many":         receive(queue.MaxBatch+1, 0, time.Minute),
		"receive long wait":        receive(1, queue.MaxWait+time.Second, time.Minute),
		"receive negative wait":    receive(1, -time.Second, time.Minute),
		"receive no visibility":    receive(1, 0, 0),
		"receive long visibility":  receive(1, 0, queue.MaxVisibility+time.Second),
		"delete nothing":           func() error { return r.q.Delete(ctx, r.name) },
		"delete too many":          func() error { return r.q.Delete(ctx, r.name, make([]string, queue.MaxBatch+1)...) },
		"extend by negative":       func() error { return r.q.Extend(ctx, r.name, m.Receipt, -time.Second) },
		"extend too long":          func() error { return r.q.Extend(ctx, r.name, m.Receipt, queue.MaxVisibility+time.Second) },
		"make queue without name":  func() error { return r.q.Ensure(ctx, "") },
		"take less than one dead":  func() error { _, err := r.q.TakeDead(ctx, 0); return err },
		"make queue with long one": func() error { return r.q.Ensure(ctx, strings.Repeat("q", queue.MaxNameBytes+1)) },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, queue.ErrInvalid) {
			r.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	r.none()
}

func testOneReceiverAtATime(r *rig) {
	const n, receivers = 40, 8
	for i := range n {
		r.send(queue.Outgoing{Body: body(i)})
	}
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range receivers {
		wg.Go(func() {
			for {
				ms, err := r.q.Receive(r.Context(), r.name, 3, time.Second, 5*time.Minute)
				if err != nil {
					r.Errorf("Receive: %v", err)
					return
				}
				if len(ms) == 0 {
					return
				}
				mu.Lock()
				for _, m := range ms {
					seen[m.ID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	repeats := 0
	for _, count := range seen {
		repeats += count - 1
	}
	if len(seen) != n || repeats > 0 && !r.o.Repeats {
		r.Errorf("received %d messages, %d of them twice at once; sent %d", len(seen), repeats, n)
	}
}

// testHammer has receivers that fail now and then: every message is handled at
// least once, and each is deleted in the end.
func testHammer(r *rig) {
	const senders, receivers = 4, 6
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
	defer cancel()
	var sending, receiving sync.WaitGroup
	for s := range senders {
		sending.Go(func() {
			for i := s; i < r.o.Messages; i += senders {
				if err := r.q.Send(ctx, r.name, queue.Outgoing{Body: body(i)}); err != nil {
					r.Errorf("Send: %v", err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	handled := map[string]bool{}
	done := make(chan struct{})
	handle := func(ms []queue.Message) []string {
		mu.Lock()
		defer mu.Unlock()
		var receipts []string
		for i, m := range ms {
			if m.Receives == 1 && i == 3 {
				continue // a receiver that died: the message must come again
			}
			if !handled[string(m.Body)] {
				handled[string(m.Body)] = true
				if len(handled) == r.o.Messages {
					close(done)
				}
			}
			receipts = append(receipts, m.Receipt)
		}
		return receipts
	}
	for range receivers {
		receiving.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-done:
					return
				default:
				}
				ms, err := r.q.Receive(ctx, r.name, queue.MaxBatch, time.Second, 2*time.Second)
				if err != nil {
					r.Errorf("Receive: %v", err)
					return
				}
				if receipts := handle(ms); len(receipts) > 0 {
					if err := r.q.Delete(ctx, r.name, receipts...); err != nil {
						r.Errorf("Delete: %v", err)
						return
					}
				}
			}
		})
	}
	sending.Wait()
	receiving.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(handled) != r.o.Messages {
		r.Errorf("handled %d of %d messages", len(handled), r.o.Messages)
	}
}
