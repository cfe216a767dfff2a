package event

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
)

// ClocksDiffer is more than the clocks of two processes of the plane do: a stream
// whose clock is further ahead was pushed there by one that was wrong.
const ClocksDiffer = time.Minute

// maxSetBacks bounds what a head knows of set-backs.
const maxSetBacks = 8

// SetBack is that a stream's clock was set back by the event of the sequence.
type SetBack struct {
	Seq int64 `json:"seq"`
	To  int64 `json:"to"` // Unix milliseconds
}

// SetBackWrites returns the writes that append the event that the stream's clock was
// set back to a time from where it is, or from how far it is judged, in Unix milliseconds. It is
// the one event that is received before the one in front of it: what follows is
// received from there on. Like AppendWrites it is pure.
func SetBackWrites(head Head, headVersion int64, stream string, judged, to int64) ([]ledger.Write, Event, error) {
	cluster := ""
	if stream != PlaneStream {
		cluster = stream
	}
	from := max(judged, head.Received)
	seq := max(head.Next, 1)
	e, err := New(TypeClockSetBack, cluster, Subject{Kind: KindPlane, ID: stream, Name: stream}, time.UnixMilli(to), operation.Plane,
		SetBackDetail{From: time.UnixMilli(from).UTC(), To: time.UnixMilli(to).UTC(), Ahead: from - to, Judged: time.UnixMilli(judged).UTC()}, strconv.FormatInt(seq, 10))
	if err != nil {
		return nil, e, err
	}
	writes, err := AgainWrites(head, headVersion, stream, e)
	return writes, e, err
}

// AgainWrites is SetBackWrites for an event that there is, as of a history that is told again.
func AgainWrites(head Head, headVersion int64, stream string, e Event) ([]ledger.Write, error) {
	to := e.ReceivedAt.UnixMilli()
	head.Received, head.At = to, min(head.At, to)
	backs := slices.DeleteFunc(slices.Clone(head.SetBacks), func(b SetBack) bool { return b.To >= to }) // this one says more
	head.SetBacks = append(backs, SetBack{Seq: max(head.Next, 1), To: to})
	head.SetBacks = head.SetBacks[max(0, len(head.SetBacks)-maxSetBacks):]
	writes, _, err := AppendWrites(head, headVersion, stream, []Event{e})
	return writes, err
}

// SetBackOf is the detail of an event by which a stream's clock was set back; ok is false
// when the event is about something else. Its times are zero where they are not known any more.
func SetBackOf(e *Event) (d SetBackDetail, ok bool) {
	if e.Type != TypeClockSetBack {
		return d, false
	}
	if json.Unmarshal(e.Detail, &d) != nil {
		d = SetBackDetail{}
	}
	return d, true
}

// Truly is when the event was received as far as is known: not after the time to which
// the stream's clock was set back behind it.
func (h *Head) Truly(e *Event) time.Time { return h.notAfter(e, e.ReceivedAt) }

// happened is Event.Happened as far as is known, as Truly is.
func (h *Head) happened(e *Event) time.Time { return h.notAfter(e, e.Happened()) }

func (h *Head) notAfter(e *Event, at time.Time) time.Time {
	for _, b := range h.SetBacks {
		if to := time.UnixMilli(b.To); b.Seq > e.Sequence && to.Before(at) {
			at = to.UTC()
		}
	}
	return at
}

// bound is the run's At as far as is known, as Truly is. It only grows along the
// stream, which At does not over a set-back.
func (h *Head) bound(r *run) int64 {
	at := r.At
	for _, b := range h.SetBacks {
		if b.Seq > r.first {
			at = min(at, b.To)
		}
	}
	return at
}
