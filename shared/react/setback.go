package react

import (
	"context"
	"time"

	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// SetBackAfter is how long a stream's clock must be found ahead, at the same time,
// before it is set back: a process whose clock is ahead and that goes on appending
// would push it there again, and each time let timers come.
const SetBackAfter = 20 * time.Second

// lead is that a stream's clock was found ahead of the plane's. Times are Unix
// milliseconds.
type lead struct {
	Clock int64 `json:"clock"` // where the stream's is
	Since int64 `json:"since"` // by the plane's
}

// due is when to look again, zero when there is nothing to look at.
func (l *lead) due() time.Time {
	if l == nil {
		return time.Time{}
	}
	return time.UnixMilli(l.Since).Add(SetBackAfter).UTC()
}

// leads looks at the clock of a stream that is judged to its head, and tells whether
// it is to be set back.
func (j *judged) leads(head event.Head, now time.Time) bool {
	clock, at := max(head.Received, j.stream.Position.Clock), now.UnixMilli()
	switch l := j.lead; {
	case clock <= at+event.ClocksDiffer.Milliseconds():
		j.lead = nil
	case l == nil || l.Clock != clock || l.Since > at:
		j.lead = &lead{Clock: clock, Since: at}
	default:
		return !now.Before(l.due())
	}
	return false
}

// next is when the stream is to be judged next, whatever comes: zero for never.
func (j *judged) next() time.Time {
	due, look := j.stream.Due(), j.lead.due()
	if due.IsZero() || !look.IsZero() && look.Before(due) {
		return look
	}
	return due
}

// setBack appends the event by which the stream's clock goes on from the plane's. All
// who judge the stream, this process too, set it back when they come to that: so the
// history alone says when it was. Where the stream went on meanwhile nothing is done.
func (r *Reactor) setBack(ctx context.Context, stream string, j *judged, now time.Time) error {
	s := j.stream
	head, version, err := event.LoadHead(ctx, r.Store.Ledger, stream)
	if err != nil {
		return err
	}
	if head.Next > s.Position.Next {
		return nil
	}
	was := j.lead
	if !j.leads(head, now) {
		return nil // the next pass keeps what it found
	}
	writes, e, err := event.SetBackWrites(head, version, stream, s.Position.Clock, now.UnixMilli())
	if err != nil {
		return err
	}
	due := s.Due()
	writes = append(writes, ledger.Write{Expect: j.version, WasDue: j.due, Item: ledger.Item{
		Key: record.JudgedKey(stream), Data: record.Encode(position{Position: s.Position, Since: j.since}), Due: due,
	}})
	if err := r.Store.Ledger.Commit(ctx, writes...); err != nil {
		return err
	}
	j.version, j.due, j.saved, j.lead = j.version+1, due, s.Position.Next, nil
	r.Metrics.setBack()
	d, _ := event.SetBackOf(&e)
	r.Logger.ErrorContext(ctx, "a clock of the plane was ahead, and a stream's by it: it is set back", "stream", stream, "ahead", time.Duration(d.Ahead)*time.Millisecond,
		"found", time.UnixMilli(was.Since).UTC())
	return nil
}
