package loop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
)

// Why a run's contexts end.
var (
	errLeaseOver = errors.New("the lease has run out")
	errLeaseLost = errors.New("the plane says that the lease is lost")
	errDeadline  = errors.New("the operation's deadline has passed")
	errForced    = errors.New("the agent stops")
)

// lease is one assignment's right to act, counted on the agent's own clock from
// the moment the claim or the renewal was sent. Once over it stays over.
type lease struct {
	mono func() time.Duration
	call time.Duration // the plane's bound of one call

	mu       sync.Mutex
	until    time.Duration // the margin is taken off already
	deadline time.Duration
	ended    error
	endLease context.CancelCauseFunc
	endWork  context.CancelCauseFunc
	timer    *time.Timer
}

// margin is how long before its end a lease counts as over.
func margin(lease time.Duration) time.Duration { return min(lease/20, 500*time.Millisecond) }

// newLease returns the lease and two contexts: held ends with the lease, work
// also at the deadline.
func newLease(ctx context.Context, mono func() time.Duration, sent time.Duration, leaseMS, deadlineMS, callMS int64) (l *lease, held, work context.Context) {
	held, endLease := context.WithCancelCause(ctx)
	work, endWork := context.WithCancelCause(held)
	l = &lease{mono: mono, call: ms(callMS), endLease: endLease, endWork: endWork}
	l.mu.Lock()
	l.set(sent, leaseMS, deadlineMS)
	l.timer = time.AfterFunc(l.next(), l.tick)
	l.mu.Unlock()
	return l, held, work
}

func ms(n int64) time.Duration { return time.Duration(max(n, 0)) * time.Millisecond }

func (l *lease) set(sent time.Duration, leaseMS, deadlineMS int64) {
	d := ms(leaseMS)
	l.until = max(l.until, sent+d-margin(d))
	l.deadline = sent + ms(deadlineMS)
}

// next is how long until something is to be looked at.
func (l *lease) next() time.Duration {
	now := l.mono()
	d := l.until - now
	if l.deadline > now {
		d = min(d, l.deadline-now)
	}
	return max(d, 0)
}

// renew takes a renewal's answer over; false when the lease was over already.
func (l *lease) renew(sent time.Duration, leaseMS, deadlineMS int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return false
	}
	l.set(sent, leaseMS, deadlineMS)
	l.timer.Reset(l.next())
	return true
}

func (l *lease) tick() {
	if l.check() == errLeaseOver {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.timer.Reset(max(l.next(), time.Millisecond))
	}
}

// check returns nil, errDeadline, or why the lease is over, and ends the
// contexts accordingly. It reads the clock: a process that was stopped past its
// lease learns it here, before any timer fires.
func (l *lease) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return l.ended
	}
	now := l.mono()
	if now >= l.until {
		l.end(errLeaseOver)
		return l.ended
	}
	if now >= l.deadline {
		l.endWork(errDeadline)
		return errDeadline
	}
	return nil
}

func (l *lease) end(cause error) {
	if l.ended == nil {
		l.ended = cause
		l.endLease(cause)
		l.timer.Stop()
	}
}

// lose ends the lease at once.
func (l *lease) lose(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(cause)
}

// force ends the work, and leaves the lease so that its end can be told.
func (l *lease) force() { l.endWork(errForced) }

// release frees the timer and the contexts when the run is over.
func (l *lease) release() { l.lose(context.Canceled) }

// remaining is the time left until the deadline.
func (l *lease) remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.deadline-l.mono(), 0)
}

// fence is the last look before an effect: nil and a context that ends before
// the lease and within the call deadline, or ErrFenced.
func (l *lease) fence(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if l.check() != nil || ctx.Err() != nil {
		return nil, func() {}, executor.ErrFenced
	}
	l.mu.Lock()
	left := l.until - l.mono()
	l.mu.Unlock()
	if left <= 0 {
		return nil, func() {}, executor.ErrFenced
	}
	ctx, cancel := context.WithTimeout(ctx, min(left, l.call))
	return ctx, cancel, nil
}
