package event

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Limits of one append. They leave room in the commit for the caller's own
// writes.
const (
	maxAppendRuns  = 60
	maxAppendBytes = 2 << 20
	// maxAppendTries bounds how often an append is tried again after losing the
	// race for the head. One of the racers wins each round.
	maxAppendTries = 100
)

// ErrTooLarge: the events do not fit in one commit; Fit says how many do.
var ErrTooLarge = errors.New("too many events for one append")

// Fit returns how many of the leading events fit in one append. It is at least
// 1, unless there is none.
func Fit(evs []Event) int {
	if roughBytes(evs) <= maxAppendBytes {
		return len(evs) // so few bytes never need that many runs
	}
	const later = len(".000") // what a time may grow by when the append puts it later
	runs, total, inRun, runBytes := 1, 0, 0, 0
	for i := range evs {
		b, err := encodeEvent(&evs[i])
		if err != nil {
			return max(i, 1) // the append tells why
		}
		size := len(b) + later + 1
		if inRun == MaxRunEvents || inRun > 0 && runBytes+size > runRoom {
			runs, inRun, runBytes = runs+1, 0, 0
		}
		inRun, runBytes, total = inRun+1, runBytes+size, total+size
		if runs > maxAppendRuns || total > maxAppendBytes {
			return max(i, 1)
		}
	}
	return len(evs)
}

// roughBytes is never less than what the events take.
func roughBytes(evs []Event) int {
	n := 0
	for i := range evs {
		e := &evs[i]
		n += 512 + len(e.Detail) + 6*(len(e.ID)+len(e.Type)+len(e.Subject.ID)+len(e.Subject.Name)+len(e.Subject.Kind)+
			len(e.OperationID)+len(e.CorrelationID)+len(e.Actor.ID)+len(e.Actor.Name)+len(e.Actor.Kind)+len(e.Severity))
	}
	return n
}

// runRoom is what the events of a run may take, the envelope apart.
const runRoom = MaxRunBytes - 64

// AppendWrites returns the writes that append events to a stream, conditional on
// the head as it was read, and the head behind them. It is pure: the caller
// commits them together with writes of its own, and on a conflict on the head
// reads it again and starts over. No events: no writes.
//
// What is kept is received at its ReceivedAt or at the stream's clock
// (Head.Received), whichever is later: in a stream that goes back by SetBackWrites
// alone, although clocks differ and an append may be long under way. Number tells
// what is kept.
//
// The caller answers for it that no event is in the stream already, by a marker
// in the same commit.
func AppendWrites(head Head, headVersion int64, stream string, evs []Event) ([]ledger.Write, Head, error) {
	if len(evs) == 0 {
		return nil, head, nil
	}
	if stream == "" {
		return nil, head, invalid("no stream")
	}
	head.Next, head.Low = max(head.Next, 1), max(head.Low, 1)
	writes := []ledger.Write{{}} // the head's place
	next := head
	var encoded [][]byte
	bytes, total := 0, 0
	flush := func() {
		key := record.StreamRunKey(stream, next.Next)
		writes = append(writes, ledger.Write{Item: ledger.Item{Key: key, Data: encodeRun(next.At, encoded)}})
		next.Next += int64(len(encoded))
		encoded, bytes = nil, 0
	}
	for i := range evs {
		if err := check(&evs[i]); err != nil {
			return nil, head, err
		}
	}
	evs = received(head, evs)
	for i := range evs {
		e := &evs[i]
		b, err := encodeEvent(e)
		if err != nil {
			return nil, head, err
		}
		if len(b) > runRoom {
			return nil, head, invalid("event %s has %d bytes, the limit is %d", e.ID, len(b), runRoom)
		}
		if len(encoded) == MaxRunEvents || len(encoded) > 0 && bytes+len(b)+1 > runRoom {
			flush()
		}
		encoded, bytes, total = append(encoded, b), bytes+len(b)+1, total+len(b)+1
		next.At, next.Received = max(next.At, bound(e)), max(next.Received, RoundUp(e.ReceivedAt))
	}
	flush()
	if runs := len(writes) - 1; runs > maxAppendRuns || total > maxAppendBytes {
		return nil, head, fmt.Errorf("%w: %d events in %d runs of %d bytes, the limits are %d runs and %d bytes",
			ErrTooLarge, len(evs), runs, total, maxAppendRuns, maxAppendBytes)
	}
	writes[0] = ledger.Write{Item: ledger.Item{Key: record.StreamHeadKey(stream), Data: record.Encode(next)}, Expect: headVersion, Feed: true}
	return writes, next, nil
}

