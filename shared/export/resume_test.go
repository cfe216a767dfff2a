package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

var errKilled = errors.New("killed")

// tap counts the commits of a target, watches them, and ends at one: that call
// and all later ones fail. With applied that commit is in effect, and only its
// answer is lost.
type tap struct {
	ledger.Ledger
	mu      sync.Mutex
	n       int
	endAt   int // 0: never
	applied bool
	err     error // what the one at endAt fails with; nil: errKilled, for good
	seen    func(ledger.Write)
}

func (l *tap) Commit(ctx context.Context, ws ...ledger.Write) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	err := l.err
	if err == nil {
		err = errKilled
	}
	if l.endAt > 0 && (l.n == l.endAt || l.n > l.endAt && l.err == nil) {
		if l.applied && l.n == l.endAt {
			if cerr := l.Ledger.Commit(ctx, ws...); cerr != nil {
				return cerr
			}
		}
		return err
	}
	if err := l.Ledger.Commit(ctx, ws...); err != nil {
		return err
	}
	for _, w := range ws {
		if l.seen != nil {
			l.seen(w)
		}
	}
	return nil
}

// commits is how many a whole import takes.
func commits(t *testing.T, stream []byte) int {
	db := openDB(t)
	l := &tap{Ledger: db}
	_, err := Import(t.Context(), bytes.NewReader(stream), target(db, l, &queues{}))
	no(t, err)
	return l.n
}

// Killed at any commit, with it in effect or not, the import goes on from there
// and ends as if nothing had been.
func TestResume(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stream := s.export(t)
	n := commits(t, stream)
	if n < 5 {
		t.Fatalf("an import takes %d commits", n)
	}
	for at := 1; at <= n; at++ {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("commit %d applied %v", at, applied), func(t *testing.T) {
				t.Parallel()
				db := openDB(t)
				_, err := Import(t.Context(), bytes.NewReader(stream), target(db, &tap{Ledger: db, endAt: at, applied: applied}, &queues{}))
				if !errors.Is(err, errKilled) {
					t.Fatalf("killed at commit %d: %v", at, err)
				}
				q := &queues{}
				r, err := Import(t.Context(), bytes.NewReader(stream), target(db, db, q))
				no(t, err)
				if d := differences(t, s.db, db); len(d) > 0 {
					t.Errorf("the ledgers differ: %q", d)
				}
				for k, it := range all(t, db, true) {
					if it.Version != 1 {
						t.Errorf("%s was written %d times", k, it.Version)
					}
				}
				if r.Already != (at == n && applied) {
					t.Errorf("already %v", r.Already)
				}
			})
		}
	}
}

// An engine that cannot take a commit now is asked again, whether it was in
// effect or not.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stream := s.export(t)
	for at := range commits(t, stream) {
		for _, applied := range []bool{false, true} {
			db := openDB(t)
			l := &tap{Ledger: db, endAt: at + 1, applied: applied, err: fmt.Errorf("%w: throttled", ledger.ErrUnavailable)}
			_, err := Import(t.Context(), bytes.NewReader(stream), target(db, l, &queues{}))
			if errors.Is(err, ledger.ErrConflict) { // the import's own record: the answer was lost
				_, err = Import(t.Context(), bytes.NewReader(stream), target(db, db, &queues{}))
			}
			no(t, err)
			if d := differences(t, s.db, db); len(d) > 0 {
				t.Errorf("commit %d applied %v: the ledgers differ: %q", at+1, applied, d)
			}
		}
	}
}

