package notify

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

const (
	// tidyEvery is how often a receiver's marks are gone through.
	tidyEvery = 24 * time.Hour
	// toldKept is how long after an alert resolved its mark is kept, for a notifier
	// that is behind.
	toldKept = 7 * 24 * time.Hour
)

// tidy deletes the marks, of alerts that a receiver was told of, that nobody else
// will: their alerts resolved while the receiver was disabled, or the event of that
// is gone. So there are no more than alerts that fire, and those of a week.
func (s *Service) tidy(ctx context.Context, h *held, now time.Time) error {
	if since := now.Sub(h.lane.Tidied); since >= 0 && since < tidyEvery {
		return nil
	}
	from, to := record.ToldOfSpan()
	q := ledger.Query{PK: record.OutboxPK(h.receiver), From: from, To: to, Limit: ledger.MaxWrites}
	for {
		p, err := s.Store.Ledger.Query(ctx, q)
		if err != nil {
			return fmt.Errorf("read marks: %w", err)
		}
		over, err := s.marksOver(ctx, p.Items, now.Add(-toldKept))
		if err != nil {
			return err
		}
		if len(over) > 0 {
			if err := s.Store.Ledger.Commit(ctx, over...); err != nil {
				return fmt.Errorf("delete marks: %w", err)
			}
		}
		if q.After = p.Next; q.After == "" {
			h.lane.Tidied = now // kept when the lane is left
			return nil
		}
	}
}

// marksOver returns the writes that delete those of the marks whose alerts resolved before
// the time, or are gone.
func (s *Service) marksOver(ctx context.Context, marks []ledger.Item, before time.Time) ([]ledger.Write, error) {
	var keys []ledger.Key
	for _, m := range marks {
		keys = append(keys, record.AlertKey(record.ToldOf(m.Key)))
	}
	if len(keys) == 0 {
		return nil, nil
	}
	alerts, err := s.Store.Ledger.GetMany(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read alerts: %w", err)
	}
	var out []ledger.Write
	for i, m := range marks {
		if it, ok := alerts[keys[i]]; ok {
			a, err := record.Decode[alert.Alert](it)
			if err != nil {
				s.unreadable(ctx, it.Key, err)
			}
			if err != nil || a.State != alert.Resolved || a.ResolvedAt == nil || a.ResolvedAt.After(before) {
				continue
			}
		}
		out = append(out, ledger.Write{Kind: ledger.Delete, Expect: m.Version, Item: ledger.Item{Key: m.Key}})
	}
	return out, nil
}
