package dynamo

import (
	"context"
	"math/rand/v2"
	"time"
)

// pauses bound how the engine tries again.
type pauses struct {
	attempt time.Duration // one call of DynamoDB; after it the outcome counts as unknown
	budget  time.Duration // how long new attempts of a commit are begun
	settle  time.Duration // how long an unknown outcome is looked into after the caller gave up
	base    time.Duration // the first wait is up to this; it doubles
	most    time.Duration // the longest wait
}

// defaultPauses stay far inside the 10 minutes for which DynamoDB knows a
// transaction's token (AWS: TransactWriteItems, "Idempotency"), and inside the
// 10 s that an agent's call may take.
var defaultPauses = pauses{attempt: 3 * time.Second, budget: 8 * time.Second, settle: time.Second, base: 10 * time.Millisecond, most: time.Second}

// wait sleeps before try n (from 0), with full jitter (AWS Architecture Blog,
// "Exponential Backoff And Jitter"). It returns early with ctx's error.
func (p pauses) wait(ctx context.Context, n int) error {
	most := min(p.base<<min(n, 16), p.most)
	t := time.NewTimer(rand.N(most) + 1)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
