// Package sqlite is the one-machine engine of the queue seam: the table of goqite
// (https://github.com/maragudk/goqite) on SQLite, in a database file of its own.
//
// It stands between relay and sweep, who ring, and the agents' long polls, who
// answer. One writer goroutine owns the file: it gathers the calls that wait,
// runs them in one transaction, and hands messages to waiting receivers in that
// same transaction, so that nothing polls. The file is written with
// synchronous=NORMAL: kill -9 loses nothing, a power failure may lose the
// latest doorbells, which the sweep rings again.
//
// goqite's design keeps messages, their order and their receive count; its
// statements are here taken over, prepared and made for many messages at once,
// since it parses each anew for every message. Beside it this package has what
// the seam asks for: batches, a visibility time per receive, receipts, dead
// letters, and queues that exist or do not. See store.go for how.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/queue"
)

// Options say where the queue is kept.
type Options struct {
	// Path of the database file. It and its folder are made when missing, with
	// access for this user only.
	Path string
}

// DB is an open queue engine; it implements queue.Queue. Only one process can
// have the file open.
type DB struct {
	sql      *sql.DB
	prepared prepared
	calls    chan *call

	stopOnce sync.Once
	stop     chan struct{} // closed by Close: take no more calls
	stopped  chan struct{} // closed by the writer when it has ended
}

var _ queue.Queue = (*DB)(nil)

// Open opens the file, or makes it. A file that is no sound database is set
// aside beside it (suffix ".damaged") and replaced by a fresh one: what it held
// is rung again by the sweep, and its owner makes every queue that should exist
// with Ensure. A folder that cannot be written, and a file in use by another
// process, are errors.
func Open(ctx context.Context, o Options) (*DB, error) {
	db, err := openFile(ctx, o.Path)
	if err != nil {
		return nil, fmt.Errorf("open queue %s: %w", o.Path, err)
	}
	names, err := loadQueues(ctx, db)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open queue %s: read queues: %w", o.Path, err), db.Close())
	}
	p, err := prepareAll(ctx, db)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open queue %s: %w", o.Path, err), db.Close())
	}
	d := &DB{
		sql:      db,
		prepared: p,
		calls:    make(chan *call, 1024),
		stop:     make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	go newWriter(d, names).run()
	return d, nil
}

// Close ends the waiting receives, finishes what was begun and closes the file.
// Later calls get queue.ErrUnavailable.
func (d *DB) Close() error {
	var err error
	d.stopOnce.Do(func() {
		close(d.stop)
		<-d.stopped
		err = d.sql.Close()
	})
	return err
}

// Send implements queue.Sender. All messages are accepted or none.
func (d *DB) Send(ctx context.Context, name string, ms ...queue.Outgoing) error {
	if err := queue.CheckSend(ms); err != nil {
		return err
	}
	return d.do(ctx, &call{queue: name, run: func(tx *sql.Tx, q *state) error { return d.prepared.sendAll(tx, q, ms) }})
}

// Receive implements queue.Receiver. It answers an empty list when nothing came
// within wait.
func (d *DB) Receive(ctx context.Context, name string, max int, wait, visibility time.Duration) ([]queue.Message, error) {
	if err := queue.CheckReceive(max, wait, visibility); err != nil {
		return nil, err
	}
	r := &receive{max: max, visibility: visibility, once: true}
	if err := d.do(ctx, &call{queue: name, receive: r}); err != nil || len(r.got) > 0 || wait == 0 {
		return r.got, err
	}
	return d.await(ctx, name, wait, &receive{max: max, visibility: visibility})
}

