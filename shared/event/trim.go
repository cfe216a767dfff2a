package event

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// trimBatch is how many runs one commit deletes.
const trimBatch = ledger.MaxWrites

// Trim forgets the events of a stream that happened and were received before the
// time. It raises the low-water mark first and then deletes the runs that lie
// wholly below it, so that a reader learns of it before it meets a hole; where
// an earlier Trim was cut off it goes on. It returns the head as it is
// afterwards and how many runs were deleted. Events go by whole runs: the one
// that the time falls into stays.
func Trim(ctx context.Context, l ledger.Ledger, stream string, before time.Time) (Head, int, error) {
	head, err := raise(ctx, l, stream, before)
	if err != nil {
		return head, 0, fmt.Errorf("trim stream %s: %w", stream, err)
	}
	n, err := deleteRuns(ctx, l, stream, head.Low)
	if err != nil {
		return head, n, fmt.Errorf("trim stream %s: %w", stream, err)
	}
	return head, n, nil
}

// raise moves the low-water mark up to the first run that is to stay.
func raise(ctx context.Context, l ledger.Ledger, stream string, before time.Time) (Head, error) {
	for try := 0; ; try++ {
		head, version, err := LoadHead(ctx, l, stream)
		if err != nil || version == 0 {
			return head, err
		}
		low := head.Next
		if head.At >= before.UnixMilli() {
			low, err = seek(ctx, l, stream, &head, head.Low, before.UnixMilli())
		}
		if err == nil && low <= head.Low {
			return head, nil
		}
		if err == nil {
			head.Low = low
			err = l.Commit(ctx, ledger.Write{
				Item: ledger.Item{Key: record.StreamHeadKey(stream), Data: record.Encode(head)}, Expect: version})
		}
		if err == nil {
			return head, nil
		}
		// Another append, or another Trim, which makes holes for the seek.
		var hole *holeError
		again := errors.Is(err, ledger.ErrConflict) || errors.As(err, &hole)
		if !again || try == maxAppendTries {
			return head, err
		}
		if err := backOff(ctx, try); err != nil {
			return head, err
		}
	}
}

// deleteRuns deletes the runs that begin below low. They all end there, since
// low is where a run begins.
func deleteRuns(ctx context.Context, l ledger.Ledger, stream string, low int64) (int, error) {
	q := ledger.Query{
		PK: record.StreamPK(stream), From: record.StreamRunKey(stream, 0).SK, To: record.StreamRunKey(stream, low).SK, Limit: trimBatch,
	}
	for n := 0; ; {
		p, err := l.Query(ctx, q)
		if err != nil {
			return n, err
		}
		writes := make([]ledger.Write, len(p.Items))
		for i, it := range p.Items {
			writes[i] = ledger.Write{Kind: ledger.Delete, Item: ledger.Item{Key: it.Key}, Expect: ledger.AnyVersion}
		}
		if len(writes) > 0 {
			if err := l.Commit(ctx, writes...); err != nil {
				return n, err
			}
			n += len(writes)
		}
		if p.Next == "" {
			return n, nil
		}
		q.After = p.Next
	}
}
