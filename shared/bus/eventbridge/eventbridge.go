// Package eventbridge is the AWS engine of the bus: it puts events on an
// Amazon EventBridge bus, where rules of the users' own pick them up by source
// ("opsplane"), detail-type (the event's type) and anything in the detail.
//
// The relay publishes. EventBridge keeps an event until its rules have had it;
// delivery is at least once, in no order, and the detail's "id" tells repeats.
// The event's time has whole seconds there; the detail has all of it.
package eventbridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"

	"github.com/opsplane/opsplane/shared/bus"
)

const (
	// maxEntries bounds the entries of a request (Amazon EventBridge API
	// Reference, PutEvents).
	maxEntries = 10
	// maxRequestBytes bounds the entries of a request together, by sizeOf: under
	// 256 KB (Amazon EventBridge User Guide, Calculating PutEvents event entry
	// size), in most regions 1 MB since January 2026. Each 64 KB is billed as an
	// event of its own, so that smaller requests cost nothing.
	maxRequestBytes = 256<<10 - 1
	// timeBytes is what a time counts, see there.
	timeBytes = 14
	// callTime bounds a request with the SDK's own attempts.
	callTime = 10 * time.Second
)

// Options configure a bus.
type Options struct {
	// Client calls EventBridge; its credentials need events:PutEvents on the bus.
	Client *eventbridge.Client
	// Bus is the bus's name or ARN.
	Bus string
	// Logger is told of entries that are tried again; nil means nobody.
	Logger *slog.Logger
	// Attempts is how often an entry is put while EventBridge fails it by its own
	// fault; 0 means 5. A failed request is tried again by the SDK as well.
	Attempts int
	// Backoff is the longest pause after a first failed attempt; it doubles. 0
	// means 100 ms.
	Backoff time.Duration
}

// Bus is an engine; make one with New. It is safe for concurrent use.
type Bus struct{ o Options }

var _ bus.Publisher = (*Bus)(nil)

// New returns a publisher. It calls nothing yet.
func New(o Options) *Bus {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Attempts == 0 {
		o.Attempts = 5
	}
	if o.Backoff == 0 {
		o.Backoff = 100 * time.Millisecond
	}
	return &Bus{o: o}
}

// entry is a message on its way, with its place among the caller's.
type entry struct {
	at   int
	m    bus.Message
	put  types.PutEventsRequestEntry
	size int
	ref  bool // the detail is the message's reference by now
}

// byReference has the entry carry the message's reference. A detail that is
// sound JSON can still be none for EventBridge, which takes 1,000 levels and
// integers of 64 bits (Amazon EventBridge API Reference, PutEvents): refused for
// good, it would hold up all that comes after it.
func (e *entry) byReference() error {
	detail, err := bus.Reference(e.m)
	if err != nil {
		return err
	}
	e.put.Detail, e.ref = aws.String(string(detail)), true
	return nil
}

// Publish implements bus.Publisher. A detail that EventBridge calls malformed is
// put once more by reference, as one that is too large is at once.
//
// What EventBridge does not accept is listed in a *bus.PartialError: messages
// that break a limit (bus.ErrTooLarge, bus.ErrInvalid), credentials that are
// refused (ErrRefused), the rest bus.ErrUnavailable after some attempts. Once a
// whole request fails, what comes after it is not tried.
func (b *Bus) Publish(ctx context.Context, ms ...bus.Message) error {
	failed := failures{}
	entries := make([]entry, 0, len(ms))
	for i, m := range ms {
		m, err := m.Fit()
		if err != nil {
			failed[i] = err
			continue
		}
		put := types.PutEventsRequestEntry{EventBusName: &b.o.Bus, Source: aws.String(bus.Source), DetailType: aws.String(m.Type),
			Time: aws.Time(m.Time), Detail: aws.String(string(m.Detail))}
		entries = append(entries, entry{at: i, m: m, put: put, size: sizeOf(put)})
	}
	for len(entries) > 0 {
		n := fits(entries)
		if err := b.put(ctx, entries[:n], failed); err != nil {
			failed.all(entries[n:], err)
			break
		}
		entries = entries[n:]
	}
	return failed.err()
}

