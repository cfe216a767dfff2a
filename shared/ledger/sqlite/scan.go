package sqlite

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/opsplane/opsplane/shared/ledger"
)

var _ ledger.Scanner = (*DB)(nil)

const scanSQL = `select ` + columns + ` from items indexed by items_key where ` + alive + ` and (pk, sk) > (?2, ?3) order by pk, sk limit ?4`

// Scan implements ledger.Scanner: by partition and sort key.
func (db *DB) Scan(ctx context.Context, after string, limit int) (ledger.Page, error) {
	if limit < 0 || limit > ledger.MaxPage {
		return ledger.Page{}, fmt.Errorf("%w: scan limit %d: it is 0 to %d", ledger.ErrInvalid, limit, ledger.MaxPage)
	}
	if limit == 0 {
		limit = ledger.MaxPage
	}
	from, err := decodeKey(after)
	if err != nil {
		return ledger.Page{}, err
	}
	var page ledger.Page
	err = db.read(ctx, func(c *conn) (err error) {
		page, err = scanPage(c, from, limit, db.now().Unix())
		return err
	})
	if err != nil {
		return ledger.Page{}, fmt.Errorf("scan ledger: %w", err)
	}
	return page, nil
}

func scanPage(c *conn, from ledger.Key, limit int, now int64) (page ledger.Page, err error) {
	s, err := c.prepare(scanSQL)
	if err != nil {
		return page, err
	}
	defer s.reset()
	s.bindInt(1, now)
	s.bindText(2, from.PK)
	s.bindText(3, from.SK)
	s.bindInt(4, int64(limit)+1) // one more tells whether there is a next page
	for bytes := 0; ; {
		ok, err := s.step()
		if !ok {
			return page, err
		}
		if n := len(page.Items); n == limit || bytes >= maxPageBytes {
			page.Next = encodeKey(page.Items[n-1].Key)
			return page, nil
		}
		it := scan(s)
		bytes += len(it.Data)
		page.Items = append(page.Items, it)
	}
}

// encodeKey makes a scan's Next: the key of the page's last item.
func encodeKey(k ledger.Key) string {
	b := binary.AppendUvarint(nil, uint64(len(k.PK)))
	b = append(b, k.PK...)
	return base64.RawURLEncoding.EncodeToString(append(b, k.SK...))
}

func decodeKey(after string) (ledger.Key, error) {
	if after == "" {
		return ledger.Key{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(after)
	n, used := binary.Uvarint(b)
	if err != nil || used <= 0 || n == 0 || n >= uint64(len(b)-used) {
		return ledger.Key{}, fmt.Errorf("%w: After %q is not the Next of a scan's page", ledger.ErrInvalid, after)
	}
	b = b[used:]
	return ledger.Key{PK: string(b[:n]), SK: string(b[n:])}, nil
}
