package sqlite

import (
	"fmt"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Index groups: the columns that belong to one index change together. An update
// names only the groups that changed, so that SQLite leaves the other indexes
// alone.
const (
	groupDue = 1 << iota
	groupExpires
	groupIndex    // the first of ledger.Indexes; the others follow
	indexGroups   = 6
	secondaryKeys = indexGroups - 2
)

const (
	findSQL = `select id, version, due, expires, list_pk, list_sk, scope_pk, scope_sk, lookup_pk, lookup_sk, live_pk, live_sk
		from items where pk = ?1 and sk = ?2`
	insertSQL = `insert into items (pk, sk, version, due, expires, list_pk, list_sk, scope_pk, scope_sk, lookup_pk, lookup_sk, live_pk, live_sk, data)
		values (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)`
	removeSQL = `delete from items where id = ?1`
	recordSQL = `insert into feed (seq, pk, sk, version, deleted, at) values (?1, ?2, ?3, ?4, ?5, ?6)`
)

// plan is what a write will do to the row that it found.
type plan struct {
	id      int64 // 0: there is no row
	version int64 // 0: there is no item, or it has expired
	changed int   // index groups that the put changes
}

// plan looks at every item of a commit, and returns the conflict if one of
// them has another version than expected.
func (w *writer) plan(writes []ledger.Write) (*ledger.ConflictError, error) {
	w.plans = w.plans[:0]
	var conflict *ledger.ConflictError
	for i := range writes {
		wr := &writes[i]
		p, err := w.look(wr)
		if err != nil {
			return nil, err
		}
		if wr.Expect != ledger.AnyVersion && wr.Expect != p.version {
			if conflict == nil {
				conflict = &ledger.ConflictError{}
			}
			conflict.Keys = append(conflict.Keys, wr.Item.Key)
		}
		w.plans = append(w.plans, p)
	}
	return conflict, nil
}

func (w *writer) look(wr *ledger.Write) (plan, error) {
	if e := w.known(wr.Item.Key); e != nil {
		p := plan{id: e.id, version: e.item.Version}
		if wr.Kind == ledger.Put && p.id != 0 {
			p.changed = changedBetween(&e.item, &wr.Item)
		}
		return p, nil
	}
	s := w.find
	defer s.reset()
	s.bindText(1, wr.Item.PK)
	s.bindText(2, wr.Item.SK)
	ok, err := s.step()
	if !ok {
		return plan{}, err
	}
	p := plan{id: s.intAt(0), version: s.intAt(1)}
	if !s.isNull(3) && s.intAt(3) <= w.now {
		p.version = 0
	}
	if wr.Kind == ledger.Put {
		p.changed = changedGroups(s, &wr.Item)
	}
	return p, nil
}

// known returns what is known of a key without a look at the file: by an earlier
// commit of this group, or by memory.
func (w *writer) known(k ledger.Key) *entry {
	if e := w.staged[k]; e != nil {
		if e.closed {
			return nil
		}
		return e
	}
	return w.db.memory.known(k)
}

// stage notes what the group's transaction makes of an item.
func (w *writer) stage(wr *ledger.Write, p plan) {
	switch {
	case wr.Kind == ledger.Delete:
		w.staged[wr.Item.Key] = &entry{}
	case !wr.Item.Expires.IsZero(), // it goes by the clock, not by a write
		p.version == 0 && !wr.Feed && len(wr.Item.Data) > historyBytes:
		w.staged[wr.Item.Key] = shutEntry
	default:
		it := wr.Item
		it.Version = p.version + 1
		it.Due = it.Due.UTC().Truncate(time.Millisecond)
		w.staged[wr.Item.Key] = &entry{item: it, id: p.id}
	}
}

// changedBetween compares two states of an item.
func changedBetween(was, is *ledger.Item) int {
	changed := 0
	if a, aok := millis(was.Due); true {
		if b, bok := millis(is.Due); aok != bok || a != b {
			changed |= groupDue
		}
	}
	if !is.Expires.IsZero() { // what memory knows does not expire
		changed |= groupExpires
	}
	for i, x := range ledger.Indexes {
		if was.Index[x] != is.Index[x] {
			changed |= groupIndex << i
		}
	}
	return changed
}

// changedGroups compares the row that s is on with the item.
func changedGroups(s *stmt, it *ledger.Item) int {
	changed := 0
	if due, ok := millis(it.Due); ok == s.isNull(2) || ok && due != s.intAt(2) {
		changed |= groupDue
	}
	if expires, ok := seconds(it.Expires); ok == s.isNull(3) || ok && expires != s.intAt(3) {
		changed |= groupExpires
	}
	for i, x := range ledger.Indexes {
		pk := s.raw(int32(4 + 2*i))
		k := it.Index[x] // keys are never empty: an absent one equals a null column
		if string(pk) != k.PK || k.PK != "" && string(s.raw(int32(5+2*i))) != k.SK {
			changed |= groupIndex << i
		}
	}
	return changed
}

// apply carries out the plans.
func (w *writer) apply(writes []ledger.Write) error {
	for i := range writes {
		wr, p := &writes[i], w.plans[i]
		var err error
		switch {
		case wr.Kind == ledger.Put && p.id == 0:
			err = w.put(w.insert, wr, p, 1<<indexGroups-1)
		case wr.Kind == ledger.Put:
			var s *stmt
			if s, err = w.update(p.changed); err == nil {
				err = w.put(s, wr, p, p.changed)
			}
		case wr.Kind == ledger.Delete && p.id != 0:
			w.remove.bindInt(1, p.id)
			err = w.remove.run()
		default: // a check, or a delete of nothing
			continue
		}
		if err != nil {
			return err
		}
		if p.id == 0 {
			p.id = w.c.lastID()
		}
		w.stage(wr, p)
		w.rows++
		if wr.Feed {
			if err := w.feed(wr, p.version); err != nil {
				return err
			}
		}
	}
	return nil
}

// put binds an item's columns in the order of insertSQL, of the index groups
// only those in groups, and runs the statement. An insert begins with the key,
// an update with the row and the version.
func (w *writer) put(s *stmt, wr *ledger.Write, p plan, groups int) error {
	it := &wr.Item
	if p.id == 0 {
		s.bindText(1, it.PK)
		s.bindText(2, it.SK)
	} else {
		s.bindInt(1, p.id)
		s.bindInt(2, p.version+1)
	}
	at := int32(3)
	bindTime := func(v int64, ok bool) {
		if ok {
			s.bindInt(at, v)
		} else {
			s.bindNull(at)
		}
		at++
	}
	if groups&groupDue != 0 {
		bindTime(millis(it.Due))
	}
	if groups&groupExpires != 0 {
		bindTime(seconds(it.Expires))
	}
	for i, x := range ledger.Indexes {
		if groups&(groupIndex<<i) == 0 {
			continue
		}
		if k, ok := it.Index[x]; ok {
			s.bindText(at, k.PK)
			s.bindText(at+1, k.SK)
		} else {
			s.bindNull(at)
			s.bindNull(at + 1)
		}
		at += 2
	}
	s.bindBlob(at, it.Data)
	return s.run()
}

// update returns the statement that updates a row and the given index groups.
func (w *writer) update(groups int) (*stmt, error) {
	if s := w.updates[groups]; s != nil {
		return s, nil
	}
	columns := []string{"version"}
	if groups&groupDue != 0 {
		columns = append(columns, "due")
	}
	if groups&groupExpires != 0 {
		columns = append(columns, "expires")
	}
	for i, x := range ledger.Indexes {
		if groups&(groupIndex<<i) != 0 {
			columns = append(columns, string(x)+"_pk", string(x)+"_sk")
		}
	}
	columns = append(columns, "data")
	var sql strings.Builder
	sql.WriteString("update items set ")
	for i, name := range columns {
		if i > 0 {
			sql.WriteString(", ")
		}
		fmt.Fprintf(&sql, "%s = ?%d", name, i+2)
	}
	sql.WriteString(" where id = ?1")
	s, err := w.c.prepare(sql.String())
	if err != nil {
		return nil, err
	}
	w.updates[groups] = s
	return s, nil
}

// feed appends the change record of a write. A put's version is the new one, a
// delete's the one that went.
func (w *writer) feed(wr *ledger.Write, version int64) error {
	s, deleted := w.record, int64(1)
	if wr.Kind == ledger.Put {
		version, deleted = version+1, 0
	} else if version == 0 {
		return nil // it had expired: readers have seen it go
	}
	w.seq++
	w.fed++
	s.bindInt(1, w.seq)
	s.bindText(2, wr.Item.PK)
	s.bindText(3, wr.Item.SK)
	s.bindInt(4, version)
	s.bindInt(5, deleted)
	s.bindInt(6, w.now)
	return s.run()
}

// millis is a due time as stored, and whether there is one.
func millis(t time.Time) (int64, bool) { return t.UnixMilli(), !t.IsZero() }

// seconds is an expiry as stored, rounded up: an item never goes early.
func seconds(t time.Time) (int64, bool) {
	s := t.Unix()
	if t.Nanosecond() > 0 {
		s++
	}
	return s, !t.IsZero()
}
