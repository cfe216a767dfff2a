package event

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Bounds of one read, so that no question costs more than this.
const (
	maxScan    = 20_000 // events looked at
	maxStreams = 64     // streams looked into; with more, reads take turns
	maxHoles   = 5      // tries to read what is being deleted
)

// Reader reads events on from cursors. It holds no state of its own.
type Reader struct {
	Ledger ledger.Ledger
	// Streams lists the streams of all clusters; the plane's is added. A
	// stream is known before its first event is appended, or its first events
	// come with the next read.
	Streams func(ctx context.Context) ([]string, error)
	// Now is the clock of stored cursors; time.Now when nil.
	Now func() time.Time
	// Poll is how soon a wait looks again where the ledger gives no signal, 500 ms
	// when 0; the pause grows to four times that.
	Poll time.Duration

	maxScan int // maxScan when 0; for tests
}

// Page is what a read found.
type Page struct {
	// Events are in order of sequence within a stream, and merged by timestamp
	// across streams.
	Events []Event
	// NextCursor reads on behind them. It is always there.
	NextCursor string
	// Low is the first sequence that is left, of a query of one stream.
	Low int64
	// More: there is more to look at now, even when the page is short or empty.
	More bool
}

func (r *Reader) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}

// Read returns the events that match from the query's cursor on. Whoever goes on
// with each page's NextCursor sees every matching event once. Errors:
// ErrInvalidQuery, ErrInvalidCursor, an *ExpiredError, and the ledger's.
func (r *Reader) Read(ctx context.Context, query Query) (Page, error) {
	f, err := r.Follow(ctx, query)
	if err != nil {
		return Page{}, err
	}
	page, err := f.at.await(ctx, f.q.Wait)
	if err != nil {
		return Page{}, err
	}
	page.NextCursor, err = r.close(ctx, &f.q, f.at.positions)
	return page, err
}

