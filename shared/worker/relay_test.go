package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/opsplane/opsplane/shared/bus"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/worker"
)

// way is how a drain begins whose cluster has no agent, in events.
const (
	way       = "pending dispatched waiting"
	wayEvents = 3
)

// fixture is an event as AWS sends it.
func fixture(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestStreamEvent: a batch as Lambda gives it, of an item that is gone by now.
func TestStreamEvent(t *testing.T) {
	t.Parallel()
	p := setup(t)
	out, err := invoke(t.Context(), p.relayFunction().Handle, fixture(t, "stream.json"))
	if err != nil || out != none {
		t.Errorf("answer %s, %v", out, err)
	}
	if len(p.letters()) != 0 {
		t.Errorf("letters %+v", p.letters())
	}
	for _, bad := range []string{`{}`, `{"Records":[]}`, `{"Records":null}`, `{"source":"aws.events"}`} {
		if out, err := invoke(t.Context(), p.relayFunction().Handle, []byte(bad)); !errors.Is(err, worker.ErrUnknownEvent) {
			t.Errorf("%s: answer %s, %v", bad, out, err)
		}
	}
}

// TestStream: an operation's creation is dispatched, rung for, published and put
// on the bus.
func TestStream(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	p.settle()
	p.want(op, operation.Dispatched)
	if got := p.transitions(op); got != way {
		t.Errorf("stream: %s", got)
	}
	if got := p.bells(); got[op] != 1 {
		t.Errorf("doorbells %v", got)
	}
	if len(p.bus.ids) != wayEvents {
		t.Errorf("on the bus: %v", p.bus.ids)
	}
}

// TestStreamInAnyShape: records that come again, in another order, several
// times, in batches of any size, to processes of any age: nothing is dispatched
// twice, nothing doubled in a stream or missing from it.
func TestStreamInAnyShape(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := setup(t)
		defer func() { p.queue.Close(); p.db.Close() }()
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		var ops []string
		for i := range 3 {
			ops = append(ops, p.drain(i))
		}
		for range 3 {
			p.stream()
			batch := slices.Clone(p.records)
			rnd.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
			batch = append(batch, batch[:rnd.IntN(len(batch)+1)]...)
			for len(batch) > 0 {
				n := 1 + rnd.IntN(len(batch))
				p.deliver(batch[:n])
				batch = batch[n:]
				if rnd.IntN(3) == 0 {
					p.fresh()
				}
			}
		}
		p.settle()
		bells := p.bells()
		for _, op := range ops {
			if p.want(op, operation.Dispatched); p.dispatches(op) != 1 || p.transitions(op) != way || bells[op] < 1 {
				rt.Fatalf("%s: %d dispatches, stream %q, %d doorbells", op, p.dispatches(op), p.transitions(op), bells[op])
			}
		}
		slices.Sort(p.bus.ids)
		if got := len(slices.Compact(p.bus.ids)); got != wayEvents*len(ops) {
			rt.Fatalf("%d events on the bus, want %d", got, wayEvents*len(ops))
		}
	})
}

// TestStreamLooksOnce: an operation is looked at once for all that a process is
// told of it, and its own dispatch is news to nobody.
func TestStreamLooksOnce(t *testing.T) {
	t.Parallel()
	p := setup(t)
	op := p.drain(0)
	created := p.stream()
	p.deliver(created)
	dispatched := p.stream()
	p.tap.reset()
	p.deliver(slices.Concat(created, dispatched))
	if looks := p.tap.looks(op); looks != 0 {
		t.Errorf("%d looks at what was dealt with", looks)
	}
	p.fresh()
	p.tap.reset()
	p.deliver(slices.Concat(created, dispatched))
	if looks := p.tap.looks(op); looks != 1 {
		t.Errorf("%d looks by a process that knows nothing, want 1", looks)
	}
	_, err := p.store.Update(t.Context(), op, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
		return operation.RequestCancel{By: operation.Actor{ID: "tok_alice", Kind: "token"}, Reason: "no"}, nil, nil
	})
	p.no(err)
	p.settle()
	if got := p.transitions(op); got != way+" cancel_requested cancelled" {
		t.Errorf("stream: %s", got)
	}
}

