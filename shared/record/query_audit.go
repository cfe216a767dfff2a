package record

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// maxAuditDays bounds the days that one call of Audits looks through.
const maxAuditDays = 40

// Audits reads audit records from newest to oldest: those before the place
// (TimeSort of a record, or of an instant) and not before since. It returns at
// most limit records and the place that it came to; "" when there are no more.
func (st *Store) Audits(ctx context.Context, before string, from, since time.Time, limit int) (records []Audit, next string, err error) {
	day := from.UTC().Truncate(24 * time.Hour)
	low := TimeSort(since, "")
	for range maxAuditDays {
		p, err := st.Ledger.Query(ctx, ledger.Query{PK: AuditPK(day), From: low, To: before, Reverse: true, Limit: limit - len(records)})
		if err != nil {
			return nil, "", fmt.Errorf("read audit records: %w", err)
		}
		for _, it := range p.Items {
			a, err := Decode[Audit](it)
			if err != nil {
				return nil, "", err
			}
			records = append(records, a)
			before = it.SK
		}
		if len(records) >= limit {
			return records, before, nil
		}
		if p.Next != "" {
			continue
		}
		if !day.After(since) {
			return records, "", nil
		}
		before = TimeSort(day, "")
		day = day.Add(-24 * time.Hour)
	}
	return records, before, nil
}
