package dynamo

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// queryIndex reads a page of an index behind the stored sort key after.
func (db *DB) queryIndex(ctx context.Context, q ledger.Query, after string) (ledger.Page, error) {
	// Stored sort keys have more behind the sort key, so none equals an end.
	s := span{escape(q.From), escape(q.To)}
	switch {
	case after == "":
	case q.Reverse && (s.high == "" || after < s.high):
		s.high = after
	case !q.Reverse && after > s.low:
		s.low = after
	}
	m := &merge{reverse: q.Reverse}
	partitions := db.partitions(q.PK)
	for _, p := range partitions {
		m.runs = append(m.runs, &run{index: string(q.Index), place: places[q.Index], partition: p, span: s, reverse: q.Reverse,
			page: pageOf(q.Limit+1, len(partitions))})
	}
	stands := func(it ledger.Item, h hint) bool {
		k, ok := it.Index[q.Index]
		return ok && k.PK == q.PK && storedSort(k.SK, it.Key) == h.sort
	}
	var page ledger.Page
	last := ""
	for size := 0; ; {
		hints, err := m.take(ctx, db, min(q.Limit-len(page.Items), ledger.MaxWrites))
		if err != nil {
			return page, err
		}
		if len(hints) == 0 {
			return page, nil
		}
		last = hints[len(hints)-1].sort
		if hints[0].sort == after { // the span begins with it
			hints = hints[1:]
		}
		items, at, err := db.items(ctx, hints, stands, nil)
		if err != nil {
			return page, err
		}
		for i, it := range items {
			size += len(it.Data)
			page.Items = append(page.Items, it)
			if size >= maxPageBytes && i < len(items)-1 {
				page.Next = encodeNext(q, at[i].sort)
				return page, nil
			}
		}
		if m.ended() {
			return page, nil
		}
		if len(page.Items) == q.Limit || size >= maxPageBytes {
			page.Next = encodeNext(q, last)
			return page, nil
		}
	}
}

// Due implements ledger.Reader. The due index is spread over parts by the hash
// of an item's key, each in the order of time; their heads are merged
// (infra/decisions/0004-due-by-hash.md). An item that cannot be read is told in
// the log and left out: the deadlines of all others hang on the rest.
func (db *DB) Due(ctx context.Context, until time.Time, limit int) ([]ledger.Item, error) {
	return db.DueFrom(ctx, time.Time{}, until, limit)
}

var _ ledger.DuePager = (*DB)(nil)

// DueFrom implements ledger.DuePager; see Due.
func (db *DB) DueFrom(ctx context.Context, from, until time.Time, limit int) ([]ledger.Item, error) {
	if limit < 0 || limit > ledger.MaxPage {
		return nil, fmt.Errorf("%w: due limit %d: it is 0 to %d", ledger.ErrInvalid, limit, ledger.MaxPage)
	}
	if limit == 0 {
		limit = ledger.MaxPage
	}
	m, s := &merge{}, span{high: storedTime(until)}
	if !from.IsZero() {
		s.low = storedTime(from)
	}
	for n := range db.shards {
		m.runs = append(m.runs, &run{index: indexDue, place: placeDue, partition: duePartition(n), span: s,
			page: pageOf(limit, db.shards)})
	}
	stands := func(it ledger.Item, h hint) bool { return !it.Due.IsZero() && storedTime(it.Due) == h.sort }
	unreadable := func(err error) { db.log.ErrorContext(ctx, "a due item cannot be read", "err", err) }
	var due []ledger.Item
	for len(due) < limit {
		hints, err := m.take(ctx, db, min(limit-len(due), ledger.MaxWrites))
		if err != nil {
			return nil, fmt.Errorf("read due items: %w", err)
		}
		if len(hints) == 0 {
			break
		}
		items, _, err := db.items(ctx, hints, stands, unreadable)
		if err != nil {
			return nil, fmt.Errorf("read due items: %w", err)
		}
		due = append(due, items...)
	}
	return due, nil
}
