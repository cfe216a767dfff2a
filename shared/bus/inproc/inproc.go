// Package inproc is the one-machine engine of the bus: it hands events to
// subscribers in the same process. The relay publishes; what a site attaches
// (webhooks, exports) subscribes.
//
// An accepted message is handled at least once by every subscriber that matches
// it, or, after Attempts failures, dropped for that subscriber and counted. It
// is kept in memory only: what the process still held when it died is published
// again by the relay, which records what it has published afterwards.
//
// Subscribers are apart from each other, as targets of an EventBridge rule are.
// One that is slow but works holds publishers back for a moment (Block); one
// that fails loses its oldest messages when its buffer is full, counted, and
// nobody else notices.
package inproc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/bus"
)

// Handler handles one message. It is called by one goroutine per subscription,
// in the order of publishing, again and again until it returns nil.
type Handler func(ctx context.Context, m bus.Message) error

// Options tune the bus; zero values mean the defaults.
type Options struct {
	Buffer   int           // messages that wait per subscriber; 10,000
	Attempts int           // calls of a handler before its message is dropped; 8
	Timeout  time.Duration // of one call; 30 s
	// Backoff is the wait after a first failure; it doubles up to MaxBackoff,
	// and half of it is random. 100 ms and 10 s.
	Backoff, MaxBackoff time.Duration
	// Block is how long a publish waits for room in a working subscriber's
	// buffer; 1 s.
	Block time.Duration
	// OnDrop is told of every message dropped, with the handler's last error
	// (ErrFull when there was no room). It must not block.
	OnDrop func(m bus.Message, err error)
}

// ErrFull: a failing subscriber's buffer had no room.
var ErrFull = errors.New("subscriber's buffer is full")

// Bus is an engine; make one with New.
type Bus struct {
	o Options

	mu     sync.Mutex
	subs   []*Subscription
	closed bool
	past   Stats // of subscriptions that ended
}

var (
	_ bus.Publisher = (*Bus)(nil)
	_ bus.Audience  = (*Bus)(nil)
)

// New returns an open bus.
func New(o Options) *Bus {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.Timeout, 30*time.Second)
	set(&o.Backoff, 100*time.Millisecond)
	set(&o.MaxBackoff, 10*time.Second)
	set(&o.Block, time.Second)
	if o.Buffer == 0 {
		o.Buffer = 10_000
	}
	if o.Attempts == 0 {
		o.Attempts = 8
	}
	return &Bus{o: o}
}

// Subscribe calls the handler for every message published from now on that
// matches.
func (b *Bus) Subscribe(p bus.Pattern, h Handler) (*Subscription, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Subscription{bus: b, pattern: p, handle: h, stop: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1), room: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		cancel()
		return nil, fmt.Errorf("subscribe: %w: closed", bus.ErrUnavailable)
	}
	b.subs = append(b.subs, s)
	go s.run(ctx)
	return s, nil
}

// Publish accepts messages for all subscribers. What cannot be accepted is
// listed in a *bus.PartialError: messages that break a limit (ErrTooLarge,
// ErrInvalid), and those for which a subscriber had no room (ErrUnavailable). A
// message is accepted by all its subscribers or by none, so that publishing it
// again repeats nothing.
func (b *Bus) Publish(ctx context.Context, ms ...bus.Message) error {
	failed := &bus.PartialError{}
	fail := func(i int, err error) {
		if failed.Err == nil {
			failed.Err = err
		}
		failed.Failed = append(failed.Failed, i)
	}
	var deadline <-chan time.Time // one Block for the whole call
	full := false
	for i, m := range ms {
		m, err := m.Fit()
		if err == nil && full {
			err = fmt.Errorf("%w: %w", bus.ErrUnavailable, ErrFull)
		}
		for err == nil {
			var wait <-chan struct{}
			if wait, err = b.offer(m); err != nil || wait == nil {
				break
			}
			if deadline == nil {
				timer := time.NewTimer(b.o.Block)
				defer timer.Stop()
				deadline = timer.C
			}
			select {
			case <-wait:
			case <-deadline:
				full = true
				err = fmt.Errorf("%w: %w", bus.ErrUnavailable, ErrFull)
			case <-ctx.Done():
				full = true
				err = fmt.Errorf("%w: %w", bus.ErrUnavailable, ctx.Err())
			}
		}
		if err != nil {
			fail(i, err)
		}
	}
	if failed.Err != nil {
		return failed
	}
	return nil
}

// offer gives the message to all its subscribers, or, when a working one has no
// room, to none: it then returns what to wait for.
func (b *Bus) offer(m bus.Message) (wait <-chan struct{}, err error) {
	m.Detail = slices.Clone(m.Detail)
	var dropped []bus.Message
	defer func() { // after the unlock
		for _, m := range dropped {
			b.tellDrop(m, ErrFull)
		}
	}()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("%w: closed", bus.ErrUnavailable)
	}
	var to []*Subscription
	for _, s := range b.subs {
		if !s.pattern.Match(m.Type) {
			continue
		}
		if len(s.buffer) >= b.o.Buffer && !s.failing {
			return s.room, nil
		}
		to = append(to, s)
	}
	for _, s := range to {
		if len(s.buffer) >= b.o.Buffer {
			dropped = append(dropped, s.buffer[0])
			s.buffer = s.buffer[1:]
			s.stats.Dropped++
		}
		s.buffer = append(s.buffer, m)
		s.signal()
	}
	return nil, nil
}

// Attended implements bus.Audience.
func (b *Bus) Attended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) > 0
}

func (b *Bus) tellDrop(m bus.Message, err error) {
	if b.o.OnDrop != nil {
		b.o.OnDrop(m, err)
	}
}

// Close takes no more messages and waits until the buffers are empty or ctx
// ends; what is left then is dropped, counted, and told as an error.
func (b *Bus) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	subs := slices.Clone(b.subs)
	for _, s := range subs {
		s.ended = true
		s.signal()
		s.openRoom() // publishers that wait find the bus closed
	}
	b.mu.Unlock()
	for _, s := range subs {
		select {
		case <-s.done:
		case <-ctx.Done():
			s.stop()
			<-s.done
		}
	}
	left := 0
	for _, s := range subs {
		left += s.end()
	}
	if left > 0 {
		return fmt.Errorf("close bus: %d messages were not handled: %w", left, ctx.Err())
	}
	return nil
}
