package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// writer owns the only connection that writes.
type writer struct {
	db *DB
	c  *conn

	begin, commit, find, insert, remove, record *stmt

	updates [1 << indexGroups]*stmt // by the index groups that change

	batch   []*request
	answers []error
	plans   []plan
	staged  map[ledger.Key]*entry // what the group's transaction has written
	now     int64                 // Unix seconds, the same for a whole group
	seq     int64                 // last feed position
	fed     int                   // change records of the group
	rows    int                   // rows of the group
}

func newWriter(db *DB, c *conn) (*writer, error) {
	w := &writer{db: db, c: c, staged: map[ledger.Key]*entry{}}
	for sql, s := range map[string]**stmt{
		"begin immediate": &w.begin,
		"commit":          &w.commit,
		findSQL:           &w.find,
		insertSQL:         &w.insert,
		removeSQL:         &w.remove,
		recordSQL:         &w.record,
	} {
		var err error
		if *s, err = c.prepare(sql); err != nil {
			return nil, err
		}
	}
	trimmed, err := c.intOf(trimmedSQL)
	if err != nil {
		return nil, err
	}
	last, err := c.intOf("select max(seq) from feed")
	if err != nil {
		return nil, err
	}
	w.seq = max(trimmed, last)
	db.feed.last.Store(w.seq)
	return w, nil
}

// loop commits group after group until the queue is closed and empty.
func (w *writer) loop() {
	for {
		w.batch = w.db.queue.take(w.batch[:0])
		if len(w.batch) == 0 {
			return
		}
		w.group()
		clear(w.batch)
	}
}

// group commits one batch and answers every request of it.
func (w *writer) group() {
	w.answers = append(w.answers[:0], make([]error, len(w.batch))...)
	w.now = w.db.now().Unix()
	w.fed, w.rows = 0, 0
	seq := w.seq
	clear(w.staged)
	if err := w.transact(); err != nil {
		w.c.rollback()
		w.seq = seq
		w.db.counts.failures.Add(1)
		w.db.log.Error("ledger commit failed", slog.Any("err", err), slog.Int("commits", len(w.batch)))
		err = unavailable(err)
		w.db.last.Store(&Outcome{time.Now(), err})
		for _, r := range w.batch {
			r.answer <- err
		}
		return
	}
	w.db.memory.open(w.staged)
	if w.rows > 0 {
		w.db.last.Store(&Outcome{At: time.Now()})
	}
	w.db.counts.batches.Add(1)
	w.db.counts.writes.Add(int64(w.rows))
	if w.fed > 0 {
		w.db.feed.advance(w.seq)
	}
	w.db.watch.signal(w.batch, w.answers)
	for i, r := range w.batch {
		err := w.answers[i]
		switch {
		case r.chore != nil:
		case err == nil:
			w.db.counts.commits.Add(1)
		default:
			w.db.counts.conflicts.Add(1)
		}
		r.answer <- err
	}
}

// transact runs the batch in one transaction. A failure of any statement fails
// it whole; a conflict only withholds its own commit, which has then written
// nothing.
func (w *writer) transact() error {
	if err := w.begin.run(); err != nil {
		return err
	}
	for i, r := range w.batch {
		if r.chore != nil {
			if err := r.chore(w); err != nil {
				return err
			}
			continue
		}
		conflict, err := w.plan(r.writes)
		if err != nil {
			return err
		}
		if conflict != nil {
			w.answers[i] = conflict
			continue
		}
		if err := w.apply(r.writes); err != nil {
			return err
		}
	}
	w.db.memory.shut(w.staged)
	return w.commit.run()
}

// unavailable is what a caller sees of an engine failure.
func unavailable(err error) error {
	if errors.Is(err, ledger.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
}