// malformed are records that no engine of ours wrote.
var malformed = map[string]string{
	"null":               `null`,
	"a number":           `7`,
	"a list":             `[]`,
	"empty":              `{}`,
	"another source":     `{"eventID":"x","eventSource":"aws:kinesis","dynamodb":{"SequenceNumber":"77"}}`,
	"no keys":            `{"eventID":"x","eventName":"MODIFY","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","NewImage":{}}}`,
	"keys of a number":   `{"eventID":"x","eventName":"MODIFY","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","Keys":{"pk":{"N":"1"},"sk":{"N":"2"}}}}`,
	"no version":         `{"eventID":"x","eventName":"MODIFY","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","Keys":{"pk":{"S":"op#1"},"sk":{"S":"state"}},"NewImage":{"f":{"N":"1"}}}}`,
	"a version of text":  `{"eventID":"x","eventName":"MODIFY","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","Keys":{"pk":{"S":"op#1"},"sk":{"S":"state"}},"NewImage":{"v":{"S":"one"},"d":{"B":"c2VjcmV0LXZhbHVl"}}}}`,
	"a type unheard of":  `{"eventID":"x","eventName":"MODIFY","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","Keys":{"pk":{"Q":"op#1"}}}}`,
	"a panic":            `{"eventID":"x","eventName":"MODIFY","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","NewImage":{"z":{"BS":[1]}}}}`,
	"an odd event":       `{"eventID":"x","eventName":"MOVE","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","Keys":{"pk":{"S":"op#1"},"sk":{"S":"state"}}}}`,
	"control characters": `{"eventID":"\u0000","eventName":"MODIFY\u202e","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","Keys":{"pk":{"S":"\u0000"},"sk":{"S":""}}}}`,
	"huge":               `{"eventID":"x","eventName":"` + strings.Repeat("M", 100_000) + `","eventSource":"aws:dynamodb","dynamodb":{"SequenceNumber":"77","Keys":{"pk":{"S":"op#1"},"sk":{"S":"` + strings.Repeat("k", 20_000) + `"}}}}`,
}

// TestStreamUnreadable: a record that cannot be read is kept where people see it,
// once, and the rest of its batch goes on.
func TestStreamUnreadable(t *testing.T) {
	t.Parallel()
	for name, bad := range malformed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			before, behind := p.drain(0), p.drain(1)
			rs := p.stream()
			batch := slices.Insert(slices.Clone(rs), 1, json.RawMessage(bad))
			for range 3 { // and comes again
				p.deliver(batch)
				p.pass(time.Second)
			}
			p.settle()
			for _, op := range []string{before, behind} {
				if p.want(op, operation.Dispatched); p.transitions(op) != way {
					t.Errorf("stream: %s", p.transitions(op))
				}
			}
			letters := p.letters()
			if len(letters) != 1 {
				t.Fatalf("%d letters are kept", len(letters))
			}
			l := letters[0]
			if !operation.CleanText(l.Reason) || !operation.CleanText(l.Body) {
				t.Errorf("the letter is no clean text: %q", l)
			}
			if l.Queue != worker.StreamQueue || !strings.HasPrefix(l.Reason, "unreadable: ") || l.Body == "" || !l.At.Equal(t0) || len(l.Body)+len(l.Reason) > 12<<10 {
				t.Errorf("letter %+v", l)
			}
			if strings.Contains(l.Body, "c2VjcmV0") || strings.Contains(l.Reason, "c2VjcmV0") {
				t.Errorf("the letter shows an item's value: %+v", l)
			}
			if strings.Contains(bad, `"77"`) && !strings.Contains(l.Body, "77") {
				t.Errorf("the letter does not name the record: %s", l.Body)
			}
			evs, _, err := event.ReadStream(t.Context(), p.db, event.PlaneStream, 1, 100)
			p.no(err)
			if len(evs) != 1 || evs[0].Type != event.TypeDeadLetter || !strings.Contains(string(evs[0].Detail), l.ID) {
				t.Errorf("events %+v", evs)
			}
			if !strings.Contains(p.metrics.String(), `"StreamUnreadable":1`) {
				t.Errorf("metrics %s", p.metrics.String())
			}
		})
	}
}

