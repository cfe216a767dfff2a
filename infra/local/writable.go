package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	ledgersqlite "github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/record"
)

const (
	// writeFresh is for how long a write tells of the next one, and so how often a
	// question can cost a write.
	writeFresh = 3 * time.Second
	// writeWithin is how long a write may take before the ledger counts as hanging.
	writeWithin = 2 * time.Second
)

// writable judges whether the ledger takes writes: by the last one, and where that
// is too long ago by one of its own.
type writable struct {
	last func() ledgersqlite.Outcome
	try  func() error

	mu    sync.Mutex
	began time.Time     // of the try that is under way, or was last
	under chan struct{} // closed when it has ended; nil: none was begun
	ended time.Time
	err   error // of the last one that ended
}

func newWritable(db *ledgersqlite.DB) *writable {
	return &writable{last: db.LastWrite, try: func() error {
		return db.Commit(context.Background(), ledger.Write{Item: ledger.Item{Key: record.ProbeKey, Data: []byte("{}")}, Expect: ledger.AnyVersion})
	}}
}

var errHangs = errors.New("the ledger has not answered a write")

// refuses returns why the ledger does not take writes, or nil. It waits for a write
// of its own for writeWithin at most.
func (w *writable) refuses(ctx context.Context) error {
	ended, err := w.look(time.Now())
	if ended == nil {
		return err
	}
	t := time.NewTimer(writeWithin)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		return fmt.Errorf("%w within %s", errHangs, writeWithin)
	case <-ctx.Done():
		return fmt.Errorf("wait for a write: %w", ctx.Err())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// look answers at once, or returns what is closed when the write under way, which
// it may have begun, has ended. There is one at a time.
func (w *writable) look(now time.Time) (ended <-chan struct{}, err error) {
	o := w.last()
	w.mu.Lock()
	defer w.mu.Unlock()
	under := false
	if w.under != nil {
		select {
		case <-w.under:
		default:
			under = true
		}
	}
	switch {
	case now.Sub(o.At) < writeFresh:
		return nil, o.Err
	case under && now.Sub(w.began) >= writeWithin:
		return nil, fmt.Errorf("%w for %s", errHangs, now.Sub(w.began).Round(time.Second))
	case under:
		return w.under, nil
	case now.Sub(w.ended) < writeFresh:
		return nil, w.err
	}
	done := make(chan struct{})
	w.under, w.began = done, now
	go func() { // a commit that the writer has taken does not end by a context
		err := w.try()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended, w.err = time.Now(), err
		close(done)
	}()
	return done, nil
}
