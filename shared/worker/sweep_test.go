package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
	"github.com/opsplane/opsplane/shared/sweep"
	"github.com/opsplane/opsplane/shared/worker"
)

// wake wakes the sweep with messages, which it must take all.
func (p *plane) wake(bodies ...string) {
	p.t.Helper()
	out, err := invoke(context.Background(), p.sweepFunction().Handle, fromQueue(bodies...))
	if err != nil || out != none {
		p.t.Fatalf("answer %s, %v", out, err)
	}
}

// tick is a minute's tick, which must do all of it.
func (p *plane) tick(at time.Time) {
	p.t.Helper()
	if out, err := invoke(context.Background(), p.sweepFunction().Handle, tickAt(at)); err != nil || out != "null" {
		p.t.Fatalf("answer %s, %v", out, err)
	}
}

// rung are how long from now the wake-ups ring that were sent since the last
// call, all sent just now.
func (p *plane) rung() []time.Duration {
	p.wakes.mu.Lock()
	defer p.wakes.mu.Unlock()
	var out []time.Duration
	for _, m := range p.wakes.sent {
		out = append(out, m.Delay)
	}
	p.wakes.sent = nil
	return out
}

// expiring admits a drain that has until then.
func (p *plane) expiring(node int, in time.Duration) string {
	p.t.Helper()
	return p.create(map[string]any{"type": "node.drain", "target": fmt.Sprintf("node:n%d", node), "reason": "firmware",
		"deadline": p.now().Add(in).Format(time.RFC3339Nano)})
}

// TestSweepEvents: both sources as AWS sends them, and none else.
func TestSweepEvents(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for name, want := range map[string]string{"tick.json": "null", "wake.json": none} {
		if out, err := invoke(t.Context(), p.sweepFunction().Handle, fixture(t, name)); err != nil || out != want {
			t.Errorf("%s: answer %s, %v", name, out, err)
		}
	}
	for name, bad := range map[string]string{
		"nothing":           `null`,
		"empty":             `{}`,
		"a list":            `[]`,
		"text":              `"tick"`,
		"no records":        `{"Records":[]}`,
		"another source":    `{"Records":[{"eventSource":"aws:sns","messageId":"1","body":"{}"}]}`,
		"mixed sources":     `{"Records":[{"eventSource":"aws:sqs","messageId":"1"},{"eventSource":"aws:s3","messageId":"2"}]}`,
		"another event":     `{"source":"aws.ec2","detail-type":"Scheduled Event","time":"2026-07-01T12:00:00Z"}`,
		"another type":      `{"source":"aws.events","detail-type":"AWS API Call via CloudTrail"}`,
		"two at once":       `{"source":"aws.events","detail-type":"Scheduled Event","Records":[{"eventSource":"aws:sqs","messageId":"1"}]}`,
		"a time of no kind": `{"source":"aws.events","detail-type":"Scheduled Event","time":"noon"}`,
		"a stream":          string(fixture(t, "stream.json")),
	} {
		if out, err := invoke(t.Context(), p.sweepFunction().Handle, []byte(bad)); !errors.Is(err, worker.ErrUnknownEvent) {
			t.Errorf("%s: answer %s, %v", name, out, err)
		}
	}
}

// TestWakeUp: an operation that nobody takes is rung again and ends at its
// deadline; wake-ups that come late, twice or for nothing do no harm.
func TestWakeUp(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.expiring(0, 25*time.Second)
	p.settle()
	if got := p.rung(); len(got) != 1 || got[0] != 10*time.Second {
		t.Fatalf("its creation rang after %v", got)
	}
	p.bells()
	p.wake(wakeFor(p.now().Add(-time.Hour)), wakeFor(p.now()))
	if n := len(p.bells()); n != 0 {
		t.Fatalf("%d doorbells before they are due", n)
	}
	p.rung()
	p.pass(10 * time.Second)
	p.wake(wakeFor(p.now()), wakeFor(p.now()))
	p.wake(wakeFor(p.now()))
	if got := p.bells(); got[op] != 1 {
		t.Errorf("doorbells %v", got)
	}
	if got := p.rung(); len(got) != 1 || got[0] != 15*time.Second { // its next doorbell would be due later
		t.Errorf("the chain rings after %v, want its deadline", got)
	}
	p.pass(15 * time.Second)
	p.wake(wakeFor(p.now()))
	if o := p.want(op, operation.TimedOut); o.State.FinishedAt == nil || !o.State.FinishedAt.Equal(p.now()) {
		t.Errorf("finished %v", o.State.FinishedAt)
	}
	p.settle()
	if got := p.transitions(op); !strings.HasSuffix(got, "timed_out") {
		t.Errorf("stream: %s", got)
	}
	p.wake(wakeFor(p.now()))
	p.rung()
	p.wake(wakeFor(p.now()))
	if got := p.rung(); len(got) != 0 {
		t.Errorf("the chain goes on for nothing: %v", got)
	}
}