// failures are errors by the message's place among the caller's.
type failures map[int]error

func (f failures) all(entries []entry, err error) {
	for _, e := range entries {
		f[e.at] = err
	}
}

func (f failures) err() error {
	if len(f) == 0 {
		return nil
	}
	e := &bus.PartialError{}
	for i := range f {
		e.Failed = append(e.Failed, i)
	}
	slices.Sort(e.Failed)
	e.Err = f[e.Failed[0]]
	return e
}

// sizeOf is an entry's size as EventBridge counts it: the time as 14 bytes, and
// the bytes of source, detail-type, detail and resources (Amazon EventBridge
// User Guide, Calculating PutEvents event entry size).
func sizeOf(e types.PutEventsRequestEntry) int {
	n := len(aws.ToString(e.Source)) + len(aws.ToString(e.DetailType)) + len(aws.ToString(e.Detail))
	if e.Time != nil {
		n += timeBytes
	}
	for _, r := range e.Resources {
		n += len(r)
	}
	return n
}

// fits is how many of the entries go into one request: the first one always,
// which bus.MaxDetailBytes keeps under the limit.
func fits(entries []entry) int {
	size := 0
	for i, e := range entries {
		size += e.size
		if i == maxEntries || i > 0 && size > maxRequestBytes {
			return i
		}
	}
	return len(entries)
}

// put puts one request's entries, and again those that EventBridge failed by its
// own fault. Entries that come to nothing go to failed; an error means that the
// request as a whole did, so that another one is of no use.
func (b *Bus) put(ctx context.Context, entries []entry, failed failures) error {
	for attempt := 1; ; attempt++ {
		puts := make([]types.PutEventsRequestEntry, len(entries))
		for i, e := range entries {
			puts[i] = e.put
		}
		results, err := b.call(ctx, puts)
		if err != nil {
			failed.all(entries, err)
			return err
		}
		// "The result contains the entries in the order of the request" (Amazon
		// EventBridge API Reference, PutEvents).
		var left []entry
		var last *EntryError
		for i, r := range results {
			if r.ErrorCode == nil {
				continue
			}
			err := &EntryError{Code: *r.ErrorCode, Message: aws.ToString(r.ErrorMessage)}
			again := err.retryable()
			if errors.Is(err, bus.ErrInvalid) && !entries[i].ref {
				again = entries[i].byReference() == nil
			}
			if !again || attempt == b.o.Attempts {
				failed[entries[i].at] = fmt.Errorf("put event on %s: %w", b.o.Bus, err)
				continue
			}
			left, last = append(left, entries[i]), err
		}
		if entries = left; len(entries) == 0 {
			return nil
		}
		b.o.Logger.InfoContext(ctx, "events are put again", "entries", len(entries), "attempt", attempt, "code", last.Code)
		if err := b.pause(ctx, attempt); err != nil {
			failed.all(entries, fmt.Errorf("put event on %s: %w: %w", b.o.Bus, err, last))
			return failure(ctx, b.o.Bus, err)
		}
	}
}

// call puts entries once, and answers as many results as there are entries.
func (b *Bus) call(ctx context.Context, puts []types.PutEventsRequestEntry) ([]types.PutEventsResultEntry, error) {
	bounded, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	out, err := b.o.Client.PutEvents(bounded, &eventbridge.PutEventsInput{Entries: puts})
	if err != nil {
		return nil, failure(ctx, b.o.Bus, err)
	}
	if len(out.Entries) != len(puts) {
		return nil, failure(ctx, b.o.Bus, fmt.Errorf("answer has %d entries for %d", len(out.Entries), len(puts)))
	}
	return out.Entries, nil
}

// pause waits before the next attempt, a random part of a doubling time.
func (b *Bus) pause(ctx context.Context, attempt int) error {
	timer := time.NewTimer(rand.N(b.o.Backoff << min(attempt-1, 6)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
