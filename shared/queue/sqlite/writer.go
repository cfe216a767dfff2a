package sqlite

import (
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/shared/queue"
)

const (
	// batchMax bounds the calls of one transaction.
	batchMax = 256
	// recheck is how often waiting receives look at their queue without a
	// signal: it mends a wall clock that was set back.
	recheck = 5 * time.Second
)

// call is one call of the engine, on its way through the writer.
type call struct {
	queue string
	// run is the call's work. It is run again when the transaction that it
	// shared with others failed, so it sets its results and never adds to them.
	run func(*sql.Tx, *state) error
	// receive is set instead of run for a receive.
	receive *receive
	// admin: the queue need not exist, and no later call may share the
	// transaction.
	admin bool
	after func(*writer) // run after the commit

	done chan struct{} // closed when answered
	err  error
}

// receive is a receive's question and answer.
type receive struct {
	max        int
	visibility time.Duration
	once       bool // answered even when there is nothing
	got        []queue.Message

	// status settles who ends the receive: the writer that has messages for it
	// or the caller who leaves.
	status atomic.Int32
}

const (
	receiveWaits int32 = iota // moved on by the writer (taken) or the caller (left)
	receiveTaken
	receiveLeft
)

// leave says that the caller no longer waits; false when it is too late and an
// answer is on its way.
func (r *receive) leave() bool { return r.status.CompareAndSwap(receiveWaits, receiveLeft) }

func (r *receive) taken() bool { return r.status.CompareAndSwap(receiveWaits, receiveTaken) }

// writer is the goroutine that owns the file.
type writer struct {
	d      *DB
	queues map[string]*state
	// looked is when waiting receives last looked without a signal.
	looked time.Time
}

func newWriter(d *DB, names []string) *writer {
	w := &writer{d: d, queues: make(map[string]*state, len(names)), looked: time.Now()}
	for _, name := range names {
		w.add(name)
	}
	return w
}

func (w *writer) add(name string) {
	if w.queues[name] == nil {
		w.queues[name] = newState(name)
	}
}

func (w *writer) drop(name string) {
	if q := w.queues[name]; q != nil {
		delete(w.queues, name)
		for _, c := range q.waiting {
			c.answerTaken(fmt.Errorf("receive from %s: %w", name, queue.ErrNoQueue))
		}
	}
}

func (w *writer) run() {
	defer close(w.d.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(w.idle())
		var batch []*call
		select {
		case c := <-w.d.calls:
			batch = w.gather(c)
		case <-timer.C:
		case <-w.d.stop:
			w.end()
			return
		}
		if time.Since(w.looked) >= recheck {
			w.looked = time.Now()
			for _, q := range w.queues {
				q.visible = true
			}
		}
		w.flush(batch)
	}
}

// gather collects the calls that wait already; an admin call is the last one.
func (w *writer) gather(c *call) []*call {
	batch := []*call{c}
	for !c.admin && len(batch) < batchMax {
		select {
		case c = <-w.d.calls:
			batch = append(batch, c)
		default:
			return batch
		}
	}
	return batch
}

// idle is how long there is nothing to do unless a call comes.
func (w *writer) idle() time.Duration {
	wait := time.Minute
	now := time.Now()
	for _, q := range w.queues {
		if !q.due.IsZero() {
			wait = min(wait, q.due.Sub(now))
		}
		if len(q.waiting) > 0 {
			wait = min(wait, w.looked.Add(recheck).Sub(now))
		}
	}
	// Times are kept in milliseconds, cut off: a shorter wait would spin.
	return max(wait, time.Millisecond)
}

// end answers what still waits.
func (w *writer) end() {
	for _, q := range w.queues {
		for _, c := range q.waiting {
			c.answerTaken(errClosed)
		}
	}
	for {
		select {
		case c := <-w.d.calls:
			c.answerTaken(errClosed)
		default:
			return
		}
	}
}

