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
// the moment the claim or the renewal was sent. Acting ends first, and for good;
// telling goes on for one call deadline, during which no successor may claim.
type lease struct {
	mono func() time.Duration
	call time.Duration // the plane's bound of one call

	mu       sync.Mutex
	until    time.Duration // acting ends; the margin is taken off already
	deadline time.Duration
	tell     time.Duration // telling ends
	acting   error         // why acting is over
	ended    error         // why the lease is over altogether
	endLease context.CancelCauseFunc
	endWork  context.CancelCauseFunc
	timer    *time.Timer
}

// margin is how long before its end a lease counts as over.
func margin(lease time.Duration) time.Duration { return min(lease/20, 500*time.Millisecond) }

// newLease returns the lease and two contexts: work ends when acting does, held
// when telling does.
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
	l.deadline = sent + ms(deadlineMS)
	until := sent + d - margin(d)
	if leaseMS >= deadlineMS { // the plane lets no lease outlive the deadline: that ends the work
		until = l.deadline
	}
	l.until = max(l.until, until)
	l.tell = max(l.tell, sent+d+l.call)
}

// next is how long until something is to be looked at.
func (l *lease) next() time.Duration {
	at := l.tell
	if l.acting == nil {
		at = min(l.until, l.deadline)
	}
	return max(at-l.mono(), 0)
}

// renew takes a renewal's answer over, unless acting is over already.
func (l *lease) renew(sent time.Duration, leaseMS, deadlineMS int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil && l.acting == nil {
		l.set(sent, leaseMS, deadlineMS)
		l.timer.Reset(l.next())
	}
}

func (l *lease) tick() {
	_ = l.check()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.timer.Reset(max(l.next(), time.Millisecond))
	}
}

// check returns nil, or why nothing may be issued any more, and ends the
// contexts accordingly. It reads the clock: a process that was stopped past its
// lease learns it here, before any timer fires.
func (l *lease) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return l.ended
	}
	now := l.mono()
	if l.acting == nil {
		switch {
		case now >= l.deadline && l.deadline <= l.until:
			l.stopActing(errDeadline)
		case now >= l.until:
			l.stopActing(errLeaseOver)
		}
	}
	if now >= l.tell {
		l.end(errLeaseOver)
	}
	return l.acting
}

func (l *lease) stopActing(cause error) {
	if l.acting == nil {
		l.acting = cause
		l.endWork(cause)
	}
}

func (l *lease) end(cause error) {
	if l.ended == nil {
		l.stopActing(cause)
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

// force ends the acting, and leaves the lease so that its end can be told.
func (l *lease) force() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopActing(errForced)
}

// release frees the timer and the contexts when the run is over.
func (l *lease) release() { l.lose(context.Canceled) }

// over tells whether the lease has ended altogether.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended != nil
}

// remaining is the time left until the deadline.
func (l *lease) remaining() time.Duration { return max(l.left(), 0) }

// left is how far the operation's deadline lies ahead; negative: it has passed.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline - l.mono()
}

// fence is the last look before an effect: nil and a context that ends before
// the lease and within the call deadline, or ErrFenced.
func (l *lease) fence(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if l.check() != nil || ctx.Err() != nil {
		return nil, func() {}, executor.ErrFenced
	}
	l.mu.Lock()
	left := min(l.until, l.deadline) - l.mono()
	l.mu.Unlock()
	if left <= 0 {
		return nil, func() {}, executor.ErrFenced
	}
	ctx, cancel := context.WithTimeout(ctx, min(left, l.call))
	return ctx, cancel, nil
}
