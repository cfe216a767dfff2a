package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/retention"
)

// TestNewerStateHoldsUpNobody: an operation that a newer version wrote, which was
// then taken back, keeps no other from being dispatched by either way to read the
// feed, offered, swept or deleted when it is old; itself it stays as it is.
func TestNewerStateHoldsUpNobody(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := t.Context()
	newer := p.drain(0)
	p.pass(time.Second)
	good, old := p.drain(1), p.drain(2)
	_, err := p.store.Update(ctx, old, func(*operation.Operation) (operation.Change, []ledger.Write, error) {
		return operation.RequestCancel{By: operation.Actor{ID: "someone", Kind: "token"}, Reason: "test"}, nil, nil
	})
	p.no(err)
	it, err := p.db.Get(ctx, record.StateKey(newer))
	p.no(err)
	it.Data = fmt.Appendf(nil, `{"format":%d,%s`, record.StateFormat+1, it.Data[1:])
	p.no(p.db.Commit(ctx, ledger.Write{Item: it, Expect: ledger.AnyVersion}))
	p.fresh()
	var feed []ledger.Change
	for _, op := range []string{newer, good, old} {
		feed = append(feed, ledger.Change{Key: record.StateKey(op)})
	}
	r := p.relay()
	if again, err := r.DispatchFeed(ctx, feed); err != nil || len(again) != 0 {
		t.Fatalf("dispatch: %v, again %v", err, again)
	}
	if again, err := r.PublishFeed(ctx, feed); err != nil || len(again) != 0 {
		t.Fatalf("publish: %v, again %v", err, again)
	}
	if p.want(good, operation.Dispatched); p.transitions(good) != way || p.bells()[good] != 1 {
		t.Errorf("stream: %q", p.transitions(good))
	}
	if err := r.Reoffer(ctx, p.cluster); err != nil || p.bells()[good] != 1 {
		t.Errorf("it was not offered: %v", err)
	}
	_, err = r.Mend(ctx, time.Time{}, "")
	p.no(err)
	p.no(r.MendLive(ctx))
	p.pass(time.Hour)
	if n, err := retention.Pass(ctx, p.store, retention.Policy{Operations: time.Minute}); n != 1 {
		t.Errorf("%d were deleted, %v", n, err)
	}
	if got, err := p.db.Get(ctx, record.StateKey(newer)); err != nil || string(got.Data) != string(it.Data) {
		t.Errorf("it is not as it was: %v", err)
	}
}
