package sweep

import (
	"context"
	"time"
)

// againAfter is when the sweep is rung again for what it could not deal with.
const againAfter = 5 * time.Second

// Run passes until nothing that is due is left over, or ctx ends, and tells what
// all passes did together. An error means that what is due could not be read.
func (s *Sweep) Run(ctx context.Context) (Result, error) {
	var all Result
	for {
		res, err := s.Pass(ctx)
		all.Due += res.Due
		all.Failed, all.More, all.Err = res.Failed, res.More, res.Err
		all.Late = max(all.Late, res.Late)
		if err != nil || !res.More || ctx.Err() != nil {
			return all, err
		}
	}
}

// RingNext hands the chain of wake-ups on: it rings for the next due time within
// Horizon, and sooner when something was left undone, or when that time could
// not be read. See Waker. An error means that it could not ring. Without a Waker
// it does nothing.
func (s *Sweep) RingNext(ctx context.Context, undone bool) error {
	if s.Waker == nil {
		return nil
	}
	now := s.Store.Now()
	next, err := nextDue(ctx, s.Store.Ledger, now, now.Add(Horizon))
	if err != nil {
		undone = true
		s.Logger.WarnContext(ctx, "the next due time is not known", "err", err)
	}
	dues := []time.Time{next}
	if undone {
		dues = append(dues, now.Add(againAfter))
	}
	return s.Waker.Ring(ctx, dues...)
}