// TestWakeUpLost: the tick sees what no wake-up told, and takes up the chain.
func TestWakeUpLost(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.wakes.err = queue.ErrUnavailable
	first, second := p.expiring(0, 5*time.Second), p.expiring(1, 90*time.Second)
	p.settle()
	if len(p.rung()) != 0 {
		t.Fatal("it rang")
	}
	p.wakes.err = nil
	p.pass(60 * time.Second)
	p.fresh()
	p.tick(p.now())
	p.want(first, operation.TimedOut)
	p.want(second, operation.Dispatched)
	rings := p.rung()
	if len(rings) == 0 || slices.Min(rings) > 30*time.Second {
		t.Fatalf("the chain rings after %v", rings)
	}
	for range 10 { // each wake-up rings the next: to the deadline, and no further
		if len(rings) == 0 {
			break
		}
		p.pass(slices.Min(rings))
		p.wake(wakeFor(p.now()))
		rings = append(p.rung(), rings[:0]...)
		if o, err := p.store.Load(t.Context(), second); err != nil {
			t.Fatal(err)
		} else if o.State.Phase.Terminal() {
			if late := p.now().Sub(t0.Add(90 * time.Second)); late < 0 || late > 1500*time.Millisecond {
				t.Errorf("ended %s late", late)
			}
			return
		}
	}
	p.want(second, operation.TimedOut)
}

// TestWakeUpEarly: by less than a second it is waited for, by more it is rung
// again.
func TestWakeUpEarly(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.started = time.Now()
	op := p.expiring(0, 900*time.Millisecond)
	due := p.want(op, operation.Pending).State.Deadline
	p.wake(wakeFor(due))
	p.want(op, operation.TimedOut)

	p = setup(t)
	op = p.expiring(0, 8*time.Second)
	p.rung()
	p.fresh()
	p.pass(2 * time.Second)
	p.wake(wakeFor(t0.Add(8 * time.Second)))
	p.want(op, operation.Pending)
	if got := p.rung(); len(got) != 1 || got[0] != 6*time.Second {
		t.Errorf("rings after %v", got)
	}
}

// TestWakeUpForeign: what is no wake-up is put aside, and shown by the next tick.
func TestWakeUpForeign(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.expiring(0, 5*time.Second)
	p.settle()
	p.pass(6 * time.Second)
	p.no(p.queue.Send(t.Context(), sweep.WakeQueue, queue.Outgoing{Body: []byte("hello")}))
	ms, err := p.queue.Receive(t.Context(), sweep.WakeQueue, 1, 0, time.Minute)
	p.no(err)
	e := fromQueue(string(ms[0].Body), wakeFor(p.now()))
	e.Records[0].MessageId, e.Records[0].ReceiptHandle = ms[0].ID, ms[0].Receipt
	if out, err := invoke(t.Context(), p.sweepFunction().Handle, e); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	p.want(op, operation.TimedOut)
	p.tick(p.now())
	if ls := p.letters(); len(ls) != 1 || ls[0].Queue != sweep.WakeQueue || ls[0].Body != "hello" || !strings.HasPrefix(ls[0].Reason, "unreadable") {
		t.Errorf("letters %+v", ls)
	}
	// One that cannot be put aside comes again, alone.
	e = fromQueue("hello", wakeFor(p.now()))
	h := p.sweepFunction()
	h.Sweep.Queue = noGrave{h.Sweep.Queue}
	out, err := invoke(t.Context(), h.Handle, e)
	if err != nil || !slices.Equal(p.failures(out), []string{"message-0"}) {
		t.Errorf("answer %s, %v", out, err)
	}
}

// noGrave is a queue that buries nothing.
type noGrave struct{ queue.Admin }

func (noGrave) Bury(context.Context, string, queue.Message, string) error {
	return queue.ErrUnavailable
}

