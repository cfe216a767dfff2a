package event

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// An event is in the streams once. Where a fault put one there again, the ledger does not
// hold, and is neither restored nor moved. LeaveOutRepeats is the way on.

// Repeat is an event that was there a second time.
type Repeat struct {
	Stream   string
	Sequence int64
	// Event is the id, First and FirstSequence are where it is.
	Event         string
	First         string
	FirstSequence int64
}

func (r Repeat) String() string {
	return fmt.Sprintf("left out: event %s at %d of stream %s, which is at %d of stream %s", r.Event, r.Sequence, r.Stream, r.FirstSequence, r.First)
}

type spot struct {
	stream   string
	sequence int64
}

// LeaveOutRepeats leaves the second of two events of one id out, in all streams: in its
// place is an event of type stream.repeated, which says so, and all others keep theirs.
// Nothing else may write to the ledger meanwhile. Done again, it finds none.
func LeaveOutRepeats(ctx context.Context, st *record.Store) ([]Repeat, error) {
	names, err := Streams(ctx, st)
	if err != nil {
		return nil, fmt.Errorf("leave out what is there twice: %w", err)
	}
	var found []Repeat
	first := map[string]spot{}
	for _, name := range names {
		if found, err = leaveOut(ctx, st.Ledger, name, first, found); err != nil {
			return found, fmt.Errorf("leave out what is twice in stream %s: %w", name, err)
		}
	}
	return found, nil
}

func leaveOut(ctx context.Context, l ledger.Ledger, stream string, first map[string]spot, found []Repeat) ([]Repeat, error) {
	head, _, err := LoadHead(ctx, l, stream)
	if err != nil {
		return found, err
	}
	q := ledger.Query{PK: record.StreamPK(stream), From: record.StreamRunKey(stream, head.Low).SK, To: record.StreamRunKey(stream, head.Next).SK, Limit: maxFetch}
	for {
		p, err := l.Query(ctx, q)
		if err != nil {
			return found, err
		}
		for _, it := range p.Items {
			r, err := decodeRun(stream, it)
			if err != nil {
				continue // readers are told
			}
			instead := map[int]Event{}
			for i := range r.Events {
				e := &r.Events[i]
				was, twice := first[e.ID]
				if !twice {
					first[e.ID] = spot{stream, e.Sequence}
					continue
				}
				is := Repeat{stream, e.Sequence, e.ID, was.stream, was.sequence}
				if instead[i], err = repeated(e, is); err != nil {
					return found, err
				}
				found = append(found, is)
			}
			if len(instead) == 0 {
				continue
			}
			data, err := replaced(it.Data, instead)
			if err == nil {
				err = l.Commit(ctx, ledger.Write{Item: ledger.Item{Key: it.Key, Data: data}, Expect: it.Version})
			}
			if err != nil {
				return found, err
			}
		}
		if p.Next == "" {
			return found, nil
		}
		q.After = p.Next
	}
}

// repeated is the event in the place of one that is there already.
func repeated(e *Event, is Repeat) (Event, error) {
	out, err := New(TypeRepeated, e.Cluster, Subject{Kind: KindPlane, ID: e.Stream, Name: e.Stream}, e.ReceivedAt, operation.Plane,
		RepeatedDetail{Event: is.Event, Type: e.Type, Stream: is.First, Sequence: is.FirstSequence}, e.Stream, strconv.FormatInt(e.Sequence, 10), is.Event)
	out.Timestamp = e.Timestamp // by which runs are found
	return out, err
}

// replaced writes a run with other events in some places. The rest stays byte by byte.
func replaced(data []byte, instead map[int]Event) ([]byte, error) {
	var run struct {
		At      int64             `json:"at"`
		Events  []json.RawMessage `json:"events"`
		Through int64             `json:"through"`
	}
	if err := json.Unmarshal(data, &run); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	encoded := make([][]byte, len(run.Events))
	for i, raw := range run.Events {
		encoded[i] = slices.Clone(bytes.TrimSpace(raw))
		if e, ok := instead[i]; ok {
			var err error
			if encoded[i], err = encodeEvent(&e); err != nil {
				return nil, err
			}
		}
	}
	if run.Through != 0 && len(encoded) == 1 {
		return encodeStretch(run.At, run.Through, encoded[0]), nil
	}
	return encodeRun(run.At, encoded), nil
}
