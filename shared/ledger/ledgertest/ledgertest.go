// Package ledgertest holds an engine of package ledger to the seam's contract.
// Every engine runs the same suite unchanged; it asks for no more than the seam
// promises, so it waits for indexes and takes repeated feed records.
package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Engine is what is tested: an open, empty ledger. Whoever opened it closes it
// with t.Cleanup.
type Engine struct {
	ledger.Ledger
	ledger.Feed
	// ExpireFeed makes the feed forget every record so far; nil when the engine
	// cannot be made to.
	ExpireFeed func(t *testing.T)
}

// lag is how long an engine may take to index a write.
const lag = 10 * time.Second

// Run tests the engines that open returns, which must use now as their clock.
func Run(t *testing.T, open func(t *testing.T, now func() time.Time) Engine) {
	tests := []struct {
		name string
		run  func(*testing.T, *bench)
	}{
		{"Conditions", testConditions},
		{"Versions", testVersions},
		{"AnyVersion", testAnyVersion},
		{"ConflictWritesNothing", testConflictWritesNothing},
		{"ConflictNamesAll", testConflictNamesAll},
		{"Limits", testLimits},
		{"InvalidReads", testInvalidReads},
		{"CancelledContext", testCancelledContext},
		{"RoundTrip", testRoundTrip},
		{"BigValues", testBigValues},
		{"GetMany", testGetMany},
		{"Order", testOrder},
		{"Ranges", testRanges},
		{"Paging", testPaging},
		{"PagingWhileOthersWrite", testPagingWhileOthersWrite},
		{"IndexSparseMoveDelete", testIndexSparseMoveDelete},
		{"IndexOrder", testIndexOrder},
		{"IndexPaging", testIndexPaging},
		{"Due", testDue},
		{"Foresee", testForesee},
		{"Expiry", testExpiry},
		{"ExpiryInConditions", testExpiryInConditions},
		{"FeedOrder", testFeedOrder},
		{"FeedPositions", testFeedPositions},
		{"FeedWait", testFeedWait},
		{"FeedExpiry", testFeedExpiry},
		{"Watch", testWatch},
		{"ConcurrentIncrements", testConcurrentIncrements},
		{"ConcurrentPairs", testConcurrentPairs},
		{"ReadsSeeAcknowledged", testReadsSeeAcknowledged},
		{"Model", testModel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := &bench{time: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
			b.Engine = open(t, b.now)
			tt.run(t, b)
		})
	}
}

// bench is an engine and its clock.
type bench struct {
	Engine
	mu   sync.Mutex
	time time.Time
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.time
}

func (b *bench) advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.time = b.time.Add(d)
}

func key(pk, sk string) ledger.Key { return ledger.Key{PK: pk, SK: sk} }

func put(pk, sk, data string, expect int64) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: key(pk, sk), Data: []byte(data)}, Expect: expect}
}

func del(pk, sk string, expect int64) ledger.Write {
	return ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: key(pk, sk)}, Expect: expect}
}

func check(pk, sk string, expect int64) ledger.Write {
	return ledger.Write{Kind: ledger.Check, Item: ledger.Item{Key: key(pk, sk)}, Expect: expect}
}

func (b *bench) commit(t *testing.T, writes ...ledger.Write) {
	t.Helper()
	if err := b.Commit(t.Context(), writes...); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

// conflicts requires a commit to fail on exactly these keys.
func (b *bench) conflicts(t *testing.T, keys []ledger.Key, writes ...ledger.Write) {
	t.Helper()
	err := b.Commit(t.Context(), writes...)
	var conflict *ledger.ConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("commit: got %v, want a conflict on %v", err, keys)
	}
	byName := cmpopts.SortSlices(func(a, b ledger.Key) bool { return a.String() < b.String() })
	if d := cmp.Diff(keys, conflict.Keys, byName); d != "" {
		t.Fatalf("conflicting keys (-want +got):\n%s", d)
	}
}

