package event

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Bounds of one commit that takes details.
const (
	detailsRuns  = 20 // read at once: MaxRunBytes each
	detailsBytes = 2 << 20
)

// ValidFamily tells whether s names a type ("node.left") or a family of types
// ("node.*").
func ValidFamily(s string) bool { _, ok := typeOrFamily(s); return ok }

// detailsPosition says, for a type or family, before which sequence all details
// have been taken.
type detailsPosition map[string]int64

// ExpireDetails takes the details of a stream's events of a type or family, where
// they happened and were received before the time. The events keep their places
// and everything else. Like Trim it goes by whole runs: the one that the time
// falls into stays as it is.
//
// It looks at no more than most runs and goes on from there the next time. What
// it does is harmless wherever it is cut off, while others append, read, trim, or
// do the same: each run is written on condition that it is as it was read. It
// returns how many runs it looked at.
func ExpireDetails(ctx context.Context, l ledger.Ledger, stream, types string, before time.Time, most int) (int, error) {
	family, ok := typeOrFamily(types)
	if !ok {
		return 0, fmt.Errorf("take details: %w: type %q", ErrInvalidQuery, types)
	}
	n, err := expireDetails(ctx, l, stream, family, before.UnixMilli(), most)
	if err != nil {
		return n, fmt.Errorf("take details of %s from stream %s: %w", types, stream, err)
	}
	return n, nil
}

func expireDetails(ctx context.Context, l ledger.Ledger, stream, family string, before int64, most int) (n int, err error) {
	head, version, err := LoadHead(ctx, l, stream)
	if err != nil || version == 0 {
		return 0, err
	}
	began, err := detailsAt(ctx, l, stream)
	if err != nil {
		return 0, err
	}
	next := max(began[family], head.Low, 1)
	for over := false; !over && n < most && next < head.Next; {
		p, err := l.Query(ctx, ledger.Query{
			PK: record.StreamPK(stream), From: record.StreamRunKey(stream, next).SK, To: record.StreamRunKey(stream, head.Next).SK,
			Limit: min(detailsRuns, most-n),
		})
		if err != nil {
			return n, err
		}
		var writes []ledger.Write
		var through int64
		if writes, through, over, err = takeDetails(stream, &head, family, p.Items, before); err != nil {
			return n, err
		}
		n += len(p.Items)
		err = commitParts(ctx, l, writes)
		if errors.Is(err, ledger.ErrConflict) { // trimmed, or another pass: the next one looks again
			break
		}
		if err != nil {
			return n, err
		}
		over = over || p.Next == ""
		next = max(next, through)
	}
	if next <= began[family] {
		return n, nil
	}
	return n, keepDetailsAt(ctx, l, stream, family, next)
}

// takeDetails returns the writes for the runs that are wholly older, a sequence
// behind the beginning of the last of these and not behind its end, and whether
// one was not older. Runs that cannot be read stay as they are.
func takeDetails(stream string, head *Head, family string, items []ledger.Item, before int64) (writes []ledger.Write, through int64, over bool, err error) {
	for _, it := range items {
		first, err := firstOf(it.Key)
		if err != nil {
			return nil, 0, false, err
		}
		r, err := decodeRun(stream, it)
		if err != nil {
			through = first + 1
			continue
		}
		if head.bound(&r) >= before {
			return writes, through, true, nil
		}
		if data, changed, err := withoutDetails(it.Data, family); err == nil && changed {
			writes = append(writes, ledger.Write{Item: ledger.Item{Key: it.Key, Data: data}, Expect: it.Version})
		}
		through = r.end
	}
	return writes, through, false, nil
}

// withoutDetails rewrites a run. Members of an event that this version does not
// know stay.
func withoutDetails(data []byte, family string) (out []byte, changed bool, err error) {
	var run struct {
		At      int64             `json:"at"`
		Events  []json.RawMessage `json:"events"`
		Through int64             `json:"through"`
	}
	if err := json.Unmarshal(data, &run); err != nil {
		return nil, false, fmt.Errorf("decode: %w", err)
	}
	encoded := make([][]byte, len(run.Events))
	for i, raw := range run.Events {
		encoded[i] = raw
		var e map[string]json.RawMessage
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, false, fmt.Errorf("decode event %d: %w", i, err)
		}
		var typ string
		if err := json.Unmarshal(e["t"], &typ); err != nil {
			return nil, false, fmt.Errorf("decode type of event %d: %w", i, err)
		}
		if d := e["d"]; len(d) == 0 || string(d) == string(emptyDetail) || !among([]string{family}, typ) {
			continue // there is nothing to lose
		}
		delete(e, "d")
		e["x"] = json.RawMessage("true")
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false) // as encodeEvent: a run must not grow
		if err := enc.Encode(e); err != nil {
			return nil, false, fmt.Errorf("encode event %d: %w", i, err)
		}
		encoded[i] = bytes.TrimSuffix(b.Bytes(), []byte("\n"))
		changed = true
	}
	if !changed {
		return nil, false, nil
	}
	if run.Through != 0 && len(encoded) == 1 {
		return encodeStretch(run.At, run.Through, encoded[0]), true, nil
	}
	return encodeRun(run.At, encoded), true, nil
}

// commitParts commits the writes in parts of bounded size.
func commitParts(ctx context.Context, l ledger.Ledger, writes []ledger.Write) error {
	for len(writes) > 0 {
		n, size := 0, 0
		for n < len(writes) && n < ledger.MaxWrites && (n == 0 || size+len(writes[n].Item.Data) <= detailsBytes) {
			size += len(writes[n].Item.Data)
			n++
		}
		if err := l.Commit(ctx, writes[:n]...); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

func detailsAt(ctx context.Context, l ledger.Reader, stream string) (detailsPosition, error) {
	it, err := l.Get(ctx, record.StreamDetailsKey(stream))
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return record.Decode[detailsPosition](it)
}

// keepDetailsAt moves a position on. That another pass was further is no error:
// it only saves looking again.
func keepDetailsAt(ctx context.Context, l ledger.Ledger, stream, family string, next int64) error {
	key := record.StreamDetailsKey(stream)
	it, err := l.Get(ctx, key)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return err
	}
	at := detailsPosition{}
	if err == nil {
		if at, err = record.Decode[detailsPosition](it); err != nil {
			return err
		}
		at = maps.Clone(at)
	}
	if at[family] >= next {
		return nil
	}
	at[family] = next
	err = l.Commit(ctx, ledger.Write{Item: ledger.Item{Key: key, Data: record.Encode(at)}, Expect: it.Version})
	if errors.Is(err, ledger.ErrConflict) {
		return nil
	}
	return err
}
