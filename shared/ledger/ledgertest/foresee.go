package ledgertest

import (
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// testForesee: the next due time of all items, with both ends of the stretch as
// the seam has them, and as items move, end and go.
func testForesee(t *testing.T, b *bench) {
	f, ok := b.Ledger.(ledger.Foreseer)
	if !ok {
		t.Skip("this engine does not foresee")
	}
	now := b.now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	due := func(pk string, expect int64, when time.Time) ledger.Write {
		return ledger.Write{Item: ledger.Item{Key: key(pk, "state"), Data: []byte("x"), Due: when}, Expect: expect}
	}
	next := func(what string, after, until time.Duration, want time.Time) {
		t.Helper()
		var got time.Time
		for end := time.Now().Add(lag); ; time.Sleep(20 * time.Millisecond) {
			var err error
			if got, err = f.NextDue(t.Context(), at(after), at(until)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got.Equal(want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the next due time is %v, want %v", what, got, want)
			}
		}
	}
	next("empty", -time.Hour, time.Hour, time.Time{})
	b.commit(t, due("a", 0, at(30*time.Second)), due("b", 0, at(10*time.Second)), due("c", 0, at(-5*time.Second)), due("d", 0, at(time.Hour)),
		due("e", 0, time.Time{}))
	next("the earliest ahead", 0, 2*time.Minute, at(10*time.Second))
	next("the end counts", 0, 10*time.Second, at(10*time.Second))
	next("nothing before it", 0, 10*time.Second-time.Millisecond, time.Time{})
	next("the beginning does not count", 10*time.Second, 2*time.Minute, at(30*time.Second))
	next("what is overdue", -time.Minute, 0, at(-5*time.Second))
	next("far ahead", time.Minute, 2*time.Hour, at(time.Hour))
	b.commit(t, due("b", 1, at(40*time.Second)))
	next("it moved", 0, 2*time.Minute, at(30*time.Second))
	b.commit(t, due("a", 1, time.Time{}))
	next("it ended", 0, 2*time.Minute, at(40*time.Second))
	b.commit(t, ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: key("b", "state")}, Expect: 2})
	next("it is gone", 0, 2*time.Minute, time.Time{})
}