// TestSweepThrottled: whatever the ledger refuses, the wake-up is not lost: it is
// rung again, or comes again when that fails too.
func TestSweepThrottled(t *testing.T) {
	t.Parallel()
	t.Run("what is due cannot be read", func(t *testing.T) {
		t.Parallel()
		p := setup(t)
		op := p.expiring(0, 5*time.Second)
		p.pass(6 * time.Second)
		p.rung()
		p.tap.due = func() error { return errThrottled }
		p.wake(wakeFor(p.now()))
		if got := p.rung(); len(got) != 1 || got[0] != 5*time.Second {
			t.Errorf("rings again after %v", got)
		}
		if _, err := invoke(t.Context(), p.sweepFunction().Handle, tickAt(p.now())); !errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("the tick says %v", err)
		}
		p.wakes.err = queue.ErrUnavailable
		p.fresh()
		out, err := invoke(t.Context(), p.sweepFunction().Handle, fromQueue(wakeFor(p.now()), wakeFor(p.now())))
		if err != nil || len(p.failures(out)) != 2 {
			t.Errorf("answer %s, %v", out, err)
		}
		p.tap.reset()
		p.wakes.err = nil
		p.wake(wakeFor(p.now()))
		p.want(op, operation.TimedOut)
	})
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprintf("each commit in turn, applied %v", applied), func(t *testing.T) {
			t.Parallel()
			for at, met := 1, true; met; at++ {
				p := setup(t)
				ops := []string{p.expiring(0, 5*time.Second), p.expiring(1, 6*time.Second)}
				p.settle()
				p.pass(10 * time.Second)
				p.rung()
				p.tap.reset()
				met = false
				fail := func(n int, _ []ledger.Write) error {
					if n != at {
						return nil
					}
					met = true
					return errThrottled
				}
				if applied {
					p.tap.after = fail
				} else {
					p.tap.commit = fail
				}
				p.wake(wakeFor(p.now()))
				if met && len(p.rung()) == 0 {
					t.Errorf("commit %d failed and nothing rings again", at)
				}
				p.tap.reset()
				p.fresh()
				p.pass(5 * time.Second)
				p.wake(wakeFor(p.now()))
				p.settle()
				for _, op := range ops {
					p.want(op, operation.TimedOut)
					if got := p.transitions(op); got != way+" timed_out" {
						t.Errorf("commit %d: stream %s", at, got)
					}
				}
				p.queue.Close()
				p.db.Close()
			}
		})
	}
}

// TestTick: what nobody rings for. A part that fails leaves the others alone.
func TestTick(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	p.stream() // its records are lost
	notice := `{"requestContext":{"condition":"RetryAttemptsExhausted"},"DDBStreamBatchInfo":{"shardId":"shardId-1","batchSize":2}}`
	p.no(p.queue.Send(t.Context(), sweep.GivenUpQueue, queue.Outgoing{Body: []byte(notice)}))
	p.tap.due = func() error { return errThrottled }
	if _, err := invoke(t.Context(), p.sweepFunction().Handle, tickAt(p.now())); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("the tick says %v", err)
	}
	p.tap.reset()
	if p.want(op, operation.Dispatched); p.transitions(op) != way || p.bells()[op] != 1 {
		t.Errorf("stream: %s", p.transitions(op))
	}
	var told map[string]any
	if p.no(json.Unmarshal(p.metrics.Bytes(), &told)); told["StreamGivenUp"] != 1.0 || told["DeadLetters"] != 0.0 {
		t.Errorf("metrics %v", told)
	}
	ls := p.letters()
	if len(ls) != 1 || ls[0].Queue != sweep.GivenUpQueue || ls[0].Body != notice {
		t.Errorf("letters %+v", ls)
	}
	if left := p.take(sweep.GivenUpQueue); len(left) != 0 {
		t.Errorf("%d notices are left", len(left))
	}
	p.tick(p.now())
	if ls := p.letters(); len(ls) != 1 {
		t.Errorf("letters %+v", ls)
	}
}

// TestTickMendsNotices: a notice stays until all that it stands for is mended.
func TestTickMendsNotices(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	p.stream()
	p.no(p.queue.Send(t.Context(), sweep.GivenUpQueue, queue.Outgoing{Body: []byte("{}")}))
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, "op#") {
			return errThrottled
		}
		return nil
	}
	h := p.sweepFunction()
	if n, err := h.Sweep.GivenUp(t.Context(), p.queue); !errors.Is(err, ledger.ErrUnavailable) || n != 0 {
		t.Fatalf("%d, %v", n, err)
	}
	p.tap.reset()
	if n, err := p.queue.Depth(t.Context(), sweep.GivenUpQueue); err != nil || n != 1 {
		t.Fatalf("%d notices, %v", n, err)
	}
	p.want(op, operation.Pending)
}

