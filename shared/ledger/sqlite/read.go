package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

var _ ledger.DuePager = (*DB)(nil)

// columns of an item as scan reads them.
const columns = `pk, sk, version, due, expires, list_pk, list_sk, scope_pk, scope_sk, lookup_pk, lookup_sk, live_pk, live_sk, data`

// alive leaves out what has expired at the time bound to ?1.
const alive = `(expires is null or expires > ?1)`

const (
	getSQL = `select ` + columns + ` from items where pk = ?2 and sk = ?3 and ` + alive
	dueSQL = `select ` + columns + ` from items indexed by items_due where due >= ?4 and due <= ?2 and ` + alive + ` order by due, pk, sk limit ?3`
)

// usable tells why a call is refused before it reads anything, or nil.
func (db *DB) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-db.closing:
		return errClosed
	default:
		return nil
	}
}

// read runs fn on a connection of the pool.
func (db *DB) read(ctx context.Context, fn func(*conn) error) error {
	if err := db.usable(ctx); err != nil {
		return err
	}
	db.counts.reads.Add(1)
	select {
	case c := <-db.pool:
		defer func() { db.pool <- c }()
		err := fn(c)
		var se *sqlError
		if errors.As(err, &se) {
			return unavailable(err)
		}
		return err
	case <-db.closing:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errClosed = fmt.Errorf("%w: closed", ledger.ErrUnavailable)

// snapshot runs fn in one read transaction.
func snapshot(c *conn, fn func() error) error {
	begin, err := c.prepare("begin")
	if err != nil {
		return err
	}
	end, err := c.prepare("commit")
	if err != nil {
		return err
	}
	if err := begin.run(); err != nil {
		return err
	}
	if err := fn(); err != nil {
		c.rollback()
		return err
	}
	return end.run()
}

// Get implements ledger.Reader.
func (db *DB) Get(ctx context.Context, k ledger.Key) (ledger.Item, error) {
	found, err := db.getMany(ctx, []ledger.Key{k})
	if err != nil {
		return ledger.Item{}, fmt.Errorf("get %s: %w", k, err)
	}
	it, ok := found[k]
	if !ok {
		return it, fmt.Errorf("get %s: %w", k, ledger.ErrNotFound)
	}
	return it, nil
}

// KnownVersion returns the version of an item, 0 when there is none, if that is
// known without a look at the file: who holds what the item said at that version
// need not read it. As current as Get.
func (db *DB) KnownVersion(k ledger.Key) (version int64, ok bool) {
	if db.memory == nil || db.usable(context.Background()) != nil {
		return 0, false
	}
	return db.memory.version(k)
}

func get(c *conn, k ledger.Key, now int64) (it ledger.Item, ok bool, err error) {
	s, err := c.prepare(getSQL)
	if err != nil {
		return it, false, err
	}
	defer s.reset()
	s.bindInt(1, now)
	s.bindText(2, k.PK)
	s.bindText(3, k.SK)
	if ok, err = s.step(); ok {
		it = scan(s)
	}
	return it, ok, err
}

// GetMany implements ledger.Reader. It reads one snapshot: of memory, which shows
// a group whole, or of the file.
func (db *DB) GetMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	if len(ks) > ledger.MaxWrites {
		return nil, fmt.Errorf("%w: get of %d items, the limit is %d", ledger.ErrInvalid, len(ks), ledger.MaxWrites)
	}
	found, err := db.getMany(ctx, ks)
	if err != nil {
		return nil, fmt.Errorf("get %d items: %w", len(ks), err)
	}
	return found, nil
}

func (db *DB) getMany(ctx context.Context, ks []ledger.Key) (map[ledger.Key]ledger.Item, error) {
	if err := db.usable(ctx); err != nil {
		return nil, err
	}
	var turn int64
	if db.memory != nil {
		var found map[ledger.Key]ledger.Item
		var all bool
		if found, all, turn = db.memory.get(ks); all {
			return found, nil
		}
	}
	found := make(map[ledger.Key]ledger.Item, len(ks))
	err := db.read(ctx, func(c *conn) error {
		now := db.now().Unix()
		if len(ks) == 1 {
			return getAll(c, ks, now, found)
		}
		return snapshot(c, func() error { return getAll(c, ks, now, found) })
	})
	if err == nil && db.memory != nil {
		db.memory.keep(ks, found, turn)
	}
	return found, err
}

func getAll(c *conn, ks []ledger.Key, now int64, found map[ledger.Key]ledger.Item) error {
	for _, k := range ks {
		it, ok, err := get(c, k, now)
		if err != nil {
			return err
		}
		if ok {
			found[k] = it
		}
	}
	return nil
}

// Due implements ledger.Reader.
func (db *DB) Due(ctx context.Context, until time.Time, limit int) ([]ledger.Item, error) {
	return db.DueFrom(ctx, time.Time{}, until, limit)
}

// DueFrom implements ledger.DuePager.
func (db *DB) DueFrom(ctx context.Context, from, until time.Time, limit int) (items []ledger.Item, err error) {
	if limit < 0 || limit > ledger.MaxPage {
		return nil, fmt.Errorf("%w: due limit %d: it is 0 to %d", ledger.ErrInvalid, limit, ledger.MaxPage)
	}
	if limit == 0 {
		limit = ledger.MaxPage
	}
	err = db.read(ctx, func(c *conn) error {
		s, err := c.prepare(dueSQL)
		if err != nil {
			return err
		}
		defer s.reset()
		s.bindInt(1, db.now().Unix())
		s.bindInt(2, until.UnixMilli())
		s.bindInt(3, int64(limit))
		s.bindInt(4, from.UnixMilli())
		for {
			ok, err := s.step()
			if !ok {
				return err
			}
			items = append(items, scan(s))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read due items: %w", err)
	}
	return items, nil
}

// scan copies the item that s is on.
func scan(s *stmt) ledger.Item {
	it := ledger.Item{
		Key:     ledger.Key{PK: s.textAt(0), SK: s.textAt(1)},
		Version: s.intAt(2),
		Data:    s.blobAt(13),
	}
	if !s.isNull(3) {
		it.Due = time.UnixMilli(s.intAt(3)).UTC()
	}
	if !s.isNull(4) {
		it.Expires = time.Unix(s.intAt(4), 0).UTC()
	}
	for i, x := range ledger.Indexes {
		col := int32(5 + 2*i)
		if s.isNull(col) {
			continue
		}
		if it.Index == nil {
			it.Index = make(map[ledger.Index]ledger.Key, len(ledger.Indexes))
		}
		it.Index[x] = ledger.Key{PK: s.textAt(col), SK: s.textAt(col + 1)}
	}
	return it
}