func check(e *Event) error {
	switch {
	case e.ID == "":
		return invalid("no id")
	case !ValidType(e.Type):
		return invalid("event %s: type %.128q", e.ID, e.Type)
	case e.Timestamp.IsZero() || e.ReceivedAt.IsZero():
		return invalid("event %s: no time", e.ID)
	}
	return nil
}

// received returns the events as a stream receives them that has the head: none
// before the stream's clock, and none before the one in front of it.
func received(head Head, evs []Event) []Event {
	out := slices.Clone(evs)
	last := time.UnixMilli(head.Received).UTC()
	for i := range out {
		if e := &out[i]; e.ReceivedAt.Before(last) {
			e.ReceivedAt = last
		} else {
			last = e.ReceivedAt.UTC()
		}
	}
	return out
}

// MaxClockAhead is how far ahead of a process's clock a stream's may be without its
// being told of what is appended. One append by a clock that is ahead gives all later
// ones its time until real time has come there, or the clock is set back, which the
// reactor does (package react). A rule's windows, which reach Lateness (package alert)
// behind a receipt, are wrong for so long.
//
// By the true receipt, kept beside, windows would be right and timers wrong: they come
// by the stream's clock, before which they would be due, so that what should hold for a
// while would fire at once. Nor is the append refused: after a quiet time every clock
// is as far ahead of its stream's.
const MaxClockAhead = 5 * time.Minute

// Raised tells how many of the events that an append was given were kept as received
// more than MaxClockAhead later, and how much later at most.
func Raised(given, kept []Event) (n int64, most time.Duration) {
	for i := range kept {
		if by := kept[i].ReceivedAt.Sub(given[i].ReceivedAt); by > MaxClockAhead {
			n, most = n+1, max(most, by)
		}
	}
	return n, most
}

// ClockWrite returns the write by which a stream's clock is at least the time, in
// Unix milliseconds, conditional on the head as it was read: whatever is appended
// behind it is received then or later. A clock that is there already is only held
// to be so.
func ClockWrite(head Head, headVersion int64, stream string, clock int64) ledger.Write {
	key := record.StreamHeadKey(stream)
	if headVersion == 0 || head.Received >= clock {
		return ledger.Write{Kind: ledger.Check, Expect: headVersion, Item: ledger.Item{Key: key}}
	}
	head.Received = clock
	return ledger.Write{Item: ledger.Item{Key: key, Data: record.Encode(head)}, Expect: headVersion}
}

// Number returns the events as they are kept (AppendWrites), with their place
// behind the head that they were appended to.
func Number(head Head, stream string, evs []Event) []Event {
	out := received(head, evs)
	for i := range out {
		out[i].place(stream, max(head.Next, 1)+int64(i))
	}
	return out
}

// Append appends events to a stream in one commit with the writes of extra (nil:
// none), and returns them as they are kept, with their place. When another append was faster it
// reads the head again and calls extra again; an error of extra ends it and is
// returned wrapped. A conflict on anything but the head is returned: it is for
// the caller to judge.
func Append(ctx context.Context, l ledger.Ledger, stream string, evs []Event, extra func() ([]ledger.Write, error)) ([]Event, error) {
	for try := 0; ; try++ {
		head, version, err := LoadHead(ctx, l, stream)
		if err != nil {
			return nil, err
		}
		writes, _, err := AppendWrites(head, version, stream, evs)
		if err != nil {
			return nil, fmt.Errorf("append to stream %s: %w", stream, err)
		}
		if extra != nil {
			more, err := extra()
			if err != nil {
				return nil, fmt.Errorf("append to stream %s: %w", stream, err)
			}
			writes = append(writes, more...)
		}
		if len(writes) == 0 {
			return nil, nil
		}
		err = l.Commit(ctx, writes...)
		if err == nil {
			return Number(head, stream, evs), nil
		}
		if try == maxAppendTries || !lostHead(err, stream) {
			return nil, fmt.Errorf("append to stream %s: %w", stream, err)
		}
		if err := backOff(ctx, try); err != nil {
			return nil, fmt.Errorf("append to stream %s: %w", stream, err)
		}
	}
}

// lostHead tells whether a commit failed because another moved the head.
func lostHead(err error, stream string) bool {
	var conflict *ledger.ConflictError
	return errors.As(err, &conflict) && slices.Contains(conflict.Keys, record.StreamHeadKey(stream))
}

// backOff waits a little, more with each try, with jitter.
func backOff(ctx context.Context, try int) error {
	t := time.NewTimer(time.Duration(rand.Int64N(int64(time.Millisecond) << min(try, 6))))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
