package event

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// CursorTTL is how long a stored cursor is kept after it was given last.
const CursorTTL = 7 * 24 * time.Hour

// cursorFresh: a stored cursor with less than this left is written again when it
// is given again.
const cursorFresh = CursorTTL - 12*time.Hour

const (
	maxCursorBytes = 512
	cursorVersion  = 1
	cursorSum      = 8 // bytes
)

// Errors of cursors; match with errors.Is.
var (
	// ErrInvalidCursor: no cursor, a damaged one, one of another list or
	// filter, or a stored one that is older than CursorTTL.
	ErrInvalidCursor = errors.New("invalid cursor")
	// ErrExpired: retention has passed the cursor. The error is an
	// *ExpiredError with the first cursor that is left.
	ErrExpired = errors.New("cursor expired")
)

// ExpiredError says that events which the cursor had before it are gone.
type ExpiredError struct {
	// Cursor is the first one that is left.
	Cursor string
	// Streams are those that were passed, with the first sequence left.
	Streams map[string]int64
	// Restored: nobody knows what the cursor had before it, for it is not in the record
	// since this restore; Cursor begins with what that told.
	Restored time.Time
}

func (e *ExpiredError) Error() string {
	var b strings.Builder
	b.WriteString("cursor expired")
	if !e.Restored.IsZero() {
		fmt.Fprintf(&b, ": unknown since the plane was restored at %s", e.Restored.UTC().Format(time.RFC3339))
	}
	for i, s := range slices.Sorted(maps.Keys(e.Streams)) {
		if i == 3 {
			b.WriteString(" and others")
			break
		}
		fmt.Fprintf(&b, ", stream %s begins at %d", s, e.Streams[s])
	}
	return b.String()
}

// Is makes errors.Is(err, ErrExpired) true.
func (e *ExpiredError) Is(target error) bool { return target == ErrExpired }

func badCursor(why string) error { return fmt.Errorf("%w: %s", ErrInvalidCursor, why) }

// positions is where a reader stands.
type positions struct {
	// next is the sequence of the next event to look at, by stream. A stream
	// that is not there is at its first event.
	next map[string]int64
	// turn is the stream that was read last when there were too many to read
	// all of them.
	turn string
}

func (p positions) of(stream string) int64 { return max(p.next[stream], 1) }

// streamCursor is a cursor of one stream, as it is in the text.
type streamCursor struct {
	Version int    `json:"v"`
	Stream  string `json:"s"`
	Next    int64  `json:"n"`
	Mark    string `json:"f"`
}

// encodeCursor writes a cursor of one stream: JSON behind its checksum.
func encodeCursor(c streamCursor) string {
	c.Version = cursorVersion
	b := record.Encode(c)
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(append(sum[:cursorSum:cursorSum], b...))
}

// decodeCursor reads what encodeCursor wrote, and nothing else: each cursor has
// one spelling.
func decodeCursor(s string) (streamCursor, error) {
	var c streamCursor
	if len(s) > maxCursorBytes {
		return c, badCursor("too long")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) <= cursorSum {
		return c, badCursor("not a cursor")
	}
	sum := sha256.Sum256(b[cursorSum:])
	if string(sum[:cursorSum]) != string(b[:cursorSum]) {
		return c, badCursor("damaged")
	}
	if err := json.Unmarshal(b[cursorSum:], &c); err != nil || c.Version != cursorVersion || c.Stream == "" || c.Next < 1 || encodeCursor(c) != s {
		return streamCursor{}, badCursor("not a cursor of this version")
	}
	return c, nil
}

// storedCursor is the data of a cursor of several streams.
type storedCursor struct {
	Next map[string]int64 `json:"next"`
	Turn string           `json:"turn,omitempty"`
	Mark string           `json:"mark"`
	// Streams and Steps are the events of the page that a Follower read from
	// there, in its order: each step has its stream's index and its sequence.
	Streams []string   `json:"streams,omitempty"`
	Steps   [][2]int64 `json:"steps,omitempty"`
}

// open reads the query's cursor.
func (r *Reader) open(ctx context.Context, q *Query) (positions, error) {
	if len(q.Streams) == 1 {
		c, err := decodeCursor(q.Cursor)
		if err != nil {
			return positions{}, err
		}
		if c.Stream != q.Streams[0] || c.Mark != q.mark() {
			return positions{}, badCursor("it belongs to another list or filter")
		}
		return positions{next: map[string]int64{c.Stream: c.Next}}, nil
	}
	stored, steps, ok := splitStep(q.Cursor)
	if !ok || !id.Valid(id.Cursor, stored) {
		return positions{}, badCursor("not a cursor of this list")
	}
	it, err := r.Ledger.Get(ctx, record.CursorKey(stored))
	if errors.Is(err, ledger.ErrNotFound) {
		if err := r.restored(ctx, q); err != nil {
			return positions{}, err
		}
		return positions{}, badCursor("unknown, or not used for " + strconv.Itoa(int(CursorTTL/(24*time.Hour))) + " days")
	}
	if err != nil {
		return positions{}, fmt.Errorf("read cursor: %w", err)
	}
	c, err := record.Decode[storedCursor](it)
	if err != nil {
		return positions{}, err
	}
	if c.Mark != q.mark() {
		return positions{}, badCursor("it belongs to another list or filter")
	}
	if !c.advance(steps) {
		return positions{}, badCursor("not a cursor of this list")
	}
	return positions{next: c.Next, turn: c.Turn}, nil
}

// close makes the cursor of where a reader stands now. That of several streams
// is an item whose id derives from what it says: saying it again writes nothing,
// except to keep it from expiring.
func (r *Reader) close(ctx context.Context, q *Query, p positions) (string, error) {
	if len(q.Streams) == 1 {
		s := q.Streams[0]
		return encodeCursor(streamCursor{Stream: s, Next: p.of(s), Mark: q.mark()}), nil
	}
	return r.keep(ctx, storedCursor{Next: maps.Clone(p.next), Turn: p.turn, Mark: q.mark()})
}

// keep stores a cursor, and returns its id.
func (r *Reader) keep(ctx context.Context, c storedCursor) (string, error) {
	maps.DeleteFunc(c.Next, func(_ string, n int64) bool { return n <= 1 })
	data := record.Encode(c) // map keys are sorted
	cursor := id.Derive(id.Cursor, string(data))
	it := ledger.Item{Key: record.CursorKey(cursor), Data: data, Expires: r.now().Add(CursorTTL)}
	err := r.Ledger.Commit(ctx, ledger.Write{Item: it})
	if errors.Is(err, ledger.ErrConflict) {
		var have ledger.Item
		have, err = r.Ledger.Get(ctx, it.Key)
		if err == nil && have.Expires.Sub(r.now()) > cursorFresh {
			return cursor, nil
		}
		if err == nil || errors.Is(err, ledger.ErrNotFound) {
			err = r.Ledger.Commit(ctx, ledger.Write{Item: it, Expect: ledger.AnyVersion})
		}
	}
	if err != nil {
		return "", fmt.Errorf("store cursor: %w", err)
	}
	return cursor, nil
}
