package event

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// What a stream told between a backup and the restore is not in the record that is
// now. Were its sequences given out again, a reader that had read them would pass
// over the new events silently. So a restore leaves one event of type stream.restored
// that stands for those sequences, and for as many as can have been given out: whoever
// stands among them reads on with that event, whoever stands before them comes to
// it, and what is appended behind it has sequences that no event ever had.

// How many sequences a restore passes over: more for each second since the backup than
// a stream takes. By that a second restore of one backup passes over what was told
// after the first; without the floor, a clock that was set back meanwhile would not.
const (
	restoredFloor     = 1_000_000
	restoredPerSecond = 10_000
)

// maxRestores bounds what a head knows of restores.
const maxRestores = 8

// Restore is that the sequences from From through Through stand for one event, of a
// restore at the time.
type Restore struct {
	From    int64 `json:"from"`
	Through int64 `json:"through"`
	At      int64 `json:"at"` // Unix milliseconds
}

// Passed returns how many events there were from the sequence on below the low-water
// mark, which who stands there has not seen: of the stretch of a restore one.
func (h *Head) Passed(from int64) int64 {
	n := max(h.Low-from, 0)
	for _, r := range h.Restores {
		if of := min(r.Through+1, h.Low) - max(r.From, from); of > 1 {
			n -= of - 1
		}
	}
	return n
}

// restored is where the readers go on whose stored cursors a restore took back, for as
// long as these would have been kept: an *ExpiredError, or nil without such a restore.
// Of several restores it is the first: the cursor may be of any time since.
func (r *Reader) restored(ctx context.Context, q *Query) error {
	streams, err := r.streams(ctx, q)
	if err != nil {
		return err
	}
	heads, err := loadHeads(ctx, r.Ledger, streams)
	if err != nil {
		return err
	}
	out, since := &ExpiredError{Streams: map[string]int64{}}, r.now().Add(-CursorTTL).UnixMilli()
	next := map[string]int64{}
	for s, h := range heads {
		next[s] = h.Low // of one that began after the restore all is new
		for _, x := range h.Restores {
			if x.At > since {
				next[s] = max(x.From, h.Low)
				out.Streams[s], out.Restored = next[s], time.UnixMilli(x.At)
				break
			}
		}
	}
	if len(out.Streams) == 0 {
		return nil
	}
	out.Cursor, err = r.close(ctx, q, positions{next: next})
	return cmp.Or(err, error(out))
}

// TellRestored leaves in each stream of a ledger the event that says that the ledger
// was made from a backup. Nothing else may write to the ledger meanwhile.
func TellRestored(ctx context.Context, st *record.Store) error {
	names, err := Streams(ctx, st)
	if err != nil {
		return fmt.Errorf("tell streams of the restore: %w", err)
	}
	heads, err := loadHeads(ctx, st.Ledger, names)
	if err != nil {
		return fmt.Errorf("tell streams of the restore: %w", err)
	}
	now := st.Now().UTC()
	skip := int64(restoredFloor) + sinceBackup(heads, now).Milliseconds()/1000*restoredPerSecond
	for _, name := range names {
		if err := tellRestored(ctx, st.Ledger, name, skip, now); err != nil {
			return fmt.Errorf("tell stream %s of the restore: %w", name, err)
		}
	}
	return nil
}

// sinceBackup is how long ago the backup was made at most: since the last event that was
// received before now. Where all streams were ahead of now nobody knows, and it is a year.
func sinceBackup(heads map[string]Head, now time.Time) time.Duration {
	last, some := int64(0), false
	for _, h := range heads {
		at := cmp.Or(h.Received, h.At)
		if some = some || at > 0; at <= now.UnixMilli() {
			last = max(last, at)
		}
	}
	switch {
	case last > 0:
		return now.Sub(time.UnixMilli(last))
	case some:
		return 365 * 24 * time.Hour
	}
	return 0
}

func tellRestored(ctx context.Context, l ledger.Ledger, stream string, skip int64, now time.Time) error {
	head, version, err := LoadHead(ctx, l, stream)
	if err != nil {
		return err
	}
	head.Next, head.Low = max(head.Next, 1), max(head.Low, 1)
	from, through := head.Next, head.Next+skip-1
	cluster := stream
	if stream == PlaneStream {
		cluster = ""
	}
	e, err := New(TypeRestored, cluster, Subject{Kind: KindPlane, ID: stream, Name: stream}, now, operation.Plane,
		RestoredDetail{From: from, Through: through}, stream, strconv.FormatInt(from, 10), strconv.FormatInt(through, 10))
	if err != nil {
		return err
	}
	e = received(head, []Event{e})[0]
	b, err := encodeEvent(&e)
	if err != nil {
		return err
	}
	head.Restores = append(slices.Clone(head.Restores), Restore{From: from, Through: through, At: now.UnixMilli()})
	head.Restores = head.Restores[max(0, len(head.Restores)-maxRestores):]
	head.Next, head.At, head.Received = through+1, max(head.At, bound(&e)), max(head.Received, RoundUp(e.ReceivedAt))
	return l.Commit(ctx,
		ledger.Write{Item: ledger.Item{Key: record.StreamHeadKey(stream), Data: record.Encode(head)}, Expect: version, Feed: true},
		ledger.Write{Item: ledger.Item{Key: record.StreamRunKey(stream, from), Data: encodeStretch(head.At, through, b)}})
}

// encodeStretch writes a run of one event that stands for all sequences from the
// run's first through the one given, which is its own.
func encodeStretch(at, through int64, e []byte) []byte {
	run := encodeRun(at, [][]byte{e})
	return fmt.Appendf(bytes.TrimSuffix(run, []byte("}")), `,"through":%d}`, through)
}

var errStretch = errors.New("it stands for a stretch, and is not one event at its end")