// TestTickRetains: once an hour, what is past its age is deleted.
func TestTickRetains(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	p.settle()
	_, err := p.store.Update(t.Context(), op, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
		return operation.RequestCancel{By: operation.Actor{ID: "tok_alice", Kind: "token"}, Reason: "no"}, nil, nil
	})
	p.no(err)
	p.settle()
	p.want(op, operation.Cancelled)
	p.pass(retention.Default.Operations + 48*time.Hour)
	h := p.sweepFunction()
	hour := p.now().Truncate(time.Hour)
	for _, tt := range []struct {
		minute time.Duration
		policy retention.Policy
		gone   bool
	}{{1, retention.Default, false}, {0, retention.Policy{}, false}, {0, retention.Default, true}} {
		h.Retention = tt.policy
		if _, err := invoke(t.Context(), h.Handle, tickAt(hour.Add(tt.minute*time.Minute))); err != nil {
			t.Fatal(err)
		}
		if _, err := p.store.Load(t.Context(), op); errors.Is(err, ledger.ErrNotFound) != tt.gone {
			t.Errorf("at minute %d: %v", tt.minute, err)
		}
	}
}

// TestTickMendsLive: a journal that is behind in its stream, and that no record
// will tell of, is published at the next round.
func TestTickMendsLive(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	rs := p.stream()
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, record.StreamPK(p.cluster)) {
			return errLost // and told, and passed over
		}
		return nil
	}
	p.deliver(rs)
	p.deliver(p.stream())
	p.tap.reset()
	if got := p.transitions(op); got != "" {
		t.Fatalf("stream: %s", got)
	}
	p.tick(t0.Add(6 * time.Minute))
	if got := p.transitions(op); got != "" {
		t.Errorf("stream after an ordinary tick: %s", got)
	}
	p.tick(t0.Add(15 * time.Minute))
	if got := p.transitions(op); got != way {
		t.Errorf("stream: %s", got)
	}
	if evs, _, err := event.ReadStream(t.Context(), p.db, p.cluster, 1, 10); err != nil || len(evs) != wayEvents {
		t.Errorf("%d events, %v", len(evs), err)
	}
}

// TestSweepMetrics: what is measured, and by what.
func TestSweepMetrics(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.expiring(0, 5*time.Second)
	p.settle()
	p.pass(7 * time.Second)
	p.wake(wakeFor(p.now()))
	p.tick(p.now())
	p.wake(wakeFor(p.now())) // finds nothing, and says nothing
	lines := strings.Split(strings.TrimSpace(p.metrics.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("metrics %s", p.metrics.String())
	}
	var woken, ticked map[string]any
	p.no(json.Unmarshal([]byte(lines[0]), &woken))
	p.no(json.Unmarshal([]byte(lines[1]), &ticked))
	if woken["SweepDue"] != 1.0 || woken["SweepLateness"] != 2.0 || woken["SweepFailed"] != 0.0 || woken["WakeUps"] != 1.0 || woken["WakeUpsLost"] != 0.0 {
		t.Errorf("woken: %v", woken)
	}
	if ticked["SweepTicks"] != 1.0 || ticked["SweepDue"] != 0.0 || ticked["DeadLetters"] != 0.0 {
		t.Errorf("ticked: %v", ticked)
	}
	for _, line := range lines {
		if strings.Contains(line, "op_") || strings.Contains(line, "clu_") || !strings.Contains(line, `"Dimensions":[["Function","Stage"]]`) {
			t.Errorf("an id is measured by: %s", line)
		}
	}
}

// TestSweepOutOfTime: a function whose time ends hands over what it did not get
// done, and a tick says what it left.
func TestSweepOutOfTime(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.expiring(0, 5*time.Second)
	p.pass(6 * time.Second)
	p.rung()
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Second)) // less than what is spared
	defer cancel()
	if out, err := invoke(ctx, p.sweepFunction().Handle, fromQueue(wakeFor(p.now()))); err != nil || out != none {
		t.Errorf("answer %s, %v", out, err)
	}
	if got := p.rung(); len(got) != 1 || got[0] != 5*time.Second {
		t.Errorf("rings again after %v", got)
	}
	if _, err := invoke(ctx, p.sweepFunction().Handle, tickAt(p.now())); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the tick says %v", err)
	}
	p.want(op, operation.Pending)
	p.wake(wakeFor(p.now()))
	p.want(op, operation.TimedOut)
}
