package worker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/relay"
	"github.com/opsplane/opsplane/shared/worker"
)

// plan admits a plan of drains of so many nodes, from the given one on.
func (p *plane) plan(from, nodes int) string {
	p.t.Helper()
	children := make([]map[string]any, nodes)
	for i := range children {
		children[i] = map[string]any{"type": "node.cordon", "target": fmt.Sprintf("node:n%d", from+i), "reason": "wave"}
	}
	return p.create(map[string]any{"type": "plan", "target": "fleet", "reason": "wave",
		"payload": map[string]any{"children": children, "max_in_flight": 2, "max_failures": 0}})
}

func messageFor(op string) string {
	return string(record.Encode(relay.PlaneMessage{Version: 1, Operation: op}))
}

// admitted counts the children of a plan that are under way.
func (p *plane) admitted(plan string) int {
	p.t.Helper()
	kids, err := p.store.Children(p.t.Context(), plan)
	p.no(err)
	n := 0
	for _, k := range kids.Kids {
		if k.Admitted {
			n++
		}
	}
	return n
}

// TestPlaneEvents: messages as Lambda gives them, of an operation that is gone by
// now; and none else.
func TestPlaneEvents(t *testing.T) {
	t.Parallel()
	p := setup(t)
	if out, err := invoke(t.Context(), p.planeFunction().Handle, fixture(t, "plane.json")); err != nil || out != none {
		t.Errorf("answer %s, %v", out, err)
	}
	for _, bad := range []string{`{}`, `{"Records":[]}`, `{"source":"aws.events","detail-type":"Scheduled Event"}`, string(fixture(t, "stream.json"))} {
		if out, err := invoke(t.Context(), p.planeFunction().Handle, []byte(bad)); !errors.Is(err, worker.ErrUnknownEvent) {
			t.Errorf("%.60s: answer %s, %v", bad, out, err)
		}
	}
}

// TestPlane: a plan is brought on by its messages, however often they come.
func TestPlane(t *testing.T) {
	t.Parallel()
	p := setup(t)
	plan := p.plan(0, 3)
	p.settle()
	ms := p.take(relay.PlaneQueue)
	if len(ms) == 0 {
		t.Fatal("relay rang for no plan")
	}
	for range 2 {
		if out, err := invoke(t.Context(), p.planeFunction().Handle, fromQueue(string(ms[0].Body), messageFor(plan), messageFor(plan))); err != nil || out != none {
			t.Fatalf("answer %s, %v", out, err)
		}
	}
	p.want(plan, operation.Running)
	if got := p.admitted(plan); got != 2 {
		t.Errorf("%d children are under way, want 2", got)
	}
}

// TestPlanePoison: messages that nobody can read are put aside, one whose plan
// fails comes again alone, and the others are dealt with.
func TestPlanePoison(t *testing.T) {
	t.Parallel()
	p := setup(t)
	bad, good := p.plan(0, 1), p.plan(1, 1)
	p.tap.commit = func(_ int, ws []ledger.Write) error {
		if touches(ws, record.OperationPK(bad)) {
			return errLost
		}
		return nil
	}
	poison := []string{"hello", "{}", `{"version":9,"operation":"` + good + `"}`, `{"version":1,"operation":"nod_x"}`}
	for _, body := range poison {
		p.no(p.queue.Send(t.Context(), relay.PlaneQueue, queue.Outgoing{Body: []byte(body)}))
	}
	ms, err := p.queue.Receive(t.Context(), relay.PlaneQueue, queue.MaxBatch, 0, time.Minute)
	p.no(err)
	e := fromQueue(messageFor(bad), messageFor(bad), messageFor(good))
	for _, m := range ms {
		r := fromQueue(string(m.Body)).Records[0]
		r.MessageId, r.ReceiptHandle = m.ID, m.Receipt
		e.Records = append(e.Records, r)
	}
	out, err := invoke(t.Context(), p.planeFunction().Handle, e)
	if err != nil || !slices.Equal(p.failures(out), []string{"message-0", "message-1"}) {
		t.Fatalf("answer %s, %v", out, err)
	}
	if p.admitted(good) != 1 || p.admitted(bad) != 0 {
		t.Errorf("%d and %d children are under way", p.admitted(good), p.admitted(bad))
	}
	p.tap.reset()
	p.tick(p.now())
	if ls := p.letters(); len(ls) != len(poison) || ls[0].Queue != relay.PlaneQueue {
		t.Errorf("letters %+v", ls)
	}
	if out, err := invoke(t.Context(), p.planeFunction().Handle, fromQueue(messageFor(bad))); err != nil || out != none || p.admitted(bad) != 1 {
		t.Errorf("answer %s, %v", out, err)
	}
}

// TestPlaneThrottled: at each commit in turn the ledger is unavailable, before it
// or behind it; the message comes again, and its children are admitted once.
func TestPlaneThrottled(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{false, true} {
		for at, met := 1, true; met; at++ {
			p := setup(t)
			plan := p.plan(0, 2)
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
			out, err := invoke(t.Context(), p.planeFunction().Handle, fromQueue(messageFor(plan)))
			if failed := len(p.failures(out)); err != nil || met != (failed == 1) {
				t.Errorf("commit %d, applied %v: answer %s, %v", at, applied, out, err)
			}
			p.tap.reset()
			p.fresh()
			if out, err := invoke(t.Context(), p.planeFunction().Handle, fromQueue(messageFor(plan))); err != nil || out != none {
				t.Errorf("commit %d: again %s, %v", at, out, err)
			}
			ops, _, err := p.store.Operations(t.Context(), record.OperationsBy{Live: true}, record.Span{Limit: 10})
			p.no(err)
			if p.admitted(plan) != 2 || len(ops) != 3 {
				t.Errorf("commit %d, applied %v: %d children are under way, %d operations live", at, applied, p.admitted(plan), len(ops))
			}
			p.queue.Close()
			p.db.Close()
		}
	}
}
