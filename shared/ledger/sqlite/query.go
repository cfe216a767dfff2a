package sqlite

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/opsplane/opsplane/shared/ledger"
)

// maxPageBytes ends a page early: a page of the largest items would be 350 MB.
const maxPageBytes = 4 << 20

// Query implements ledger.Reader.
func (db *DB) Query(ctx context.Context, q ledger.Query) (ledger.Page, error) {
	if err := q.Validate(); err != nil {
		return ledger.Page{}, err
	}
	if q.Limit == 0 {
		q.Limit = ledger.MaxPage
	}
	var after place
	if q.After != "" {
		var err error
		if after, err = decodePlace(q); err != nil {
			return ledger.Page{}, err
		}
	}
	var page ledger.Page
	err := db.read(ctx, func(c *conn) (err error) {
		page, err = query(c, q, after, db.now().Unix())
		return err
	})
	if err != nil {
		return ledger.Page{}, fmt.Errorf("query %s %q: %w", q.Index, q.PK, err)
	}
	return page, nil
}

// shape is what the text of a query's statement hangs on. bounded: forward, the
// run has an end; in reverse, it has a place to begin at.
type shape struct {
	index            ledger.Index
	reverse, bounded bool
}

// statements holds the texts, so that a query finds its prepared statement
// without building one.
var statements = func() map[shape]string {
	m := map[shape]string{}
	for _, x := range append([]ledger.Index{ledger.Primary}, ledger.Indexes...) {
		for i := range 4 {
			s := shape{index: x, reverse: i&1 != 0, bounded: i&2 != 0}
			m[s] = s.sql()
		}
	}
	return m
}()

// sql writes the statement. Its parameters: ?1 now, ?2 the partition, ?3 the
// limit, ?4 ?5 ?6 the place to begin at, ?7 the sort key that ends the run.
func (s shape) sql() string {
	table, pk, sk, start, order, down := "items_key", "pk", "sk", "?4", "sk", "sk desc"
	after := "sk >= ?4" // the caller passes the next possible key
	if x := string(s.index); x != "" {
		table, pk, sk = "items_"+x, x+"_pk", x+"_sk"
		order, down = sk+", pk, sk", sk+" desc, pk desc, sk desc"
		start = "(?4, ?5, ?6)"
		after = "(" + order + ") > " + start
	}
	sql := "select " + columns + " from items indexed by " + table + " where " + alive + " and " + pk + " = ?2"
	if !s.reverse {
		sql += " and " + after
		if s.bounded {
			sql += " and " + sk + " < ?7"
		}
		return sql + " order by " + order + " limit ?3"
	}
	sql += " and " + sk + " >= ?7"
	if s.bounded {
		sql += " and (" + order + ") < " + start
	}
	return sql + " order by " + down + " limit ?3"
}

// query reads one page. After is zero or the place that an earlier page ended at.
func query(c *conn, q ledger.Query, after place, now int64) (page ledger.Page, err error) {
	begin, end := place{sort: q.From}, q.To
	if q.Reverse {
		begin, end = place{sort: q.To}, q.From
		if after.sort != "" && (q.To == "" || after.sort < q.To) {
			begin = after
		}
	} else if after.sort != "" && after.sort >= q.From {
		begin = after
		if q.Index == ledger.Primary {
			begin.sort += "\x00"
		}
	}
	kind := shape{q.Index, q.Reverse, end != ""}
	if q.Reverse {
		kind.bounded = begin.sort != ""
	}
	s, err := c.prepare(statements[kind])
	if err != nil {
		return page, err
	}
	defer s.reset()
	s.bindInt(1, now)
	s.bindText(2, q.PK)
	s.bindInt(3, int64(q.Limit)+1) // one more tells whether there is a next page
	if !q.Reverse || kind.bounded {
		s.bindText(4, begin.sort)
		if q.Index != ledger.Primary {
			s.bindText(5, begin.key.PK)
			s.bindText(6, begin.key.SK)
		}
	}
	if q.Reverse || kind.bounded {
		s.bindText(7, end)
	}
	for bytes := 0; ; {
		ok, err := s.step()
		if !ok {
			return page, err
		}
		if n := len(page.Items); n == q.Limit || bytes >= maxPageBytes {
			page.Next = encodePlace(q, page.Items[n-1])
			return page, nil
		}
		it := scan(s)
		bytes += len(it.Data)
		page.Items = append(page.Items, it)
	}
}

// place is where in a run an item stands: by sort key, then, in an index, by
// the item's own key.
type place struct {
	sort string
	key  ledger.Key
}

// encodePlace makes a page's Next: a mark of the query that it belongs to and
// the place of the page's last item.
func encodePlace(q ledger.Query, last ledger.Item) string {
	b := queryMark(q)
	if q.Index == ledger.Primary {
		b = append(b, last.SK...)
	} else {
		for _, part := range []string{last.Index[q.Index].SK, last.PK, last.SK} {
			b = binary.AppendUvarint(b, uint64(len(part)))
			b = append(b, part...)
		}
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func decodePlace(q ledger.Query) (place, error) {
	bad := fmt.Errorf("%w: After %q is not the Next of a page of this query", ledger.ErrInvalid, q.After)
	b, err := base64.RawURLEncoding.DecodeString(q.After)
	mark := queryMark(q)
	if err != nil || len(b) <= len(mark) || string(b[:len(mark)]) != string(mark) {
		return place{}, bad
	}
	b = b[len(mark):]
	if q.Index == ledger.Primary {
		return place{sort: string(b)}, nil
	}
	var parts [3]string
	for i := range parts {
		n, used := binary.Uvarint(b)
		if used <= 0 || n == 0 || n > uint64(len(b)-used) {
			return place{}, bad
		}
		parts[i], b = string(b[used:used+int(n)]), b[used+int(n):]
	}
	if len(b) > 0 {
		return place{}, bad
	}
	return place{sort: parts[0], key: ledger.Key{PK: parts[1], SK: parts[2]}}, nil
}

// queryMark tells queries apart whose places mean different things.
func queryMark(q ledger.Query) []byte {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %t %s", q.Index, q.Reverse, q.PK)
	return h.Sum(nil)
}
