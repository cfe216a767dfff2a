package sqlite

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

const (
	trimmedSQL = `select value from meta where name = 'feed_trimmed'`
	lastSQL    = `select coalesce(max(seq), 0) from feed`
	changesSQL = `select seq, pk, sk, version, deleted from feed where seq > ?1 order by seq limit ?2`
	// pollEvery is how often a process that does not write looks for changes.
	pollEvery = 250 * time.Millisecond
)

// feedState wakes those who wait for changes.
type feedState struct {
	last atomic.Int64 // position of the newest record
	mu   sync.Mutex
	wake chan struct{} // closed and replaced when last moves
}

func (f *feedState) init() { f.wake = make(chan struct{}) }

func (f *feedState) advance(last int64) {
	f.last.Store(last)
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.wake)
	f.wake = make(chan struct{})
}

func (f *feedState) signal() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wake
}

// Changes implements ledger.Feed. A limit of 0 means MaxPage. A position that
// this file has not given out yet, as after a restore of an older backup, counts
// as expired.
func (db *DB) Changes(ctx context.Context, after string, limit int, wait time.Duration) ([]ledger.Change, string, error) {
	if limit < 0 || limit > ledger.MaxPage {
		return nil, "", fmt.Errorf("%w: feed limit %d: it is 0 to %d", ledger.ErrInvalid, limit, ledger.MaxPage)
	}
	if limit == 0 {
		limit = ledger.MaxPage
	}
	position := int64(-1)
	if after != "" {
		var err error
		if position, err = strconv.ParseInt(after, 10, 64); err != nil || position < 0 {
			return nil, "", fmt.Errorf("%w: feed position %q", ledger.ErrInvalid, after)
		}
	}
	deadline := time.NewTimer(max(wait, 0))
	defer deadline.Stop()
	var tick <-chan time.Time
	if db.opts.ReadOnly {
		t := time.NewTicker(pollEvery)
		defer t.Stop()
		tick = t.C
	}
	for {
		wake := db.feed.signal() // before the read: no record slips between
		changes, next, err := db.changes(ctx, position, limit)
		if err != nil {
			return nil, "", fmt.Errorf("read changes after %q: %w", after, err)
		}
		if len(changes) > 0 || wait <= 0 {
			return changes, strconv.FormatInt(next, 10), nil
		}
		position = next
		select {
		case <-wake:
		case <-tick:
		case <-deadline.C:
			return nil, strconv.FormatInt(next, 10), nil
		case <-db.closing:
			return nil, "", fmt.Errorf("read changes after %q: %w", after, errClosed)
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
}

// changes reads records behind position, -1 for the oldest.
func (db *DB) changes(ctx context.Context, position int64, limit int) (found []ledger.Change, next int64, err error) {
	err = db.read(ctx, func(c *conn) error {
		return snapshot(c, func() error {
			trimmed, err := c.intOf(trimmedSQL)
			if err != nil {
				return err
			}
			next = position
			if position < 0 {
				next = trimmed
			}
			if next < trimmed {
				return ledger.ErrPositionExpired
			}
			s, err := c.prepare(changesSQL)
			if err != nil {
				return err
			}
			defer s.reset()
			s.bindInt(1, next)
			s.bindInt(2, int64(limit))
			for {
				ok, err := s.step()
				if err != nil {
					return err
				}
				if !ok {
					break
				}
				next = s.intAt(0)
				found = append(found, ledger.Change{
					Key:     ledger.Key{PK: s.textAt(1), SK: s.textAt(2)},
					Version: s.intAt(3),
					Deleted: s.intAt(4) != 0,
				})
			}
			if len(found) > 0 {
				return nil
			}
			last, err := c.intOf(lastSQL)
			if err == nil && next > max(last, trimmed) {
				err = ledger.ErrPositionExpired
			}
			return err
		})
	})
	return found, next, err
}
