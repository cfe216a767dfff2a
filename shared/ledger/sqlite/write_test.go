package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func simple(pk, sk, data string, expect int64) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: ledger.Key{PK: pk, SK: sk}, Data: []byte(data)}, Expect: expect, Feed: true}
}

// hold keeps the writer busy until the returned function is called, so that
// commits gather.
func hold(t *testing.T, db *DB) (release func()) {
	t.Helper()
	begun, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- db.submit(context.Background(), nil, func(*writer) error {
			close(begun)
			<-end
			return nil
		})
	}()
	<-begun
	return func() {
		close(end)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// queued waits until n commits wait.
func queued(t *testing.T, db *DB, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); db.Stats().Queued != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d commits wait, want %d", db.Stats().Queued, n)
		}
	}
}

func TestGroupCommit(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	release := hold(t, db)
	before := db.Stats()
	const callers = 100
	results := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { // all want the same item: one gets it, in the same group as those who do not
			results[i] = db.Commit(t.Context(), simple("p", "one", "", 0), simple("p", fmt.Sprintf("own-%d", i), "", 0))
		})
	}
	queued(t, db, callers)
	release()
	wg.Wait()
	won := 0
	for i, err := range results {
		_, got := db.Get(t.Context(), ledger.Key{PK: "p", SK: fmt.Sprintf("own-%d", i)})
		switch {
		case err == nil && got == nil:
			won++
		case errors.Is(err, ledger.ErrConflict) && errors.Is(got, ledger.ErrNotFound):
		default:
			t.Errorf("caller %d: commit %v, its own item %v", i, err, got)
		}
	}
	s := db.Stats()
	if won != 1 || s.Batches-before.Batches != 2 || s.Conflicts != callers-1 || s.Commits != 1 || s.Writes != 2 {
		t.Errorf("%d won; stats %+v", won, s)
	}
	changes, _, err := db.Changes(t.Context(), "", 0, 0)
	if err != nil || len(changes) != 2 {
		t.Errorf("changes: got %v, %v", changes, err)
	}
}

func TestCancelInQueue(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	release := hold(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- db.Commit(ctx, simple("p", "given up", "", 0)) }()
	queued(t, db, 1)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	release()
	if err := db.Commit(t.Context(), simple("p", "next", "", 0)); err != nil {
		t.Error(err)
	}
	if _, err := db.Get(t.Context(), ledger.Key{PK: "p", SK: "given up"}); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("the commit that was given up: got %v, want ErrNotFound", err)
	}
}