// TestStreamCannotKeep: an unreadable record that cannot be kept either must
// come again; the others need not.
func TestStreamCannotKeep(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ops := []string{p.drain(0), p.drain(1)}
	batch := slices.Insert(p.stream(), 1, json.RawMessage(malformed["no version"]))
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, "dlq#") {
			return errThrottled
		}
		return nil
	}
	out, err := invoke(t.Context(), p.relayFunction().Handle, worker.StreamEvent{Records: batch})
	if err != nil || !slices.Equal(p.failures(out), []string{"77"}) {
		t.Fatalf("answer %s, %v", out, err)
	}
	for _, op := range ops {
		p.want(op, operation.Dispatched)
	}
	p.tap.reset()
	p.deliver(batch[1:])
	if len(p.letters()) != 1 {
		t.Errorf("letters %+v", p.letters())
	}
	// One that says nothing of where it stands leaves only the whole batch.
	p.tap.commit = func(_ int, ws []ledger.Write) error { return errThrottled }
	if out, err := invoke(t.Context(), p.relayFunction().Handle, worker.StreamEvent{Records: []json.RawMessage{json.RawMessage(`{}`)}}); err == nil {
		t.Errorf("answer %s", out)
	}
}

// begun checks that each operation was dispatched and published, once, and that
// its doorbell rings: at the latest by the sweep, ten seconds later, when it was
// lost between the commit and the queue.
func (p *plane) begun(when string, ops []string) {
	p.t.Helper()
	for _, op := range ops {
		if p.want(op, operation.Dispatched); p.dispatches(op) != 1 || p.transitions(op) != way {
			p.t.Errorf("%s: %d dispatches, stream %q", when, p.dispatches(op), p.transitions(op))
		}
	}
	first := p.bells()
	p.pass(11 * time.Second)
	if out, err := invoke(context.Background(), p.sweepFunction().Handle, fromQueue(wakeFor(p.now()))); err != nil || out != none {
		p.t.Errorf("%s: the wake-up was answered %s, %v", when, out, err)
	}
	again := p.bells()
	for _, op := range ops {
		if first[op]+again[op] < 1 {
			p.t.Errorf("%s: %s never rang", when, op)
		}
	}
}

// TestStreamThrottled: at each commit in turn the ledger is unavailable, before
// it or behind it. The mapping goes on from the record that the function names.
func TestStreamThrottled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err     error
		applied bool
	}{{errThrottled, false}, {errThrottled, true}, {ledger.ErrUnknown, false}, {ledger.ErrUnknown, true}} {
		t.Run(fmt.Sprintf("%v, applied %v", tt.err, tt.applied), func(t *testing.T) {
			t.Parallel()
			for at, met := 1, true; met; at++ {
				p := setup(t)
				var ops []string
				for i := range 3 {
					ops = append(ops, p.drain(i))
				}
				rs := p.stream()
				p.tap.reset()
				met = false
				fail := func(n int, _ []ledger.Write) error {
					if n != at {
						return nil
					}
					met = true
					return tt.err
				}
				if tt.applied {
					p.tap.after = fail
				} else {
					p.tap.commit = fail
				}
				if calls := p.mapping(rs); met != (calls > 1) {
					t.Errorf("commit %d failed: %v; the function was called %d times", at, met, calls)
				}
				p.tap.reset()
				p.settle()
				p.begun(fmt.Sprintf("commit %d", at), ops)
				if !met && at < 5 {
					t.Fatalf("only %d commits", at)
				}
				p.queue.Close()
				p.db.Close()
			}
		})
	}
}

// TestStreamKilled: the function's time ends behind each commit in turn; its
// batch goes to another process.
func TestStreamKilled(t *testing.T) {
	t.Parallel()
	for at, met := 1, true; met; at++ {
		p := setup(t)
		var ops []string
		for i := range 3 {
			ops = append(ops, p.drain(i))
		}
		rs := p.stream()
		ctx, kill := context.WithCancel(t.Context())
		p.tap.reset()
		met = false
		p.tap.after = func(n int, _ []ledger.Write) error {
			if n == at {
				met = true
				kill()
			}
			return ctx.Err()
		}
		_, _ = invoke(ctx, p.relayFunction().Handle, worker.StreamEvent{Records: rs}) // nobody hears the answer of a killed one
		kill()
		p.tap.reset()
		p.fresh()
		p.deliver(rs)
		p.settle()
		p.begun(fmt.Sprintf("commit %d", at), ops)
		if evs, _, err := event.ReadStream(t.Context(), p.db, p.cluster, 1, 100); err != nil || len(evs) < 3*wayEvents {
			t.Errorf("%d events, %v", len(evs), err)
		}
		p.queue.Close()
		p.db.Close()
	}
}

