package sqlite

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/opsplane/opsplane/shared/ledger"
)

const (
	// maxQueue bounds how many commits may wait; more are turned away.
	maxQueue = 10_000
	// maxBatch and maxBatchBytes bound the commits of one transaction, and so
	// how long the last of them waits.
	maxBatch      = 512
	maxBatchBytes = 16 << 20
)

// request is a commit, or a piece of the janitor's work, on its way through the
// writer.
type request struct {
	writes []ledger.Write
	chore  func(*writer) error // instead of writes
	bytes  int
	state  atomic.Int32
	answer chan error // of one place: the writer never waits for a caller
}

// States of a request. Whoever moves it out of waiting has it: the writer, who
// answers it, or the caller, who gives it up unwritten.
const (
	waiting int32 = iota
	taken
	abandoned
)

var requests = sync.Pool{New: func() any { return &request{answer: make(chan error, 1)} }}

// Commit queues the writes for the next group and waits for its sync. When ctx
// ends before the writer has taken them nothing is written and ctx's error is
// returned; after that the answer is near and Commit waits for it.
func (db *DB) Commit(ctx context.Context, writes ...ledger.Write) error {
	if err := ledger.Validate(writes); err != nil {
		return err
	}
	if db.opts.ReadOnly {
		return fmt.Errorf("%w: %w", ledger.ErrInvalid, ErrReadOnly)
	}
	return db.submit(ctx, writes, nil)
}

func (db *DB) submit(ctx context.Context, writes []ledger.Write, chore func(*writer) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := requests.Get().(*request)
	r.writes, r.chore, r.bytes = writes, chore, 0
	r.state.Store(waiting)
	for i := range writes {
		r.bytes += len(writes[i].Item.Data)
	}
	if err := db.queue.push(r); err != nil {
		return err
	}
	var err error
	select {
	case err = <-r.answer:
	case <-ctx.Done():
		if r.state.CompareAndSwap(waiting, abandoned) {
			return ctx.Err() // the queue still holds r
		}
		err = <-r.answer
	}
	r.writes, r.chore = nil, nil
	requests.Put(r)
	return err
}

// queue holds what waits for the writer.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	closed  bool
	wake    chan struct{} // of one place
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) push(r *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return fmt.Errorf("%w: closed", ledger.ErrUnavailable)
	}
	if len(q.waiting) >= maxQueue {
		return fmt.Errorf("%w: %d commits wait already", ledger.ErrUnavailable, maxQueue)
	}
	q.waiting = append(q.waiting, r)
	q.signal()
	return nil
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take waits for requests and appends the next group to batch. A chore makes a
// group of its own. It returns none when the queue is closed and empty.
func (q *queue) take(batch []*request) []*request {
	for {
		q.mu.Lock()
		n, bytes := 0, 0
		for n < len(q.waiting) && len(batch) < maxBatch && bytes < maxBatchBytes {
			r := q.waiting[n]
			if r.chore != nil && len(batch) > 0 {
				break
			}
			n++
			if !r.state.CompareAndSwap(waiting, taken) {
				continue
			}
			batch = append(batch, r)
			bytes += r.bytes
			if r.chore != nil {
				break
			}
		}
		rest := copy(q.waiting, q.waiting[n:])
		clear(q.waiting[rest:])
		q.waiting = q.waiting[:rest]
		closed := q.closed
		q.mu.Unlock()
		if len(batch) > 0 || closed && rest == 0 {
			return batch
		}
		if rest == 0 {
			<-q.wake
		}
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}
