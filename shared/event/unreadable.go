package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// What is stored and cannot be decoded - a disk that lies, a hand in the database -
// must not end its stream. In the place of such events every reader sees one event
// of type stream.unreadable: at the sequence of the last of them, with an id that
// derives from their place, received when the event before them was. It is stored
// nowhere, and nobody misses it: lists, streams, the bus, the rules and the
// receivers all come by.

// lookBack is how many runs are looked at for one that can be read.
const lookBack = 20

// readRun reads a run of a query's answer. One that cannot be decoded is read
// again, and when that is no better, others stand in the place of its events. An
// error is the ledger's, or that the run is there no more.
func readRun(ctx context.Context, l ledger.Reader, stream string, it ledger.Item) (run, error) {
	r, err := decodeRun(stream, it)
	if err == nil {
		return r, nil
	}
	first, err := firstOf(it.Key)
	if err != nil {
		return run{}, err
	}
	again, err := l.Get(ctx, it.Key)
	if errors.Is(err, ledger.ErrNotFound) {
		return run{}, &holeError{stream, first}
	}
	if err != nil {
		return run{}, fmt.Errorf("read run %s again: %w", it.Key, err)
	}
	if r, err = decodeRun(stream, again); err == nil {
		return r, nil
	}
	if r, ok, err := salvage(ctx, l, stream, first, again.Data); ok || err != nil {
		return r, err
	}
	end, err := endOf(ctx, l, stream, first)
	if err != nil {
		return run{}, err
	}
	head, _, err := LoadHead(ctx, l, stream)
	if err != nil {
		return run{}, err
	}
	r, received, err := before(ctx, l, stream, first)
	if err != nil {
		return run{}, err
	}
	e := unreadable(stream, first, end-1, received, "the run is not what a run should be")
	return run{At: head.bound(&r), Events: []Event{e}, first: first, end: end}, nil
}

// salvage reads those events of a run that can be read, when it has its form.
func salvage(ctx context.Context, l ledger.Reader, stream string, first int64, data []byte) (r run, ok bool, err error) {
	var v struct {
		At      int64             `json:"at"`
		Events  []json.RawMessage `json:"events"`
		Through int64             `json:"through"`
	}
	if json.Unmarshal(data, &v) != nil || len(v.Events) == 0 || v.Through != 0 {
		return run{}, false, nil
	}
	_, received, err := before(ctx, l, stream, first)
	if err != nil {
		return run{}, false, err
	}
	r = run{At: v.At, Events: make([]Event, len(v.Events)), first: first, end: first + int64(len(v.Events))}
	for i, raw := range v.Events {
		seq := first + int64(i)
		var s storedEvent
		if json.Unmarshal(raw, &s) != nil || check((*Event)(&s)) != nil {
			r.Events[i] = unreadable(stream, seq, seq, received, "the event is not what an event should be")
			continue
		}
		r.Events[i] = Event(s)
		r.Events[i].place(stream, seq)
		received = r.Events[i].ReceivedAt
	}
	return r, true, nil
}

// endOf finds where the run behind the one that begins at first begins, or the
// stream's end.
func endOf(ctx context.Context, l ledger.Reader, stream string, first int64) (int64, error) {
	head, _, err := LoadHead(ctx, l, stream)
	if err != nil {
		return 0, err
	}
	if first < head.Low || first >= head.Next {
		return 0, &holeError{stream, first}
	}
	p, err := l.Query(ctx, ledger.Query{
		PK: record.StreamPK(stream), From: record.StreamRunKey(stream, first+1).SK, To: record.StreamRunKey(stream, head.Next).SK, Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("read stream %s behind %d: %w", stream, first, err)
	}
	if len(p.Items) == 0 {
		return head.Next, nil
	}
	return firstOf(p.Items[0].Key)
}

// before returns the last run before first that can be read, and when its last event
// was received: the beginning of time when there is none.
func before(ctx context.Context, l ledger.Reader, stream string, first int64) (r run, received time.Time, err error) {
	p, err := l.Query(ctx, ledger.Query{
		PK: record.StreamPK(stream), From: record.StreamRunKey(stream, 0).SK, To: record.StreamRunKey(stream, first).SK, Reverse: true, Limit: lookBack})
	if err != nil {
		return run{}, time.Time{}, fmt.Errorf("read stream %s before %d: %w", stream, first, err)
	}
	for _, it := range p.Items {
		if r, err := decodeRun(stream, it); err == nil {
			return r, r.Events[len(r.Events)-1].ReceivedAt, nil
		}
	}
	return run{}, time.UnixMilli(0).UTC(), nil
}

// unreadable is the event in the place of those from first to through.
func unreadable(stream string, first, through int64, received time.Time, why string) Event {
	cluster := stream
	if stream == PlaneStream {
		cluster = ""
	}
	e, err := New(TypeUnreadable, cluster, Subject{Kind: KindPlane, ID: stream, Name: stream}, received, operation.Plane,
		UnreadableDetail{From: first, Through: through, Reason: why})
	if err != nil {
		panic(err) // the type and the detail are ours
	}
	e.ID = id.Derive(id.Event, TypeUnreadable, stream, strconv.FormatInt(first, 10), strconv.FormatInt(through, 10))
	e.place(stream, through)
	return e
}

// Unreadable returns how many stored events an event of type stream.unreadable
// stands for; 0 for any other.
func Unreadable(e *Event) int64 {
	var d UnreadableDetail
	if e.Type != TypeUnreadable || json.Unmarshal(e.Detail, &d) != nil {
		return 0
	}
	return d.Through - d.From + 1
}
