package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// notices are those of records given up, which come again until they are deleted.
type notices struct {
	queue.Receiver
	ids []string
}

func (n *notices) Receive(_ context.Context, _ string, most int, _, _ time.Duration) ([]queue.Message, error) {
	var out []queue.Message
	for _, id := range n.ids[:min(most, len(n.ids))] {
		out = append(out, queue.Message{ID: id, Receipt: id, Body: []byte("{}"), Receives: 1})
	}
	return out, nil
}

func (n *notices) Delete(_ context.Context, _ string, receipts ...string) error {
	n.ids = slices.DeleteFunc(n.ids, func(id string) bool { return slices.Contains(receipts, id) })
	return nil
}

// TestNoticesInSeveralLooks: more operations than one look has time for are mended
// by several. Each goes on where the last one stopped, and a notice that came
// meanwhile has a walk of its own, from the beginning.
func TestNoticesInSeveralLooks(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var ops []string
	for range 450 { // three pages
		op := p.drain(0)
		_, err := p.store.Update(t.Context(), op, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
			return operation.RequestCancel{By: operation.Actor{ID: "someone", Kind: "token"}, Reason: "test"}, nil, nil
		})
		p.no(err)
		ops = append(ops, op)
		p.pass(time.Millisecond)
	}
	published := func() (n int) {
		t.Helper()
		for part := range slices.Chunk(ops, 50) {
			states, pubs, err := p.store.Glances(t.Context(), part)
			p.no(err)
			for _, op := range part {
				if pubs[op].Seq == states[op].Journal.Seq {
					n++
				}
			}
		}
		return n
	}
	q := &notices{ids: []string{"first", "second"}}
	h := p.sweepFunction().Sweep
	for look, want := range []int{200, 400} {
		p.tap.reset()
		p.tap.commit = func(_ int, ws []ledger.Write) error { // time for one page
			if touches(ws, "str#") && published() == want {
				return errThrottled
			}
			return nil
		}
		if n, err := h.GivenUp(t.Context(), q); !errors.Is(err, ledger.ErrUnavailable) || n != 0 {
			t.Fatalf("look %d: %d, %v", look, n, err)
		}
		if got := published(); got != want {
			t.Fatalf("look %d: %d published, want %d", look, got, want)
		}
		q.ids = append(q.ids, "late")
	}
	q.ids = []string{"late", "first", "second"}
	p.tap.reset()
	if n, err := h.GivenUp(t.Context(), q); err != nil || n != 2 {
		t.Fatalf("%d, %v", n, err)
	}
	if n := p.tap.looks(ops[0]); n != 0 {
		t.Errorf("the first was looked at %d times again", n)
	}
	if n := published(); n != len(ops) {
		t.Errorf("%d of %d published", n, len(ops))
	}
	if !slices.Equal(q.ids, []string{"late"}) {
		t.Errorf("left: %v", q.ids)
	}
	p.tap.reset()
	if n, err := h.GivenUp(t.Context(), q); err != nil || n != 1 || len(q.ids) != 0 {
		t.Fatalf("%d, %v, left %v", n, err, q.ids)
	}
	if n := p.tap.looks(ops[0]); n == 0 {
		t.Error("the late notice's walk passed the first by")
	}
	if page, err := p.db.Query(t.Context(), ledger.Query{PK: record.FeedKey("stream-dead#first").PK}); err != nil || len(page.Items) != 0 {
		t.Errorf("left: %d places, %v", len(page.Items), err)
	}
}