func TestCloseDrains(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	release := hold(t, db)
	commits := make(chan error, 20)
	for i := range cap(commits) {
		go func() { commits <- db.Commit(t.Context(), simple("p", fmt.Sprint(i), "", 0)) }()
	}
	queued(t, db, cap(commits))
	reader := make(chan error, 1)
	go func() {
		_, _, err := db.Changes(t.Context(), "", 10, time.Hour)
		reader <- err
	}()
	closed := make(chan error, 1)
	go func() { closed <- db.Close() }()
	<-db.closing
	if err := <-reader; !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("waiting reader: got %v, want ErrUnavailable", err)
	}
	release()
	for range cap(commits) {
		if err := <-commits; err != nil {
			t.Errorf("commit that waited: %v", err)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := db.Commit(t.Context(), simple("p", "late", "", 0)); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("commit after close: got %v, want ErrUnavailable", err)
	}
	if _, err := db.Get(t.Context(), ledger.Key{PK: "p", SK: "0"}); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("get after close: got %v, want ErrUnavailable", err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	again := start(t, Options{Path: db.opts.Path})
	page, err := again.Query(t.Context(), ledger.Query{PK: "p"})
	if err != nil || len(page.Items) != cap(commits) {
		t.Errorf("after reopening: got %d items, %v", len(page.Items), err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	db := start(t, Options{maxPages: 200})
	big := strings.Repeat("x", 20<<10)
	n := 0
	var err error
	for ; n < 1000 && err == nil; n++ {
		err = db.Commit(t.Context(), simple("p", fmt.Sprintf("%04d-a", n), big, 0), simple("p", fmt.Sprintf("%04d-b", n), big, 0))
	}
	if !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	page, err := db.Query(t.Context(), ledger.Query{PK: "p"})
	if err != nil || len(page.Items) != 2*(n-1) {
		t.Fatalf("got %d items, %v, want %d: the commit that failed left something", len(page.Items), err, 2*(n-1))
	}
	changes, next, err := db.Changes(t.Context(), "", 0, 0)
	if err != nil || len(changes) != 2*(n-1) {
		t.Fatalf("got %d changes, %v, want %d", len(changes), err, 2*(n-1))
	}
	// Room again: it goes on, and the feed with it.
	for _, it := range page.Items {
		if err := db.Commit(t.Context(), ledger.Write{Kind: ledger.Delete, Item: it, Expect: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Commit(t.Context(), simple("p", "after", big, 0)); err != nil {
		t.Fatal(err)
	}
	if changes, _, err = db.Changes(t.Context(), next, 0, 0); err != nil || len(changes) != 1 {
		t.Errorf("changes after: got %v, %v", changes, err)
	}
	if db.Stats().Failures != 1 {
		t.Errorf("stats: %+v", db.Stats())
	}
}

// TestLastWrite: how the last group went that wrote, with the reason of one that
// could not; what wrote nothing tells nothing.
func TestLastWrite(t *testing.T) {
	t.Parallel()
	db := start(t, Options{maxPages: 60})
	if o := db.LastWrite(); o != (Outcome{}) {
		t.Errorf("before any: %+v", o)
	}
	if err := db.Commit(t.Context(), simple("p", "a", "small", 0)); err != nil {
		t.Fatal(err)
	}
	first := db.LastWrite()
	if first.Err != nil || time.Since(first.At) > time.Minute {
		t.Errorf("written: %+v", first)
	}
	if err := db.Commit(t.Context(), simple("p", "a", "again", 0)); !errors.Is(err, ledger.ErrConflict) {
		t.Fatal(err)
	}
	if o := db.LastWrite(); o != first {
		t.Errorf("a conflict is told as a write: %+v", o)
	}
	err := db.Commit(t.Context(), simple("p", "b", strings.Repeat("x", 200<<10), 0), simple("p", "c", strings.Repeat("x", 200<<10), 0))
	if o := db.LastWrite(); !errors.Is(o.Err, ledger.ErrUnavailable) || Why(o.Err) != "database or disk is full" || Why(err) != Why(o.Err) {
		t.Errorf("full: %+v, %v", o, err)
	}
	queryOnly := func(on int) {
		t.Helper()
		if err := db.writer.exec(fmt.Sprint("pragma query_only = ", on)); err != nil { // nobody writes now
			t.Fatal(err)
		}
	}
	queryOnly(1)
	if err := db.Commit(t.Context(), simple("p", "d", "small", 0)); Why(err) != "attempt to write a readonly database" || Why(db.LastWrite().Err) != Why(err) {
		t.Errorf("read-only: %v", err)
	}
	queryOnly(0)
	if err := db.Commit(t.Context(), simple("p", "d", "small", 0)); err != nil {
		t.Fatal(err)
	}
	if o := db.LastWrite(); o.Err != nil || Why(o.Err) != "" || o == first {
		t.Errorf("again: %+v", o)
	}
}

// TestFailureFailsGroupWhole: a failing statement takes the commits of its
// group with it, none half done.
func TestFailureFailsGroupWhole(t *testing.T) {
	t.Parallel()
	db := start(t, Options{maxPages: 100})
	release := hold(t, db)
	var wg sync.WaitGroup
	results := make([]error, 10)
	for i := range results {
		wg.Go(func() {
			results[i] = db.Commit(t.Context(), simple("p", fmt.Sprintf("%d-a", i), "small", 0), simple("p", fmt.Sprintf("%d-b", i), strings.Repeat("x", 100<<10), 0))
		})
	}
	queued(t, db, len(results))
	release()
	wg.Wait()
	for _, err := range results {
		if !errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	}
	if page, err := db.Query(t.Context(), ledger.Query{PK: "p"}); err != nil || len(page.Items) != 0 {
		t.Errorf("got %d items, %v, want none", len(page.Items), err)
	}
	if err := db.Commit(t.Context(), simple("p", "a", "small", 0)); err != nil {
		t.Error(err)
	}
}
