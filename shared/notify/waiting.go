package notify

import (
	"context"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// waitingMost is how many of a receiver's messages are looked at for the one that has
// waited longest.
const waitingMost = 20

// OldestWaiting is, by a receiver's name, how long the message has waited that has waited
// longest for it to take it: since its event came, or since it was redelivered, or the receiver enabled. One
// that is disabled takes nothing, and does not count; neither does what an Alertmanager took
// and is told again (Active), which its hold shows. Of each receiver the first waitingMost
// are looked at, by when they were made. 0: none waits.
func (s *Service) OldestWaiting(ctx context.Context) (map[string]time.Duration, error) {
	all, err := s.loadReceivers(ctx)
	if err != nil {
		return nil, err
	}
	oldest, now := map[string]time.Duration{}, s.now()
	for i := range all {
		r := &all[i]
		if !r.Active() {
			continue
		}
		oldest[r.Name] = 0
		p, err := s.Store.Ledger.Query(ctx, ledger.Query{Index: ledger.Lookup, PK: record.DeliveriesOf(r.ID, string(Pending)), Limit: waitingMost})
		if err != nil {
			return nil, fmt.Errorf("read what waits for receiver %s: %w", r.ID, err)
		}
		for _, it := range p.Items {
			d, err := decodeDelivery(it)
			if err != nil {
				continue // it is told, and put aside, when it is due
			}
			since := d.Received
			if d.RedeliveredAt.After(since) {
				since = d.RedeliveredAt
			}
			if r.EnabledAt.After(since) {
				since = r.EnabledAt // it was not to be told before
			}
			oldest[r.Name] = max(oldest[r.Name], now.Sub(since))
		}
	}
	return oldest, nil
}