// Nothing that acts is there before what it reads: the plane on the other side
// runs meanwhile.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	stream := s.export(t)
	db := openDB(t)
	total, there := len(all(t, s.db, true)), 0
	l := &tap{Ledger: db}
	l.seen = func(w ledger.Write) {
		if !moves(w.Item.Key) && record.Kind(w.Item.Key) != record.KindBusPosition {
			return
		}
		there++
		switch k := record.Kind(w.Item.Key); {
		case k == record.KindToken || k == record.KindTokenUse:
			if w.Feed {
				t.Error("a token in the feed")
			}
		case k == record.KindStream: // a head ahead of the bus has everything put on the bus
			if _, err := db.Get(context.Background(), record.StreamBusKey(record.StreamOf(w.Item.Key))); err != nil || w.Feed {
				t.Errorf("%s came before its place on the bus (%v), or in the feed (%v)", w.Item.Key, err, w.Feed)
			}
		case w.Item.Key == record.StateKey(s.plan):
			if _, err := db.Get(context.Background(), record.StateKey(s.live)); err != nil || !w.Feed {
				t.Errorf("the plan's state came before the other operation's (%v), or not in the feed (%v)", err, w.Feed)
			}
		case w.Item.Key == record.StateKey(s.live), w.Item.Key == record.StateKey(s.behind):
			for _, first := range []ledger.Key{record.ClusterKey(s.cluster), record.StreamHeadKey(s.cluster), record.StreamBusKey(s.cluster), record.StateKey(s.ended)} {
				if _, err := db.Get(context.Background(), first); err != nil || !w.Feed {
					t.Errorf("a live operation's state came before %s (%v), or not in the feed (%v)", first, err, w.Feed)
				}
			}
		case !w.Item.Due.IsZero() && k != record.KindAgent:
			t.Errorf("%s is due and was put with what is at rest", w.Item.Key)
		}
	}
	_, err := Import(t.Context(), bytes.NewReader(stream), target(db, l, &queues{}))
	no(t, err)
	if there < total {
		t.Errorf("%d of %d items seen", there, total)
	}
	// Tokens are the last line but the trailer's, so nobody is let in before.
	st, err := open(bytes.NewReader(stream))
	no(t, err)
	var lastOf stage
	no(t, st.each(func(_ *reader, _ *ledger.Item, at stage) error { lastOf = at; return nil }))
	if lastOf != access {
		t.Errorf("the last item is of stage %d", lastOf)
	}
}

func TestOccupied(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	stream := newSite(t).export(t)
	other := newSite(t).export(t)

	db := openDB(t)
	foreign := ledger.Key{PK: "op#mine", SK: "spec"}
	no(t, db.Commit(ctx, ledger.Write{Item: ledger.Item{Key: foreign, Data: []byte("{}")}}))
	if _, err := Import(ctx, bytes.NewReader(stream), target(db, db, &queues{})); !errors.Is(err, ErrOccupied) || !bytes.Contains([]byte(err.Error()), []byte("op#mine/spec")) {
		t.Errorf("into a ledger of others: %v", err)
	}
	if n := len(all(t, db, false)); n != 1 {
		t.Errorf("%d items", n)
	}

	for _, finished := range []bool{true, false} {
		db = openDB(t)
		l := &tap{Ledger: db}
		if !finished {
			l.endAt = 3
		}
		if _, err := Import(ctx, bytes.NewReader(stream), target(db, l, &queues{})); (err == nil) != finished {
			t.Fatal(err)
		}
		before := len(all(t, db, false))
		if _, err := Import(ctx, bytes.NewReader(other), target(db, db, &queues{})); !errors.Is(err, ErrOccupied) {
			t.Errorf("another export into it: %v", err)
		}
		if n := len(all(t, db, false)); n != before {
			t.Errorf("another export wrote %d items", n-before)
		}
	}
}

// What an earlier run wrote must be what it is to write: else somebody else
// writes to the target.
func TestDiffers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newSite(t)
	stream := s.export(t)
	db := openDB(t)
	if _, err := Import(ctx, bytes.NewReader(stream), target(db, &tap{Ledger: db, endAt: 3}, &queues{})); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	k := record.ClusterKey(s.cluster)
	no(t, db.Commit(ctx, ledger.Write{Item: ledger.Item{Key: k, Data: []byte("{}")}, Expect: ledger.AnyVersion}))
	if _, err := Import(ctx, bytes.NewReader(stream), target(db, db, &queues{})); !errors.Is(err, ErrDiffers) || !bytes.Contains([]byte(err.Error()), []byte(k.String())) {
		t.Errorf("%v, want it to name %s", err, k)
	}
}

// A cancelled import stops.
func TestCancelled(t *testing.T) {
	t.Parallel()
	stream := newSite(t).export(t)
	db := openDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	l := &tap{Ledger: db, endAt: 2, err: fmt.Errorf("%w: throttled", ledger.ErrUnavailable)}
	l.seen = func(ledger.Write) { cancel() }
	if _, err := Import(ctx, bytes.NewReader(stream), target(db, l, &queues{})); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
