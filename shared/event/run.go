package event

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// A run is one item with events in the order of their sequence. Its key has the
// sequence of the first.
const (
	// MaxRunEvents and MaxRunBytes bound a run.
	MaxRunEvents = 200
	MaxRunBytes  = 256 << 10
)

// Head is the item that a stream hangs on: each append is conditional on it.
type Head struct {
	// Next is the sequence of the next event; the first of a stream is 1.
	Next int64 `json:"next"`
	// Low is the low-water mark: the sequence of the first event that is left.
	// It is raised before anything is deleted.
	Low int64 `json:"low"`
	// At is a bound of time, in Unix milliseconds: no event of the stream
	// happened or was received later, but for those in front of a set-back. See run.
	At int64 `json:"at,omitempty"`
	// Received is the stream's clock, in Unix milliseconds: none that comes is received
	// before, but for a set-back, and no event was received later, but for those in front of one. It
	// is 0 in heads of versions that did not keep it.
	Received int64 `json:"received,omitempty"`
	// SetBacks are the last times at which the clock was set back.
	SetBacks []SetBack `json:"set_backs,omitempty"`
	// Restores are the last stretches that restores left.
	Restores []Restore `json:"restores,omitempty"`
}

// run is a run's data.
type run struct {
	// At is the Head's At behind the run's last event. What is looked for by time is
	// found by halving, by Head.bound.
	At     int64   `json:"at"`
	Events []Event `json:"-"`

	first, end int64 // the sequences of its first event and behind its last
}

// storedEvent is an Event without its methods: it is encoded by the fields'
// tags.
type storedEvent Event

// bound is the time that an event pushes At to, rounded up so that it stays a
// bound.
func bound(e *Event) int64 {
	at := e.ReceivedAt
	if h := e.Happened(); h.After(at) {
		at = h
	}
	return RoundUp(at)
}

// RoundUp is the time in whole Unix milliseconds, the next one for a part of one:
// what happens at the time has happened then.
func RoundUp(t time.Time) int64 { return t.Add(time.Millisecond - time.Nanosecond).UnixMilli() }

// encodeEvent writes one event as it stands in a run.
func encodeEvent(e *Event) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode((*storedEvent)(e)); err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// encodeRun joins encoded events.
func encodeRun(at int64, events [][]byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"at":%d,"events":[`, at)
	b.Write(bytes.Join(events, []byte(",")))
	b.WriteString("]}")
	return b.Bytes()
}

// decodeRun reads a run, and gives its events their place. It has one at least.
func decodeRun(stream string, it ledger.Item) (run, error) {
	first, err := firstOf(it.Key)
	if err != nil {
		return run{}, err
	}
	var v struct {
		At      int64         `json:"at"`
		Events  []storedEvent `json:"events"`
		Through int64         `json:"through"` // of a stretch; see encodeStretch
	}
	if err := json.Unmarshal(it.Data, &v); err != nil {
		return run{}, fmt.Errorf("decode run %s: %w", it.Key, err)
	}
	if len(v.Events) == 0 {
		return run{}, fmt.Errorf("decode run %s: it has no events", it.Key)
	}
	r := run{At: v.At, Events: make([]Event, len(v.Events)), first: first, end: first + int64(len(v.Events))}
	for i, s := range v.Events {
		e := Event(s)
		e.place(stream, first+int64(i))
		r.Events[i] = e
	}
	if v.Through != 0 {
		if len(v.Events) != 1 || v.Through < first {
			return run{}, fmt.Errorf("decode run %s: %w", it.Key, errStretch)
		}
		r.Events[0].place(stream, v.Through)
		r.end = v.Through + 1
	}
	return r, nil
}

// place puts the event in its stream.
func (e *Event) place(stream string, seq int64) {
	e.Stream, e.Sequence, e.Cluster = stream, seq, ""
	if stream != PlaneStream {
		e.Cluster = stream
	}
	if len(e.Detail) == 0 && !e.DetailExpired {
		e.Detail = emptyDetail
	}
}

// firstOf reads the first sequence from a run's key.
func firstOf(k ledger.Key) (int64, error) {
	_, num, _ := strings.Cut(k.SK, "#")
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("item %s is not a run of events", k)
	}
	return n, nil
}

// LoadHead reads a stream's head and its version; of a stream that has no events
// yet, its beginning and 0.
func LoadHead(ctx context.Context, l ledger.Reader, stream string) (Head, int64, error) {
	it, err := l.Get(ctx, record.StreamHeadKey(stream))
	if errors.Is(err, ledger.ErrNotFound) {
		return Head{Next: 1, Low: 1}, 0, nil
	}
	if err != nil {
		return Head{}, 0, fmt.Errorf("read head of stream %s: %w", stream, err)
	}
	h, err := record.Decode[Head](it)
	return h, it.Version, err
}

// loadHeads reads the heads of the streams that have one.
func loadHeads(ctx context.Context, l ledger.Reader, streams []string) (map[string]Head, error) {
	out := make(map[string]Head, len(streams))
	for len(streams) > 0 {
		part := streams[:min(ledger.MaxWrites, len(streams))]
		streams = streams[len(part):]
		keys := make([]ledger.Key, len(part))
		for i, s := range part {
			keys[i] = record.StreamHeadKey(s)
		}
		items, err := l.GetMany(ctx, keys)
		if err != nil {
			return nil, fmt.Errorf("read heads of %d streams: %w", len(part), err)
		}
		for i, s := range part {
			it, ok := items[keys[i]]
			if !ok {
				continue
			}
			if out[s], err = record.Decode[Head](it); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// runAt returns the run that holds the sequence, or the last one before it; ok
// is false when there is none.
func runAt(ctx context.Context, l ledger.Reader, stream string, seq int64) (r run, ok bool, err error) {
	p, err := l.Query(ctx, ledger.Query{
		PK: record.StreamPK(stream), From: record.StreamRunKey(stream, 0).SK, To: record.StreamRunKey(stream, seq+1).SK,
		Reverse: true, Limit: 1,
	})
	if err != nil {
		return run{}, false, fmt.Errorf("read stream %s at %d: %w", stream, seq, err)
	}
	if len(p.Items) == 0 {
		return run{}, false, nil
	}
	r, err = readRun(ctx, l, stream, p.Items[0])
	return r, err == nil, err
}

// seek returns the first sequence from from on whose run has an event at or after
// the time (Unix milliseconds), or the head's Next. It halves, so it reads a few
// runs only.
func seek(ctx context.Context, l ledger.Reader, stream string, head *Head, from, at int64) (int64, error) {
	end := head.Next
	for from < end {
		mid := from + (end-from)/2
		r, ok, err := runAt(ctx, l, stream, mid)
		if err != nil {
			return 0, err
		}
		switch {
		case !ok || r.end <= mid:
			return 0, &holeError{stream, mid}
		case head.bound(&r) < at:
			from = min(r.end, end)
		case r.first <= from:
			return from, nil
		default:
			end = r.first
		}
	}
	return from, nil
}

// holeError says that an event is not where the head says it is: retention
// deleted it after the head was read, or a reader saw half of a commit. Reading
// again from the head settles it.
type holeError struct {
	stream string
	seq    int64
}

func (e *holeError) Error() string {
	return fmt.Sprintf("stream %s has no event %d", e.stream, e.seq)
}
