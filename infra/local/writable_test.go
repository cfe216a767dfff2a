package local

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
)

// TestWritable: the last write tells while it is fresh; else there is one of its
// own, however many ask, and none sooner than that. A fault is told as long as it
// lasts and no longer.
func TestWritable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("disk full")
		var fault error
		var last ledgersqlite.Outcome
		var tries atomic.Int64
		w := &writable{last: func() ledgersqlite.Outcome { return last }, try: func() error {
			tries.Add(1)
			time.Sleep(10 * time.Millisecond)
			return fault
		}}
		ask := func(want error, wantTries int64) {
			t.Helper()
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					if err := w.refuses(t.Context()); !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				})
			}
			wg.Wait()
			if n := tries.Load(); n != wantTries {
				t.Errorf("%d writes, want %d", n, wantTries)
			}
		}
		ask(nil, 1)
		ask(nil, 1)
		fault = full
		time.Sleep(writeFresh)
		ask(full, 2)
		fault = nil
		ask(full, 2)
		time.Sleep(writeFresh)
		ask(nil, 3)
		// Others write: nothing is to be tried.
		last = ledgersqlite.Outcome{At: time.Now(), Err: full}
		ask(full, 3)
		time.Sleep(writeFresh - time.Second)
		last = ledgersqlite.Outcome{At: time.Now()}
		ask(nil, 3)
		time.Sleep(writeFresh)
		ask(nil, 4)
	})
}

// TestWritableHangs: a write that is not answered is told after a while, then at
// once, begins no other, and is forgotten when it is answered.
func TestWritableHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var tries atomic.Int32
		w := &writable{last: func() ledgersqlite.Outcome { return ledgersqlite.Outcome{} }, try: func() error { tries.Add(1); <-answer; return nil }}
		took := func() time.Duration {
			t.Helper()
			began := time.Now()
			if err := w.refuses(t.Context()); !errors.Is(err, errHangs) {
				t.Errorf("got %v", err)
			}
			return time.Since(began)
		}
		if d := took(); d != writeWithin {
			t.Errorf("told after %s", d)
		}
		time.Sleep(time.Minute)
		if d := took(); d != 0 || tries.Load() != 1 {
			t.Errorf("told after %s, %d writes", d, tries.Load())
		}
		close(answer)
		synctest.Wait()
		if err := w.refuses(t.Context()); err != nil || tries.Load() != 1 {
			t.Errorf("answered: %v, %d writes", err, tries.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.Sleep(writeFresh)
		answer = make(chan struct{})
		go cancel()
		if err := w.refuses(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("nobody waits: %v", err)
		}
		close(answer)
	})
}

// TestReadinessIsCheap: of a hundred questions to an idle engine one writes.
func TestReadinessIsCheap(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	began := time.Now()
	writes := func() int64 { return e.ledger.Stats().Writes }
	before := writes()
	for range 100 {
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), "ready") {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if n, most := writes()-before, 1+int64(time.Since(began)/writeFresh); n > most {
		t.Errorf("%d writes, want %d at most", n, most)
	}
}
