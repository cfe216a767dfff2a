package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// chunk bounds what the janitor deletes in one transaction, and so how long a
// commit waits behind it.
const chunk = 500

const (
	expiredSQL = `delete from items where id in (select id from items indexed by items_expires where expires <= ?1 order by expires limit ?2)`
	oldestSQL  = `select seq, at from feed order by seq limit ?1`
	trimSQL    = `delete from feed where seq <= ?1`
	setTrimSQL = `update meta set value = ?1 where name = 'feed_trimmed'`
)

// janitor deletes expired items and old change records until Close.
func (db *DB) janitor() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		every := db.opts.JanitorEvery
		timer := time.NewTimer(every - every/10 + rand.N(every/5+1)) // a tenth to either side
		select {
		case <-db.closing:
			timer.Stop()
			return
		case <-timer.C:
		}
		if err := db.clean(ctx); err != nil && !errors.Is(err, ledger.ErrUnavailable) { // the writer has logged that
			db.log.Error("ledger cleaning failed", slog.Any("err", err))
		}
	}
}

// clean deletes what is expired or too old now, chunk by chunk, so that commits
// go between.
func (db *DB) clean(ctx context.Context) error {
	trim := func(w *writer) (int64, error) { return trimFeed(w, db.opts.FeedAge) }
	for _, sweep := range []struct {
		run   func(*writer) (int64, error)
		count *atomic.Int64
	}{{sweepExpired, &db.counts.expired}, {trim, &db.counts.trimmed}} {
		for n := int64(chunk); n == chunk; {
			select {
			case <-db.closing:
				return nil
			default:
			}
			var done int64
			if err := db.submit(ctx, nil, func(w *writer) (err error) {
				done, err = sweep.run(w)
				return err
			}); err != nil {
				return err
			}
			n = done
			sweep.count.Add(n)
		}
	}
	return nil
}

// sweepExpired deletes items that have expired. Readers see no difference.
func sweepExpired(w *writer) (int64, error) {
	s, err := w.c.prepare(expiredSQL)
	if err != nil {
		return 0, err
	}
	s.bindInt(1, w.now)
	s.bindInt(2, chunk)
	if err := s.run(); err != nil {
		return 0, err
	}
	return w.c.changes(), nil
}

// trimFeed drops the oldest records up to the first that is younger than age,
// and remembers up to where.
func trimFeed(w *writer, age time.Duration) (int64, error) {
	s, err := w.c.prepare(oldestSQL)
	if err != nil {
		return 0, err
	}
	old := w.now - int64(age/time.Second)
	s.bindInt(1, chunk)
	var n, upTo int64
	for {
		ok, err := s.step()
		if err != nil {
			s.reset()
			return 0, err
		}
		if !ok || s.intAt(1) > old {
			break
		}
		n, upTo = n+1, s.intAt(0)
	}
	s.reset()
	if n == 0 {
		return 0, nil
	}
	for _, sql := range []string{trimSQL, setTrimSQL} {
		s, err := w.c.prepare(sql)
		if err != nil {
			return 0, err
		}
		s.bindInt(1, upTo)
		if err := s.run(); err != nil {
			return 0, err
		}
	}
	return n, nil
}
