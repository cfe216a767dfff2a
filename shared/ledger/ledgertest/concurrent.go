package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opsplane/opsplane/shared/ledger"
)

// retried commits what make returns until it is not refused.
func (b *bench) retried(ctx context.Context, make func() ([]ledger.Write, error)) error {
	for {
		writes, err := make()
		if err != nil {
			return err
		}
		err = b.Commit(ctx, writes...)
		if !errors.Is(err, ledger.ErrConflict) && !errors.Is(err, ledger.ErrUnavailable) {
			return err
		}
	}
}

// count reads a number kept in an item; absent is 0 at version 0.
func (b *bench) count(ctx context.Context, k ledger.Key) (n int, version int64, err error) {
	it, err := b.Get(ctx, k)
	if errors.Is(err, ledger.ErrNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	n, err = strconv.Atoi(string(it.Data))
	return n, it.Version, err
}

func testConcurrentIncrements(t *testing.T, b *bench) {
	const workers, times = 8, 20
	var wg sync.WaitGroup
	for g := range workers {
		wg.Go(func() {
			for i := range times {
				err := b.retried(t.Context(), func() ([]ledger.Write, error) {
					n, v, err := b.count(t.Context(), key("p", "n"))
					return []ledger.Write{
						put("p", "n", strconv.Itoa(n+1), v),
						put("log", fmt.Sprintf("%d-%d", g, i), "", 0), // written once with its increment
						put("own", strconv.Itoa(g), "", ledger.AnyVersion),
					}, err
				})
				if err != nil {
					t.Errorf("increment: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.holds(t, "p", "n", workers*times, strconv.Itoa(workers*times))
	items, err := b.all(t.Context(), ledger.Query{PK: "log", Limit: 50})
	if err != nil || len(items) != workers*times {
		t.Fatalf("log: got %d entries, %v, want %d", len(items), err, workers*times)
	}
	for g := range workers {
		b.holds(t, "own", strconv.Itoa(g), times, "")
	}
}

// testConcurrentPairs moves amounts between accounts: the sum stays.
func testConcurrentPairs(t *testing.T, b *bench) {
	const accounts, workers, times = 4, 6, 15
	for i := range accounts {
		b.commit(t, put("acct", strconv.Itoa(i), "100", 0))
	}
	var wg sync.WaitGroup
	for g := range workers {
		wg.Go(func() {
			for i := range times {
				from, to := key("acct", strconv.Itoa((g+i)%accounts)), key("acct", strconv.Itoa((g+i+1+i%(accounts-1))%accounts))
				err := b.retried(t.Context(), func() ([]ledger.Write, error) {
					x, xv, err := b.count(t.Context(), from)
					if err != nil {
						return nil, err
					}
					y, yv, err := b.count(t.Context(), to)
					return []ledger.Write{put(from.PK, from.SK, strconv.Itoa(x-1), xv), put(to.PK, to.SK, strconv.Itoa(y+1), yv)}, err
				})
				if err != nil {
					t.Errorf("move: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	sum, writes := 0, int64(0)
	for i := range accounts {
		n, v, err := b.count(t.Context(), key("acct", strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		sum, writes = sum+n, writes+v
	}
	if sum != accounts*100 || writes != accounts+2*workers*times {
		t.Fatalf("got sum %d after %d writes, want %d after %d", sum, writes, accounts*100, accounts+2*workers*times)
	}
}

func testReadsSeeAcknowledged(t *testing.T, b *bench) {
	var acked atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				want := acked.Load()
				var get, many, query int64
				if it, err := b.Get(t.Context(), key("p", "s")); err == nil {
					get = it.Version
				}
				if its, err := b.GetMany(t.Context(), []ledger.Key{key("p", "s")}); err == nil {
					many = its[key("p", "s")].Version
				}
				if items, err := b.all(t.Context(), ledger.Query{PK: "p"}); err == nil && len(items) == 1 {
					query = items[0].Version
				}
				if get < want || many < want || query < want {
					t.Errorf("acknowledged version %d; get saw %d, get many %d, query %d", want, get, many, query)
					return
				}
			}
		})
	}
	for v := range int64(100) {
		if err := b.Commit(t.Context(), put("p", "s", "", v)); err != nil {
			t.Errorf("commit: %v", err)
			break
		}
		acked.Store(v + 1)
	}
	close(done)
	wg.Wait()
}