// holds requires an item with this version and data.
func (b *bench) holds(t *testing.T, pk, sk string, version int64, data string) {
	t.Helper()
	it, err := b.Get(t.Context(), key(pk, sk))
	if err != nil {
		t.Fatalf("get %s/%s: %v", pk, sk, err)
	}
	if it.Version != version || string(it.Data) != data {
		t.Fatalf("get %s/%s: got version %d %q, want %d %q", pk, sk, it.Version, it.Data, version, data)
	}
}

func (b *bench) lacks(t *testing.T, pk, sk string) {
	t.Helper()
	if it, err := b.Get(t.Context(), key(pk, sk)); !errors.Is(err, ledger.ErrNotFound) {
		t.Fatalf("get %s/%s: got version %d, error %v, want ErrNotFound", pk, sk, it.Version, err)
	}
}

// all reads every page of a query.
func (b *bench) all(ctx context.Context, q ledger.Query) ([]ledger.Item, error) {
	var items []ledger.Item
	for {
		page, err := b.Query(ctx, q)
		if err != nil {
			return nil, err
		}
		if q.Limit > 0 && len(page.Items) > q.Limit {
			return nil, fmt.Errorf("page of %d items over the limit %d", len(page.Items), q.Limit)
		}
		items = append(items, page.Items...)
		if page.Next == "" {
			return items, nil
		}
		if page.Next == q.After {
			return nil, fmt.Errorf("page does not go on from %q", q.After)
		}
		q.After = page.Next
	}
}

// first reads the first page that holds anything.
func (b *bench) first(t *testing.T, q ledger.Query) ledger.Page {
	t.Helper()
	for {
		page, err := b.Query(t.Context(), q)
		if err != nil {
			t.Fatalf("query %+v: %v", q, err)
		}
		if len(page.Items) > 0 {
			return page
		}
		if q.After = page.Next; q.After == "" {
			t.Fatalf("query %+v: found nothing", q)
		}
	}
}

// names lists the keys of items as one comparable text.
func names(items []ledger.Item) string {
	out := make([]string, len(items))
	for i, it := range items {
		out[i] = it.Key.String()
	}
	return strings.Join(out, " ")
}

// finds requires a query to return these keys in this order; a query of an
// index gets the engine's lag to come to it.
func (b *bench) finds(t *testing.T, q ledger.Query, want ...string) {
	t.Helper()
	look := func() string {
		items, err := b.all(t.Context(), q)
		if err != nil {
			t.Fatalf("query %+v: %v", q, err)
		}
		return names(items)
	}
	b.comes(t, q.Index == ledger.Primary, strings.Join(want, " "), look)
}

// comes requires look to return want: at once, or within the lag.
func (b *bench) comes(t *testing.T, atOnce bool, want string, look func() string) {
	t.Helper()
	var got string
	ok := eventually(func() bool { got = look(); return atOnce || got == want })
	if !ok || got != want {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
}

// eventually calls fn until it is true or the lag is over.
func eventually(fn func() bool) bool {
	for deadline := time.Now().Add(lag); ; time.Sleep(20 * time.Millisecond) {
		if fn() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// fed reads the feed from a position until done says that it has seen enough.
func (b *bench) fed(t *testing.T, after string, done func([]ledger.Change) bool) ([]ledger.Change, string) {
	t.Helper()
	var all []ledger.Change
	ok := eventually(func() bool {
		changes, next, err := b.Changes(t.Context(), after, 7, 100*time.Millisecond)
		if err != nil {
			t.Fatalf("changes after %q: %v", after, err)
		}
		all, after = append(all, changes...), next
		return done(all)
	})
	if !ok {
		t.Fatalf("the feed does not show what was written; it shows %v", all)
	}
	return all, after
}

// saw makes a condition for fed: a record of the item at this version.
func saw(k ledger.Key, version int64) func([]ledger.Change) bool {
	return func(cs []ledger.Change) bool {
		return slices.ContainsFunc(cs, func(c ledger.Change) bool { return c.Key == k && c.Version == version && !c.Deleted })
	}
}
