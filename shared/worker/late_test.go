package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// TestPassedOver: an operation whose events could not be published is taken up
// again when nothing tells of it any more: it has ended. As long as that fails it
// is tried again later, and makes the sweep neither fail nor hurry.
func TestPassedOver(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := t.Context()
	bad, good := p.drain(0), p.drain(1)
	for _, op := range []string{bad, good} {
		_, err := p.store.Update(ctx, op, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
			return operation.RequestCancel{By: operation.Actor{ID: "someone", Kind: "token"}, Reason: "test"}, nil, nil
		})
		p.no(err)
	}
	refuse := func(_ int, ws []ledger.Write) error {
		if touches(ws, "str#") && touches(ws, record.OperationPK(bad)) {
			return errLost
		}
		return nil
	}
	p.tap.commit = refuse
	p.deliver(p.stream())
	p.settle()
	if p.want(bad, operation.Cancelled); !strings.HasSuffix(p.transitions(good), "cancelled") || p.transitions(bad) != "" {
		t.Fatalf("streams: %q, %q", p.transitions(good), p.transitions(bad))
	}
	for range 3 {
		p.tick(p.now())
		p.pass(11 * time.Minute)
	}
	p.tap.reset()
	p.tick(p.now())
	if !strings.HasSuffix(p.transitions(bad), "cancelled") {
		t.Errorf("stream: %q", p.transitions(bad))
	}
	q, err := p.db.Query(ctx, ledger.Query{PK: record.OperationPK(bad)})
	p.no(err)
	for _, it := range q.Items {
		if !it.Due.IsZero() {
			t.Errorf("%s is still due", it.Key)
		}
	}
}
