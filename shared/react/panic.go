package react

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// A stream whose judging panicked is tried again after a pause, which doubles each
// time up to the longest.
const (
	panicPause   = 2 * time.Second
	longestPause = 5 * time.Minute
)

// PanicError says that judging a stream panicked: what it is about was told with
// its stack when that happened.
type PanicError struct {
	Stream string
	Value  any       // what it panicked with
	After  time.Time // it is not tried before
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("judge stream %s: it panicked (%v) and is not tried before %s", e.Stream, e.Value, e.After.UTC().Format(time.RFC3339))
}

// guarded runs f for a stream, whose lock is held. A panic ends there: it is told,
// what is at hand of the stream is forgotten, and the stream is left alone for a
// while. What is kept is as the last commit left it.
func (r *Reactor) guarded(ctx context.Context, stream string, j *judged, f func() error) (err error) {
	if j.panicked != nil && r.now().Before(j.panicked.After) {
		return j.panicked
	}
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		pause := min(panicPause<<min(j.panics, 10), longestPause)
		j.panics++
		j.stream, j.ahead = nil, nil
		j.size.Store(0)
		j.panicked = &PanicError{Stream: stream, Value: v, After: r.now().Add(pause)}
		r.Metrics.panicked()
		r.Logger.ErrorContext(ctx, "judging a stream panicked", "stream", stream, "again_in", pause.String(), "err", fmt.Errorf("panic: %v", v), "stack", string(debug.Stack()))
		err = j.panicked
	}()
	if err = f(); err == nil {
		j.panics, j.panicked = 0, nil
	}
	return err
}
