package aws

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/verify"
)

// tick is when the sweep looks at last, a wake-up lost: the schedule's minute and
// a margin.
const tick = 75 * time.Second

// bound is how long past its deadline an operation may be live on AWS: its
// agent's lease, one call deadline, and the tick that looks when a wake-up was
// lost.
func bound(tm operation.Timing) time.Duration { return tm.Lease + tm.CallDeadline + tick }

// Verify walks the table and prints what it found; an error tells that something
// does not hold. The plane may run meanwhile: what moves under the walk looks
// broken for a moment, so what is found is looked for once more, and counts only
// when it is there both times.
func (d *Deployment) Verify(ctx context.Context, w io.Writer) error {
	r, err := d.prove(ctx, time.Now())
	if err != nil {
		return err
	}
	return tell(w, r)
}

// prove judges deadlines at now.
func (d *Deployment) prove(ctx context.Context, now time.Time) (verify.Report, error) {
	r, err := verify.Run(ctx, d.Store, now, bound(d.Store.Timing))
	if err != nil {
		return r, plainIn(err)
	}
	if r.Count > 0 {
		first := r.Problems
		if r, err = verify.Run(ctx, d.Store, now, bound(d.Store.Timing)); err != nil {
			return r, plainIn(err)
		}
		r.Problems = slices.DeleteFunc(r.Problems, func(p string) bool { return !slices.Contains(first, p) })
		r.Count = len(r.Problems)
	}
	return r, nil
}

func tell(w io.Writer, r verify.Report) error {
	fmt.Fprintf(w, "%d operations (%d live), %d journal entries, %d locks held, %d streams, %d events\n",
		r.Operations, r.Live, r.Entries, r.Locks, r.Streams, r.Events)
	for _, p := range r.Problems {
		fmt.Fprintln(w, "PROBLEM", p)
	}
	if r.Count > 0 {
		return r.Err()
	}
	fmt.Fprintln(w, "everything holds")
	return nil
}