// streams returns the streams of the query, sorted.
func (r *Reader) streams(ctx context.Context, q *Query) ([]string, error) {
	if len(q.Streams) > 0 {
		return q.Streams, nil
	}
	all := []string{PlaneStream}
	if r.Streams != nil {
		more, err := r.Streams(ctx)
		if err != nil {
			return nil, fmt.Errorf("list streams: %w", err)
		}
		all = append(all, more...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// reading is one Read under way.
type reading struct {
	*Reader
	q *Query
	positions
	// resumed: the positions say where the reader stands in every stream, so
	// what is gone before them was missed.
	resumed bool
	// began is where the last page began.
	began positions
}

// await reads the next page, without its cursor. Where nothing matches it waits
// for the time given at most, which by whole pages of nothing it does not.
func (at *reading) await(ctx context.Context, wait time.Duration) (Page, error) {
	var b *bell
	deadline := time.Now().Add(wait)
	for {
		streams, err := at.streams(ctx, at.q)
		if err != nil {
			return Page{}, err
		}
		if wait > 0 && b == nil {
			b = at.listen(streams, len(at.q.Streams) == 0) // before the read: no signal is missed
			defer b.stop()
		}
		page, err := at.read(ctx, streams)
		if err != nil {
			return Page{}, err
		}
		left := time.Until(deadline)
		if len(page.Events) > 0 || page.More || left <= 0 {
			return page, nil
		}
		if err := b.wait(ctx, left); err != nil {
			return Page{}, fmt.Errorf("wait for events: %w", err)
		}
	}
}

// read reads one page and moves the positions. What retention deletes meanwhile
// makes it start over from the heads.
func (at *reading) read(ctx context.Context, streams []string) (Page, error) {
	for try := 0; ; try++ {
		page, err := at.try(ctx, streams)
		var hole *holeError
		if !errors.As(err, &hole) {
			return page, err
		}
		if try == maxHoles {
			return Page{}, fmt.Errorf("read events: %w", err)
		}
		if err := backOff(ctx, try+2); err != nil {
			return Page{}, err
		}
	}
}

func (at *reading) try(ctx context.Context, streams []string) (Page, error) {
	heads, err := loadHeads(ctx, at.Ledger, streams)
	if err != nil {
		return Page{}, err
	}
	next, err := at.start(ctx, streams, heads)
	if err != nil {
		return Page{}, err
	}
	began := positions{next: maps.Clone(next), turn: at.turn}
	scans, turn := at.scans(streams, heads, next)
	events, err := collect(ctx, scans, at.q.Limit)
	if err != nil {
		return Page{}, err
	}
	page := Page{Events: events}
	for _, s := range scans {
		next[s.stream] = s.next
	}
	for _, s := range streams {
		page.More = page.More || max(next[s], 1) < heads[s].Next
	}
	if len(at.q.Streams) == 1 {
		page.Low = max(heads[streams[0]].Low, 1)
	}
	at.positions, at.resumed, at.began = positions{next: next, turn: turn}, true, began
	return page, nil
}

// start returns the position in each stream, once it is clear that nothing
// before them was missed.
func (at *reading) start(ctx context.Context, streams []string, heads map[string]Head) (map[string]int64, error) {
	next := maps.Clone(at.next)
	if next == nil {
		next = map[string]int64{}
	}
	passed := map[string]int64{}
	for _, s := range streams {
		h, p := heads[s], at.of(s)
		switch {
		case p > max(h.Next, 1):
			return nil, badCursor("it is ahead of its stream")
		case p < h.Low:
			next[s] = h.Low
			if at.resumed {
				passed[s] = h.Low
			}
		}
	}
	if len(passed) == 0 {
		return next, nil
	}
	left, err := at.close(ctx, at.q, positions{next: next, turn: at.turn})
	if err != nil {
		return nil, err
	}
	return nil, &ExpiredError{Cursor: left, Streams: passed}
}

// scans returns a scan of each stream that has something to look at. Where these
// are too many it takes the next ones behind the last turn.
func (at *reading) scans(streams []string, heads map[string]Head, next map[string]int64) (scans []*scan, turn string) {
	var active []string
	for _, s := range streams {
		if max(next[s], 1) < heads[s].Next {
			active = append(active, s)
		}
	}
	if len(active) > maxStreams {
		i := sort.SearchStrings(active, at.turn+"\x00")
		active = append(slices.Clone(active[i:]), active[:i]...)[:maxStreams]
		turn = active[maxStreams-1]
	}
	budget := at.maxScan
	if budget == 0 {
		budget = maxScan
	}
	for _, s := range active {
		scans = append(scans, &scan{l: at.Ledger, q: at.q, stream: s, next: max(next[s], 1), head: heads[s], want: at.q.Limit})
	}
	share(scans, budget)
	return scans, turn
}

// share divides what may be looked at evenly among the scans; what a stream has no
// use for, as it ends before, is for the others.
func share(scans []*scan, budget int) {
	left := func(s *scan) int64 { return s.head.Next - s.next }
	byLeft := slices.SortedFunc(slices.Values(scans), func(a, b *scan) int { return cmp.Compare(left(a), left(b)) })
	for i, s := range byLeft {
		s.budget = int(min(left(s), int64(budget/(len(byLeft)-i))))
		budget -= s.budget
	}
}

// collect takes events from the scans: always the one that was received first,
// so that a stream whose clock is behind does not keep the others back. It
// returns them merged by timestamp.
func collect(ctx context.Context, scans []*scan, limit int) ([]Event, error) {
	taken := make([][]Event, len(scans))
	for n := 0; n < limit; n++ {
		first := -1
		var at time.Time
		for i, s := range scans {
			e, err := s.peek(ctx)
			if err != nil {
				return nil, err
			}
			if e != nil && (first < 0 || e.ReceivedAt.Before(at)) {
				first, at = i, e.ReceivedAt
			}
		}
		if first < 0 {
			break
		}
		s := scans[first]
		taken[first] = append(taken[first], s.buffer[0])
		s.pass()
	}
	return merge(taken), nil
}

// merge merges lists by timestamp and keeps the order of each.
func merge(lists [][]Event) []Event {
	out := []Event{}
	for {
		first := -1
		for i, l := range lists {
			if len(l) > 0 && (first < 0 || l[0].Timestamp.Before(lists[first][0].Timestamp)) {
				first = i
			}
		}
		if first < 0 {
			return out
		}
		out = append(out, lists[first][0])
		lists[first] = lists[first][1:]
	}
}

// ReadStream returns up to limit events of one stream from the sequence on, and
// the stream's head, for those who keep their own position: behind the last
// event, or from when there is none. An *ExpiredError (without a cursor) says
// that events from the sequence on are gone.
func ReadStream(ctx context.Context, l ledger.Reader, stream string, from int64, limit int) ([]Event, Head, error) {
	for try := 0; ; try++ {
		head, _, err := LoadHead(ctx, l, stream)
		if err != nil {
			return nil, head, err
		}
		if from < head.Low {
			return nil, head, &ExpiredError{Streams: map[string]int64{stream: head.Low}}
		}
		s := &scan{l: l, q: &Query{}, stream: stream, next: from, head: head, budget: maxScan, want: limit}
		events, err := collect(ctx, []*scan{s}, limit)
		var hole *holeError
		if !errors.As(err, &hole) || try == maxHoles {
			return events, head, err
		}
		if err := backOff(ctx, try+2); err != nil {
			return nil, head, err
		}
	}
}
