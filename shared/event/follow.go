package event

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Follower reads events on from a cursor, page after page, and gives each event
// the cursor that resumes exactly behind it: what a text/event-stream needs. It
// is for one goroutine.
type Follower struct {
	q      Query
	at     reading
	passed bool
}

// Step is an event with the cursor that reads on behind it: with that event and
// those before it seen, and none behind it.
type Step struct {
	Event  Event
	Cursor string
}

// Follow opens the query's cursor. Errors: ErrInvalidQuery, ErrInvalidCursor, and
// the ledger's; that retention has passed the cursor the first Next tells.
func (r *Reader) Follow(ctx context.Context, query Query) (*Follower, error) {
	f := &Follower{}
	var err error
	if f.q, err = query.normalize(); err != nil {
		return nil, err
	}
	f.at = reading{Reader: r, q: &f.q}
	if f.q.Cursor != "" {
		f.at.resumed = true
		if f.at.positions, err = r.open(ctx, &f.q); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Next returns the next events that match, at most the query's Limit. Where none
// does it waits for one, no longer than wait. more: there is more to look at now,
// also where no event is returned. An *ExpiredError says that retention was
// faster than the reader.
//
// Of one stream each event's cursor is a text; of several one item is written for
// all of a page.
func (f *Follower) Next(ctx context.Context, wait time.Duration) (steps []Step, more bool, err error) {
	before := f.at.next
	page, err := f.at.await(ctx, wait)
	if err != nil {
		return nil, false, err
	}
	if len(page.Events) == 0 {
		f.passed = f.passed || !maps.Equal(f.at.next, before)
		return nil, page.More, nil
	}
	f.passed = false
	steps = make([]Step, len(page.Events))
	if len(f.q.Streams) == 1 {
		c := streamCursor{Stream: f.q.Streams[0], Mark: f.q.mark()}
		for i, e := range page.Events {
			c.Next = e.Sequence + 1
			steps[i] = Step{e, encodeCursor(c)}
		}
		return steps, page.More, nil
	}
	c := storedCursor{Next: f.at.began.next, Turn: f.at.began.turn, Mark: f.q.mark()}
	for _, e := range page.Events {
		i := slices.Index(c.Streams, e.Stream)
		if i < 0 {
			i, c.Streams = len(c.Streams), append(c.Streams, e.Stream)
		}
		c.Steps = append(c.Steps, [2]int64{int64(i), e.Sequence})
	}
	stored, err := f.at.keep(ctx, c)
	if err != nil {
		return nil, false, err
	}
	for i, e := range page.Events {
		steps[i] = Step{e, joinStep(stored, i+1)}
	}
	return steps, page.More, nil
}

// Passed tells whether the follower went on, past events that do not match, since
// the last cursor that it gave.
func (f *Follower) Passed() bool { return f.passed }

// Cursor returns the cursor of where the follower stands: behind the last event
// of the last page, and behind all that did not match. Of several streams it is
// an item that this writes.
func (f *Follower) Cursor(ctx context.Context) (string, error) {
	f.passed = false
	return f.at.close(ctx, &f.q, f.at.positions)
}

// advance moves a stored cursor behind the first n events of its page.
func (c *storedCursor) advance(n int) bool {
	if n < 0 || n > len(c.Steps) {
		return false
	}
	if c.Next == nil {
		c.Next = map[string]int64{}
	}
	for _, s := range c.Steps[:n] {
		if s[0] < 0 || s[0] >= int64(len(c.Streams)) {
			return false
		}
		c.Next[c.Streams[s[0]]] = s[1] + 1
	}
	return true
}

// stepSum is how many characters of checksum a step's cursor ends with: without
// one a flipped bit would make it another step's.
const stepSum = 8

// joinStep is the cursor behind the n-th event of a stored cursor's page.
func joinStep(stored string, n int) string {
	text := stored + "." + strconv.Itoa(n)
	sum := sha256.Sum256([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(sum[:])[:stepSum]
}

// splitStep reads a cursor of several streams: a stored cursor's id alone, or
// what joinStep wrote and nothing else.
func splitStep(cursor string) (stored string, n int, ok bool) {
	stored, rest, step := strings.Cut(cursor, ".")
	if !step {
		return stored, 0, true
	}
	number, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || joinStep(stored, n) != cursor {
		return "", 0, false
	}
	return stored, n, true
}
