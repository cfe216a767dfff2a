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
		all.Failed, all.More, all.Err, all.Through = res.Failed, res.More, res.Err, res.Through
		all.Late = max(all.Late, res.Late)
		if err != nil || !res.More || ctx.Err() != nil {
			return all, err
		}
	}
}

// RingNext hands the chain of wake-ups on, behind what the last pass looked at:
// it rings for the next due time within Horizon, and sooner when something was
// left undone, or when that time could not be read. What fell due while that pass
// was at work is rung for at once. See Waker. An error means that it could not
// ring. Without a Waker it does nothing.
func (s *Sweep) RingNext(ctx context.Context, through time.Time, undone bool) error {
	if s.Waker == nil {
		return nil
	}
	now := s.Store.Now()
	if through.IsZero() {
		through, undone = now, true
	}
	next, err := nextDue(ctx, s.Store.Ledger, through, now.Add(Horizon))
	if err != nil {
		undone = true
		s.Logger.WarnContext(ctx, "the next due time is not known", "err", err)
	}
	if !next.IsZero() && next.Before(now) {
		next = now
	}
	dues := []time.Time{next}
	if undone {
		dues = append(dues, now.Add(againAfter))
	}
	return s.Waker.Ring(ctx, dues...)
}