// await is the waiting part of a receive: it ends when the writer hands over
// messages, when wait is over or when the caller goes away.
func (d *DB) await(ctx context.Context, name string, wait time.Duration, r *receive) ([]queue.Message, error) {
	c := &call{queue: name, receive: r, done: make(chan struct{})}
	if err := d.submit(ctx, c); err != nil {
		return nil, err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var left error
	select {
	case <-c.done:
		return r.got, c.err
	case <-timer.C:
	case <-ctx.Done():
		left = ctx.Err()
	case <-d.stopped:
		left = errClosed
	}
	if r.leave() {
		return nil, left
	}
	// The writer has just taken this receive: messages are being handed over,
	// and are returned even to a caller whose context has ended.
	return d.answer(context.WithoutCancel(ctx), c)
}

func (d *DB) answer(ctx context.Context, c *call) ([]queue.Message, error) {
	if err := d.wait(ctx, c); err != nil {
		return nil, err
	}
	return c.receive.got, nil
}

// Delete implements queue.Receiver; stale receipts are ignored.
func (d *DB) Delete(ctx context.Context, name string, receipts ...string) error {
	if err := queue.CheckDelete(receipts); err != nil {
		return err
	}
	return d.do(ctx, &call{queue: name, run: func(tx *sql.Tx, q *state) error { return d.prepared.removeAll(tx, q, receipts) }})
}

// Extend implements queue.Receiver. A stale receipt is queue.ErrStaleReceipt.
func (d *DB) Extend(ctx context.Context, name, receipt string, dur time.Duration) error {
	if err := queue.CheckExtend(dur); err != nil {
		return err
	}
	stale := false
	err := d.do(ctx, &call{queue: name, run: func(tx *sql.Tx, q *state) error {
		found, err := extend(tx, q, receipt, dur)
		stale = !found
		return err
	}})
	if err == nil && stale {
		return fmt.Errorf("extend message: %w", queue.ErrStaleReceipt)
	}
	return err
}

// Ensure implements queue.Admin.
func (d *DB) Ensure(ctx context.Context, name string) error {
	if err := queue.CheckName(name); err != nil {
		return err
	}
	return d.do(ctx, &call{queue: name, admin: true, run: func(tx *sql.Tx, q *state) error { return ensure(tx, name) },
		after: func(w *writer) { w.add(name) }})
}

// Remove implements queue.Admin. Receivers that wait on the queue get
// queue.ErrNoQueue; its dead letters stay.
func (d *DB) Remove(ctx context.Context, name string) error {
	return d.do(ctx, &call{queue: name, admin: true, run: func(tx *sql.Tx, q *state) error { return drop(tx, name) },
		after: func(w *writer) { w.drop(name) }})
}

// Bury implements queue.Admin. A message that is gone or was handed out again
// is left alone: queue.ErrStaleReceipt.
func (d *DB) Bury(ctx context.Context, name string, m queue.Message, reason string) error {
	stale := false
	err := d.do(ctx, &call{queue: name, run: func(tx *sql.Tx, q *state) error {
		found, err := bury(tx, q, m.Receipt, reason)
		stale = !found
		return err
	}})
	if err == nil && stale {
		return fmt.Errorf("bury message %s: %w", m.ID, queue.ErrStaleReceipt)
	}
	return err
}

// TakeDead implements queue.Admin: the oldest first, the same ones again until
// they are dropped.
func (d *DB) TakeDead(ctx context.Context, max int) ([]queue.DeadLetter, error) {
	if max < 1 {
		return nil, fmt.Errorf("%w: take %d dead letters", queue.ErrInvalid, max)
	}
	var dead []queue.DeadLetter
	err := d.do(ctx, &call{admin: true, run: func(tx *sql.Tx, _ *state) (err error) {
		dead, err = takeDead(tx, max)
		return err
	}})
	return dead, err
}

// DropDead implements queue.Admin; ids that are not there are ignored.
func (d *DB) DropDead(ctx context.Context, ids ...string) error {
	return d.do(ctx, &call{admin: true, run: func(tx *sql.Tx, _ *state) error { return dropDead(tx, ids) }})
}

// Depth implements queue.Admin.
func (d *DB) Depth(ctx context.Context, name string) (int, error) {
	n := 0
	err := d.do(ctx, &call{queue: name, run: func(tx *sql.Tx, q *state) (err error) {
		n, err = depth(tx, q)
		return err
	}})
	return n, err
}

// do has the writer run a call and waits for its answer. When ctx ends first
// the call may still be carried out.
func (d *DB) do(ctx context.Context, c *call) error {
	c.done = make(chan struct{})
	if err := d.submit(ctx, c); err != nil {
		return err
	}
	return d.wait(ctx, c)
}

func (d *DB) submit(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-d.stop:
		return errClosed
	default:
	}
	select {
	case d.calls <- c:
		return nil
	case <-d.stop:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *DB) wait(ctx context.Context, c *call) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if c.receive != nil && !c.receive.leave() {
			<-c.done // messages are being handed over
			return c.err
		}
		return ctx.Err()
	case <-d.stopped:
		select {
		case <-c.done:
			return c.err
		default:
			return errClosed
		}
	}
}

var errClosed = fmt.Errorf("%w: closed", queue.ErrUnavailable)