// TestStreamWithoutABus: a bus that is down holds nothing up; the tick puts on
// it what was left.
func TestStreamWithoutABus(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.bus.err = bus.ErrUnavailable
	op := p.drain(0)
	p.settle()
	p.want(op, operation.Dispatched)
	if !strings.Contains(p.metrics.String(), `"BusLate":1`) {
		t.Errorf("metrics %s", p.metrics.String())
	}
	p.bus.err = nil
	tick := func() {
		t.Helper()
		if _, err := invoke(t.Context(), p.sweepFunction().Handle, tickAt(p.now())); err != nil {
			t.Fatal(err)
		}
	}
	p.pass(10 * time.Second)
	if tick(); len(p.bus.ids) != 0 {
		t.Errorf("the tick was in relay's way: %v", p.bus.ids)
	}
	p.pass(time.Minute)
	if tick(); len(p.bus.ids) < wayEvents {
		t.Errorf("on the bus: %v", p.bus.ids)
	}
	ids := slices.Clone(p.bus.ids)
	p.pass(time.Minute)
	p.settle()
	tick()
	var evs []string
	for _, stream := range []string{p.cluster, event.PlaneStream} {
		es, _, err := event.ReadStream(t.Context(), p.db, stream, 1, 100)
		p.no(err)
		for _, e := range es {
			evs = append(evs, e.ID)
		}
	}
	slices.Sort(evs)
	slices.Sort(p.bus.ids)
	if diff := cmp.Diff(evs, p.bus.ids); diff != "" {
		t.Errorf("%d were on the bus before; events and bus differ: %s", len(ids), diff)
	}
}

// TestStreamPoison: an operation that can be neither dispatched nor published
// holds up none of the others.
func TestStreamPoison(t *testing.T) {
	t.Parallel()
	p := setup(t)
	bad, good := p.drain(0), p.drain(1)
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, record.OperationPK(bad)) {
			return errLost
		}
		return nil
	}
	p.deliver(p.stream())
	p.settle()
	p.want(bad, operation.Pending)
	if p.want(good, operation.Dispatched); p.transitions(good) != way || p.transitions(bad) != "" {
		t.Errorf("streams: %q, %q", p.transitions(good), p.transitions(bad))
	}
	p.tap.reset()
	p.pass(11 * time.Second)
	if _, err := invoke(t.Context(), p.sweepFunction().Handle, tickAt(p.now())); err != nil {
		t.Fatal(err)
	}
	p.settle()
	if p.want(bad, operation.Dispatched); p.transitions(bad) != way {
		t.Errorf("stream: %q", p.transitions(bad))
	}
}

// TestStreamUnreadableItem: an operation of which an item cannot be read, as of a
// newer version that was taken back, holds up none of the others.
func TestStreamUnreadableItem(t *testing.T) {
	t.Parallel()
	for _, sk := range []string{"state", "spec", "pub"} {
		t.Run(sk, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			bad, good := p.drain(0), p.drain(1)
			records := p.stream()
			key := ledger.Key{PK: record.OperationPK(bad), SK: sk}
			p.no(p.db.Commit(t.Context(), ledger.Write{Item: ledger.Item{Key: key, Data: []byte(`[1]`)}, Expect: ledger.AnyVersion}))
			p.fresh()
			out, err := invoke(t.Context(), p.relayFunction().Handle, worker.StreamEvent{Records: records})
			if err != nil || out != none {
				t.Fatalf("answer %s, %v", out, err)
			}
			p.settle()
			if p.want(good, operation.Dispatched); p.transitions(good) != way || p.transitions(bad) != "" {
				t.Errorf("streams: %q, %q", p.transitions(good), p.transitions(bad))
			}
		})
	}
}