// flush runs a batch in one transaction, or each call in its own when that
// failed, and then answers.
func (w *writer) flush(batch []*call) {
	calls := batch[:0]
	for _, c := range batch {
		q := w.queues[c.queue]
		switch {
		case q == nil && !c.admin:
			c.answerTaken(fmt.Errorf("queue %s: %w", c.queue, queue.ErrNoQueue))
		case c.receive != nil:
			q.waiting = append(slices.DeleteFunc(q.waiting, func(c *call) bool { return c.receive.status.Load() == receiveLeft }), c)
		default:
			calls = append(calls, c)
		}
	}
	err := w.commit(calls)
	if err != nil && len(calls) > 1 {
		for i := range calls {
			w.settle(calls[i:i+1], w.commit(calls[i:i+1]))
		}
		return
	}
	w.settle(calls, err)
}

func (w *writer) settle(calls []*call, err error) {
	for _, c := range calls {
		if err == nil && c.after != nil {
			c.after(w)
		}
		c.answer(err)
	}
}

// commit runs the calls and hands over what can be handed over, in one
// transaction.
func (w *writer) commit(calls []*call) (err error) {
	if len(calls) == 0 && len(w.active()) == 0 {
		return nil
	}
	var served []*call
	defer func() {
		// Only now is it known whether the messages were received.
		for _, c := range served {
			if err != nil {
				c.receive.got = nil
			}
			c.answer(err)
		}
		if err != nil {
			for _, q := range w.queues {
				q.visible = true
				q.due = time.Now().Add(time.Second) // try again then
			}
		}
	}()
	tx, err := w.d.sql.BeginTx(bg, nil)
	if err != nil {
		return fmt.Errorf("%w: begin: %w", queue.ErrUnavailable, err)
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback() // the first error is the one to tell
		}
	}()
	for _, c := range calls {
		if err := c.run(tx, w.queues[c.queue]); err != nil {
			return fmt.Errorf("%w: %w", queue.ErrUnavailable, err)
		}
	}
	for _, q := range w.active() {
		if !q.due.IsZero() && !q.due.After(time.Now()) {
			if err := promote(tx, q); err != nil {
				return fmt.Errorf("%w: %w", queue.ErrUnavailable, err)
			}
		}
		done, err := w.serve(tx, q)
		served = append(served, done...)
		if err != nil {
			return fmt.Errorf("%w: %w", queue.ErrUnavailable, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: commit: %w", queue.ErrUnavailable, err)
	}
	return nil
}

// active lists the queues with something to do without a further call.
func (w *writer) active() []*state {
	var active []*state
	now := time.Now()
	for _, q := range w.queues {
		due := !q.due.IsZero() && !q.due.After(now)
		if due || q.visible && len(q.waiting) > 0 || slices.ContainsFunc(q.waiting, isOnce) {
			active = append(active, q)
		}
	}
	return active
}

func isOnce(c *call) bool { return c.receive.once }

// serve hands messages to the queue's waiting receives, oldest first, and
// returns those that are to be answered after the commit.
func (w *writer) serve(tx *sql.Tx, q *state) (served []*call, err error) {
	var still []*call
	defer func() { q.waiting = still }()
	for i, c := range q.waiting {
		r := c.receive
		if r.status.Load() == receiveLeft {
			continue
		}
		var got []queue.Message
		if q.visible {
			if got, err = w.d.prepared.takeMany(tx, q, r.max, r.visibility); err != nil {
				still = append(still, q.waiting[i:]...)
				return served, err
			}
		}
		switch {
		case len(got) == 0 && !r.once:
			still = append(still, c)
		case r.taken():
			r.got = got
			served = append(served, c)
		case len(got) > 0:
			if err := untake(tx, q, got); err != nil {
				still = append(still, q.waiting[i+1:]...)
				return served, err
			}
		}
	}
	return served, nil
}

func (c *call) answer(err error) {
	c.err = err
	close(c.done)
}

// answerTaken answers a call that was not begun, unless its caller has left.
func (c *call) answerTaken(err error) {
	if c.receive == nil || c.receive.taken() {
		c.answer(err)
	}
}
