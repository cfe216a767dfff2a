package loop

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
)

const (
	// cutAfter is how long a step that only reads may take to come to a boundary by
	// itself: a read that meets silence takes until its own limit.
	cutAfter = time.Second
	// observeUntouched bounds the look at a target at which nothing was done.
	observeUntouched = time.Second
)

// errCut ends a step that only reads.
var errCut = errors.New("it only reads, and is not needed any more")

// untouched tells whether no step with an effect was ever begun: an end at any point
// leaves nothing behind.
func (r *run) untouched() bool {
	return !slices.ContainsFunc(r.steps, func(s *stepState) bool { return s.Effect && s.begun })
}

// cutsShort ends a step's context, by cut, a moment after the boundary is called for,
// where the step only reads and nothing was touched.
func (r *run) cutsShort(within context.Context, cut context.CancelCauseFunc, s *stepState, boundary <-chan struct{}) {
	if boundary == nil || s.Effect || !s.ReplaySafe || !r.untouched() {
		return
	}
	go func() {
		select {
		case <-boundary:
		case <-within.Done():
			return
		}
		if pause(within, cutAfter) {
			cut(errCut)
		}
	}()
}

// asCut is the outcome of a step that was cut short: whatever it came to is of its being
// cut, unless it was decided before.
func asCut(within context.Context, out executor.Outcome) executor.Outcome {
	if !errors.Is(context.Cause(within), errCut) || out.Class == operation.OutcomeDone || out.Class == operation.OutcomePermanent {
		return out
	}
	return executor.Waiting("cut_short", "it only reads, and was cut short before it was answered")
}
